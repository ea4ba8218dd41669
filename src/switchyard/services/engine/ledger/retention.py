"""Remove ended jobs, letters, operations and workers that are old enough and no longer needed.

Every method is one short transaction, whose size the caller chooses by how long the last one took.
The transaction that removes jobs also checks whether they are needed, so a job that has become
needed stays. A job is removed only after the jobs that followed from it, so a running job never
misses its predecessors.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    TextClause,
    and_,
    case,
    delete,
    exists,
    func,
    select,
    text,
    tuple_,
    update,
)

from switchyard.services.common.durations import DAY
from switchyard.services.engine.ledger.archive import lock_unsettled
from switchyard.services.engine.ledger.sql.codec import to_json
from switchyard.services.engine.ledger.sql.dialect import (
    among,
    keys_condition,
    keys_parameter,
)
from switchyard.services.engine.ledger.sql.job_filters import lanes_in
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.ledger.sql.tables import (
    bulk_operations,
    dead_letters,
    job_actions,
    jobs,
    letter_edits,
    redriven_letters,
    workers,
)
from switchyard.services.engine.records.archive import JobVersion, WrittenFile, microseconds
from switchyard.services.engine.records.bulk import ENDED
from switchyard.services.engine.records.retention import (
    ExaminedJobs,
    KeptFor,
    Removal,
    RetentionAges,
)
from switchyard.services.engine.records.states import FINISHED, DeadLetterState, State

KEYS_KEPT_FOR = 7 * DAY
"""Seconds since its end for which a job with an idempotency key is kept whatever its age: a request
that is repeated within that time finds it."""
WORKERS_KEPT_FOR = 30 * DAY
"""Seconds for which a stopped or dead worker is listed."""
ATTEMPTS_PER_JOB = 4
"""Attempts that one transaction removes at most, times the jobs that it may remove; few jobs have
more."""

_JOB_ID_COLUMNS = {
    "job_progress": "job_id",
    "job_checkpoints": "job_id",
    "joins": "id",
    "letter_edits": "letter_id",
    "job_actions": "job_id",
    "job_tags": "job_id",
    "dead_letters": "id",
    "jobs": "id",
}
"""The tables from which a job's rows are removed, each with its column of the job's id; attempts
are removed before."""

_DELETE_ATTEMPTS = (
    "DELETE FROM attempts WHERE id IN (SELECT id FROM attempts WHERE {} "
    "LIMIT CAST(:limit AS bigint))"
)


def _delete_at_once() -> TextClause:
    """Return PostgreSQL's statement that deletes all rows of jobs. It is one statement, because
    on a busy machine each of ten would wait, within the transaction."""
    attempts = _DELETE_ATTEMPTS.format(keys_condition("postgresql", "job_id"))
    parts = [
        f"of_attempts AS ({attempts} RETURNING 1)",
        "of_all AS (SELECT count(*) < CAST(:limit AS bigint) AS follow FROM of_attempts)",
    ]
    for table, key in _JOB_ID_COLUMNS.items():
        condition = f"{keys_condition('postgresql', key)} AND (SELECT follow FROM of_all)"
        parts.append(f"of_{table} AS (DELETE FROM {table} WHERE {condition} RETURNING 1)")
    numbers = [
        f"(SELECT count(*) FROM of_{each}) AS {each}" for each in ("attempts", *_JOB_ID_COLUMNS)
    ]
    return text(f"WITH {', '.join(parts)} SELECT {', '.join(numbers)}")


_DELETE_JOBS = _delete_at_once()
_ENDED_AT = func.coalesce(jobs.c.finished_at, jobs.c.updated_at)
_OPEN_OPERATION = bulk_operations.c.state.not_in(sorted(ENDED))


class RetentionRepository(Repository):
    """Removes rows that are old enough and no longer needed. All methods raise LedgerUnavailable
    when the database is away."""

    @read
    def ended_lanes(self, connection: Connection, state: State) -> list[str]:
        """Return the lanes that have jobs in this state; each costs one look into the index."""
        return lanes_in(connection, state)

    @read
    def examine(
        self,
        connection: Connection,
        ages: RetentionAges,
        state: State,
        lane: str,
        *,
        before: tuple[float, str] | None,
        limit: int,
        expect_removals: bool = False,
    ) -> ExaminedJobs:
        """Tell which of the next `limit` ended jobs can be removed, and why others can't. With
        `expect_removals`, a job is not kept for others that are old enough themselves, as these are
        removed before it."""
        watch = Stopwatch(connection)
        now = self.clock.time()
        age = ages.shortest(state, lane)
        if age is None:
            return ExaminedJobs((), Counter(), Counter(), None, 0.0)
        sample = select(jobs.c.id).where(
            jobs.c.state == state, jobs.c.lane == lane, jobs.c.created_at < now - age
        )
        if before is not None:
            at, _ = before
            key = tuple_(jobs.c.created_at, jobs.c.id)
            sample = sample.where(jobs.c.created_at <= at, key < tuple_(*before))
        page = sample.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit).subquery()
        why = _reason_to_keep(ages, now, expect_removals=expect_removals).label("why")
        query = (
            select(jobs.c.id, jobs.c.created_at, jobs.c.job_type, why)
            .where(jobs.c.id == page.c.id)
            .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        )
        rows = connection.execute(query).all()
        removable = [row for row in rows if row.why is None]
        return ExaminedJobs(
            removable=tuple(row.id for row in removable),
            kept=Counter(KeptFor(row.why) for row in rows if row.why is not None),
            types=Counter(row.job_type for row in removable),
            after=(rows[-1].created_at, rows[-1].id) if len(rows) == limit else None,
            seconds=watch.seconds(),
        )

    @write
    def remove_jobs(
        self,
        connection: Connection,
        ages: RetentionAges,
        job_ids: Sequence[str],
        *,
        archived: WrittenFile | None = None,
    ) -> Removal:
        """Remove those of these jobs that are not needed, with all rows that belong to them. A job
        with very many attempts loses these first, in several calls. With `archived`, the jobs are
        those of that file; a job that has changed since it was archived stays."""
        watch = Stopwatch(connection)
        if archived is not None and not lock_unsettled(connection, archived.file.number):
            return Removal(Counter(), True, watch.seconds())
        query = (
            select(
                jobs.c.id,
                jobs.c.state,
                jobs.c.parent_id,
                jobs.c.operation_id,
                jobs.c.created_at,
                jobs.c.updated_at,
            )
            .where(
                # By the id alone: with a condition for the state, SQLite would look through all
                # that have ended.
                among(connection, jobs.c.id, sorted(job_ids)),
                _reason_to_keep(ages, self.clock.time()).is_(None),
            )
            .with_for_update(of=jobs, skip_locked=True)
        )
        removable = [
            row
            for row in connection.execute(query)
            if archived is None
            or archived.versions[row.id]
            == JobVersion(microseconds(row.created_at), microseconds(row.updated_at))
        ]
        if not removable:
            return Removal(Counter(), True, watch.seconds())
        removed, is_complete = _delete_jobs(connection, [row.id for row in removable])
        if is_complete:
            _count_removed(connection, removable)
        return Removal(+removed, is_complete, watch.seconds())

    @write
    def remove_letters(
        self,
        connection: Connection,
        age: float,
        *,
        after: tuple[float, str] | None,
        limit: int,
        dry_run: bool = False,
    ) -> tuple[Removal, tuple[float, str] | None]:
        """Remove those of the next `limit` letters that no longer wait and have no job, such as
        malformed messages. Also returns the position to continue from; None at the end."""
        watch = Stopwatch(connection)
        oldest = self.clock.time() - age
        key = tuple_(dead_letters.c.dead_at, dead_letters.c.id)
        page = select(dead_letters.c.id, dead_letters.c.dead_at).where(
            dead_letters.c.dead_at < oldest
        )
        if after is not None:
            page = page.where(dead_letters.c.dead_at >= after[0], key > tuple_(*after))
        rows = connection.execute(
            page.order_by(dead_letters.c.dead_at, dead_letters.c.id).limit(limit)
        ).all()
        open_redrive = redriven_letters.join(
            bulk_operations, bulk_operations.c.id == redriven_letters.c.operation_id
        )
        is_unneeded = and_(
            among(connection, dead_letters.c.id, [row.id for row in rows]),
            dead_letters.c.state != DeadLetterState.WAITING,
            dead_letters.c.updated_at < oldest,
            ~exists().where(jobs.c.id == dead_letters.c.id),
            ~exists().where(jobs.c.id == dead_letters.c.job_id),
            ~select(redriven_letters.c.letter_id)
            .select_from(open_redrive)
            .where(redriven_letters.c.letter_id == dead_letters.c.id, _OPEN_OPERATION)
            .exists(),
        )
        ids = list(connection.scalars(select(dead_letters.c.id).where(is_unneeded)))
        removed = Counter({"dead_letters": len(ids)})
        if ids and not dry_run:
            for column in (letter_edits.c.letter_id, dead_letters.c.id):
                deleted = connection.execute(
                    delete(column.table).where(among(connection, column, ids))
                )
                removed[str(column.table)] = deleted.rowcount
        next_position = (rows[-1].dead_at, rows[-1].id) if len(rows) == limit else None
        return Removal(+removed, next_position is None, watch.seconds()), next_position

    @write
    def remove_operations(self, connection: Connection, age: float, *, limit: int) -> Removal:
        """Remove the oldest ended operation that is old enough and has no jobs left, and what it
        has sent. Each call removes at most `limit` rows; the last one, the operation itself."""
        watch = Stopwatch(connection)
        query = _old_operations(self.clock.time() - age).limit(1)
        operation_id = connection.scalar(query)
        removed: Counter[str] = Counter()
        if operation_id is None:
            return Removal(removed, True, watch.seconds())
        for key in (redriven_letters.c.letter_id, letter_edits.c.letter_id, job_actions.c.job_id):
            table = key.table
            condition = table.c.operation_id == operation_id
            batch = select(key).where(condition).limit(limit)
            deleted = connection.execute(delete(table).where(condition, key.in_(batch)))
            removed[table.name] += deleted.rowcount
        if removed.total() == 0:
            connection.execute(delete(bulk_operations).where(bulk_operations.c.id == operation_id))
            removed["bulk_operations"] = 1
        return Removal(+removed, False, watch.seconds())

    @read
    def count_old_operations(self, connection: Connection, age: float) -> int:
        """Count the operations that `remove_operations` would remove."""
        old = _old_operations(self.clock.time() - age).subquery()
        return connection.scalar(select(func.count()).select_from(old)) or 0

    @write
    def remove_workers(self, connection: Connection, *, limit: int) -> Removal:
        """Remove workers that stopped or died long ago, and to which no job is recorded."""
        watch = Stopwatch(connection)
        old_workers = _old_workers(self.clock.time() - WORKERS_KEPT_FOR).limit(limit)
        deleted = connection.execute(delete(workers).where(workers.c.worker_id.in_(old_workers)))
        removed = Counter({"workers": deleted.rowcount})
        return Removal(removed, deleted.rowcount < limit, watch.seconds())

    @read
    def count_old_workers(self, connection: Connection) -> int:
        """Count the workers that `remove_workers` would remove."""
        old = _old_workers(self.clock.time() - WORKERS_KEPT_FOR).subquery()
        return connection.scalar(select(func.count()).select_from(old)) or 0

    @read
    def overdue(
        self, connection: Connection, ages: RetentionAges, *, by: float, sample: int
    ) -> int:
        """Count jobs that should have been removed `by` seconds ago: of each state and lane, among
        the `sample` oldest."""
        now, late = self.clock.time(), ages.longer_by(by)
        number = 0
        for state in sorted(FINISHED):
            if late.shortest(state) is None:
                continue
            for lane in lanes_in(connection, state):
                age = late.shortest(state, lane)
                if age is None:
                    continue
                condition = (jobs.c.state == state) & (jobs.c.lane == lane)
                oldest = (
                    select(jobs.c.id)
                    .where(condition, jobs.c.created_at < now - age)
                    .order_by(jobs.c.created_at)
                    .limit(sample)
                    .subquery()
                )
                query = select(func.count()).where(
                    jobs.c.id == oldest.c.id, _reason_to_keep(late, now).is_(None)
                )
                number += connection.scalar(query) or 0
        return number

    @read
    def oldest_job(self, connection: Connection) -> float | None:
        """Return when the oldest job was made; None where there is none."""
        created_at: float | None = connection.scalar(select(func.min(jobs.c.created_at)))
        return created_at


def _delete_jobs(connection: Connection, ids: Sequence[str]) -> tuple[Counter[str], bool]:
    """Delete all rows of jobs; where they have very many attempts, some of these alone. Returns
    the numbers of deleted rows by table, and whether the jobs are gone."""
    dialect, limit = connection.dialect.name, ATTEMPTS_PER_JOB * len(ids)
    keys = keys_parameter(dialect, ids)
    if dialect == "postgresql":
        row = connection.execute(_DELETE_JOBS, keys | {"limit": limit}).one()
        removed = Counter(dict(row._mapping))
        return removed, removed["attempts"] < limit
    statement = _DELETE_ATTEMPTS.format(keys_condition(dialect, "job_id"))
    removed = Counter(
        attempts=connection.execute(text(statement), keys | {"limit": limit}).rowcount
    )
    if removed["attempts"] == limit:
        return removed, False
    for table, key in _JOB_ID_COLUMNS.items():
        statement = f"DELETE FROM {table} WHERE {keys_condition(dialect, key)}"
        removed[table] = connection.execute(text(statement), keys).rowcount
    return removed, True


def _is_old_enough(row: Any, ages: RetentionAges, now: float) -> ColumnElement[bool]:
    """Return the condition that a job has ended and its age is over. `row`: the columns of `jobs`,
    or of an alias of it."""
    bounds = []
    for state in sorted(FINISHED):
        if state is not State.DEAD:
            for column, own in ((row.job_type, ages.types), (row.lane, ages.lanes)):
                for name, age in sorted(own.items()):
                    bounds.append(
                        (and_(row.state == state, column == name), _ended_before(now, age))
                    )
        bounds.append((row.state == state, _ended_before(now, ages.states[state])))
    ended_at = func.coalesce(row.finished_at, row.updated_at)
    return and_(row.state.in_(sorted(FINISHED)), ended_at < case(*bounds, else_=-1.0))


def _ended_before(now: float, age: float | None) -> float:
    return -1.0 if age is None else now - age


def _reason_to_keep(
    ages: RetentionAges, now: float, *, expect_removals: bool = False
) -> ColumnElement[str]:
    """Return an expression for the reason why a job is kept; NULL for a job that is not needed."""
    other = jobs.alias("other")
    is_staying = ~_is_old_enough(other.c, ages, now) if expect_removals else other.c.id.is_not(None)
    letter = _finds_row(
        select(dead_letters.c.id).where(
            dead_letters.c.id == jobs.c.id, dead_letters.c.state == DeadLetterState.WAITING
        )
    )
    operation = _finds_row(
        select(bulk_operations.c.id).where(
            bulk_operations.c.id == jobs.c.operation_id, _OPEN_OPERATION
        )
    )
    # A made-up parent id must not keep a job for ever.
    is_other = and_(other.c.id != jobs.c.id, is_staying)
    follower = _finds_row(select(other.c.id).where(other.c.parent_id == jobs.c.id, is_other))
    joined = _finds_row(select(other.c.id).where(other.c.id == jobs.c.join_id, is_other))
    redrive = _finds_row(
        select(redriven_letters.c.letter_id)
        .join(bulk_operations, bulk_operations.c.id == redriven_letters.c.operation_id)
        .where(redriven_letters.c.letter_id == jobs.c.id, _OPEN_OPERATION)
    )
    key = and_(jobs.c.idempotency_key.is_not(None), now - KEYS_KEPT_FOR <= _ENDED_AT)
    return case(
        (~_is_old_enough(jobs.c, ages, now), KeptFor.AGE.value),
        (key, KeptFor.KEY.value),
        (operation, KeptFor.OPERATION.value),
        (letter, KeptFor.LETTER.value),
        (follower, KeptFor.FOLLOWERS.value),
        (and_(jobs.c.join_id.is_not(None), joined), KeptFor.JOIN.value),
        (redrive, KeptFor.REDRIVE.value),
        else_=None,
    )


def _finds_row(query: Select[Any]) -> ColumnElement[bool]:
    """Return the condition that a query about one job finds a row.

    With EXISTS, PostgreSQL reads the whole table once for each page of jobs and compares, which
    takes the longer the more letters or operations there are.
    """
    return query.limit(1).scalar_subquery().is_not(None)


def _old_operations(oldest: float) -> Select[Any]:
    ended_at = func.coalesce(bulk_operations.c.finished_at, bulk_operations.c.updated_at)
    return (
        select(bulk_operations.c.id)
        .where(
            bulk_operations.c.state.in_(sorted(ENDED)),
            ended_at < oldest,
            ~exists().where(jobs.c.operation_id == bulk_operations.c.id),
        )
        .order_by(bulk_operations.c.created_at, bulk_operations.c.id)
    )


def _old_workers(oldest: float) -> Select[Any]:
    seen_at = func.coalesce(workers.c.stopped_at, workers.c.beat_at)
    runs = exists().where(jobs.c.state == State.RUNNING, jobs.c.worker_id == workers.c.worker_id)
    return select(workers.c.worker_id).where(seen_at < oldest, ~runs)


def _count_removed(connection: Connection, removed: Sequence[Any]) -> None:
    """Add removed jobs to the counts of their operations, so that these still include them."""
    numbers = Counter(
        (row.operation_id, "own" if row.parent_id is None else "followers", row.state)
        for row in removed
        if row.operation_id is not None
    )
    for operation_id in sorted({each for each, _, _ in numbers}):
        condition = bulk_operations.c.id == operation_id
        record = connection.scalar(
            select(bulk_operations.c.counts).where(condition).with_for_update()
        )
        if record is None:
            continue
        counts = json.loads(record)
        pruned = counts.setdefault("pruned", {})
        for (each, whose, state), number in numbers.items():
            if each == operation_id:
                by_state = pruned.setdefault(whose, {})
                by_state[state] = by_state.get(state, 0) + number
        connection.execute(update(bulk_operations).where(condition).values(counts=to_json(counts)))
