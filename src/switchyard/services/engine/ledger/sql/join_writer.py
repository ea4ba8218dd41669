"""Count the jobs of each join in the transactions in which they begin and end. A join is a set of
jobs that another job waits for.

Every change of a job's state goes through `JobWriter`. So only this module counts joins: it
compares the state of each row before and after the transaction.

The waiting job has a row from the start, in state `joining`. The transaction that ends the last of
the others makes it `pending`, like any job that is recorded and not yet published. In a join with
`again`, a `pending` copy of the waiting job is made whenever all jobs have ended again after a
redrive.

A transaction locks the rows of joins after all others, in one order. So a transaction that has
locked a join can only wait for the row of the waiting job, which only a cancellation locks together
with a join.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql import dialect as sql
from switchyard.services.engine.ledger.sql.job_rows import JobRow, Rows
from switchyard.services.engine.records.joins import WhenDead
from switchyard.services.engine.records.states import FINISHED, State

_LOADED_COLUMNS: Final = (
    "id, when_dead, held, again, total, open_jobs, dead, cancelled, fulfilled_at"
)

_COLUMNS: Final[sql.Columns] = {
    "id": "text",
    "when_dead": "text",
    "held": "integer",
    "again": "integer",
    "total": "integer",
    "open_jobs": "integer",
    "dead": "integer",
    "cancelled": "integer",
    "fulfilled_at": "double precision",
}


@dataclass(slots=True)
class JoinCounts:
    """Numbers of a join's jobs by state, or the changes of these numbers."""

    total: int = 0
    open: int = 0
    dead: int = 0
    cancelled: int = 0

    def add(self, state: State | None, number: int) -> None:
        """Add `number` jobs to a state's count; do nothing if the state is None."""
        if state is None:
            return
        self.total += number
        self.open += number * (state not in FINISHED)
        self.dead += number * (state is State.DEAD)
        self.cancelled += number * (state is State.CANCELLED)

    def plus(self, other: JoinCounts) -> JoinCounts:
        return JoinCounts(
            self.total + other.total,
            self.open + other.open,
            self.dead + other.dead,
            self.cancelled + other.cancelled,
        )


@dataclass(slots=True)
class JoinRow:
    """The columns of a join that a transaction changes."""

    id: str
    when_dead: WhenDead
    held: bool
    again: bool
    counts: JoinCounts
    fulfilled_at: float | None

    @property
    def is_due(self) -> bool:
        """Whether the waiting job is to be released now."""
        if self.fulfilled_at is not None or self.held or self.counts.open:
            return False
        return self.when_dead != "wait" or not self.counts.dead


_COPIED_COLUMNS: Final = (
    "job_type, lane, routing_key, worker, priority, source, parent_id, pipeline, operation_id, "
    "max_attempts, metadata, payload"
)


class JoinWriter:
    """Counts joins in a transaction. Keeps only prepared statements."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._select = sql.select_locked(dialect, _LOADED_COLUMNS, "id", table="joins")
        source = sql.rows_source(dialect, _COLUMNS)
        names = ", ".join(_COLUMNS)
        self._insert = text(
            f"INSERT INTO joins ({names}, made_at) SELECT {names}, :at FROM {source} WHERE true"
        )
        changes = ", ".join(f"{name} = r.{name}" for name in _COLUMNS if name != "id")
        self._update = text(f"UPDATE joins SET {changes} FROM {source} WHERE joins.id = r.id")
        self._delete = text(f"DELETE FROM joins WHERE {sql.keys_condition(dialect, 'id')}")
        self._release = text(
            "UPDATE jobs SET state = 'pending', updated_at = :at "
            f"WHERE {sql.keys_condition(dialect, 'id')} AND state = 'joining' RETURNING id"
        )
        self._select_pending = text(
            f"SELECT id FROM jobs WHERE {sql.keys_condition(dialect, 'id')} AND state = 'pending'"
        )
        self._insert_copy = text(
            f"INSERT INTO jobs (id, state, attempts, redrives, crashes, created_at, queued_at, "
            f"updated_at, {_COPIED_COLUMNS}) "
            f"SELECT :copy, 'pending', 0, 0, 0, :at, :at, :at, {_COPIED_COLUMNS} "
            "FROM jobs WHERE id = :id AND state NOT IN ('joining', 'cancelled')"
        )

    def write(self, connection: Connection, rows: Rows) -> None:
        """Count the changed states among these rows; without joined jobs, this runs no statement.
        Adds each released job to the result of the job that ended last
        (`rows.finishes_by_join`)."""
        changes = _count_changes(rows)
        self._report_released(
            connection, rows, sorted(rows.finishes_by_join.keys() - changes.keys())
        )
        deleted_ids = [row.id for row in rows.deleted if row.joins]
        if deleted_ids:  # a join is deleted with its waiting job
            connection.execute(self._delete, sql.keys_parameter(self._dialect, sorted(deleted_ids)))
            changes = {
                join_id: each for join_id, each in changes.items() if join_id not in deleted_ids
            }
        if not changes and not rows.new_joins:
            return
        at = max((row.updated_at or 0 for row in rows.jobs.values()), default=0)
        new = [
            JoinRow(
                join_id,
                join.when_dead,
                join.held,
                join.again,
                changes.pop(join_id, JoinCounts()),
                None,
            )
            for join_id, join in rows.new_joins.items()
            if join_id in rows.jobs
        ]
        loaded = self._load(connection, list(changes)) if changes else []
        joins_to_copy = []
        for join in loaded:
            was_open = join.counts.open
            join.counts = join.counts.plus(changes[join.id])
            if join.again and join.fulfilled_at is not None and was_open and not join.counts.open:
                joins_to_copy.append(join.id)
        due = {
            join_id: join_id
            for join_id in self._write_joins(connection, at, new=new, loaded=loaded)
        }
        for join_id in joins_to_copy:
            if (copy_id := self._copy_waiting_job(connection, join_id, at)) is not None:
                due[join_id] = copy_id
        for join_id, job_id in due.items():
            if (finished := rows.finishes_by_join.get(join_id)) is not None:
                finished.due.append(job_id)

    def _report_released(self, connection: Connection, rows: Rows, join_ids: list[str]) -> None:
        """Add the released jobs of joins that no row of this transaction has changed: a dead letter
        was read before the worker's report, or the first answer to the report was lost. Otherwise
        the outbox would find the released job only 15 s later."""
        if join_ids:
            keys = sql.keys_parameter(self._dialect, join_ids)
            for row in connection.execute(self._select_pending, keys):
                rows.finishes_by_join[row.id].due.append(row.id)

    def settle(
        self, connection: Connection, join_id: str, at: float, *, when_dead: WhenDead | None
    ) -> bool | None:
        """Seal a join and set its `when_dead`, if given. Return whether the waiting job is
        `pending` now; None where no such join waits."""
        loaded = [join for join in self._load(connection, [join_id]) if join.fulfilled_at is None]
        for join in loaded:
            join.held = False
            join.when_dead = when_dead or join.when_dead
        if not loaded:
            return None
        return bool(self._write_joins(connection, at, new=[], loaded=loaded))

    def seal(self, connection: Connection, join_id: str, at: float) -> None:
        """Seal a join. If it was fulfilled before and has `again`, make a `pending` copy of its
        job."""
        if self.settle(connection, join_id, at, when_dead=None) is None and any(
            join.again for join in self._load(connection, [join_id])
        ):
            self._copy_waiting_job(connection, join_id, at)

    def _copy_waiting_job(self, connection: Connection, join_id: str, at: float) -> str | None:
        """Copy the job that waited; return the copy's id, or None where that job is gone or was
        cancelled."""
        copy_id = str(uuid4())
        result = connection.execute(self._insert_copy, {"copy": copy_id, "id": join_id, "at": at})
        return copy_id if result.rowcount else None

    def _load(self, connection: Connection, ids: list[str]) -> list[JoinRow]:
        rows = sql.fetch_locked(connection, self._select, ids)
        return [
            JoinRow(join_id, when_dead, bool(held), bool(again), JoinCounts(*counts), fulfilled_at)
            for join_id, when_dead, held, again, *counts, fulfilled_at in rows
        ]

    def _write_joins(
        self, connection: Connection, at: float, *, new: list[JoinRow], loaded: list[JoinRow]
    ) -> list[str]:
        """Write the joins and release the waiting jobs that are due; return the ids of these."""
        due = [join for join in (*new, *loaded) if join.is_due]
        for join in due:
            join.fulfilled_at = at
        if new:
            connection.execute(self._insert, {**self._parameters(new), "at": at})
        if loaded:
            connection.execute(self._update, self._parameters(loaded))
        if not due:
            return []
        keys = sql.keys_parameter(self._dialect, sorted(join.id for join in due))
        return [row.id for row in connection.execute(self._release, {**keys, "at": at})]

    def _parameters(self, joins: list[JoinRow]) -> dict[str, object]:
        lines = [
            [
                join.id,
                join.when_dead,
                int(join.held),
                int(join.again),
                join.counts.total,
                join.counts.open,
                join.counts.dead,
                join.counts.cancelled,
                join.fulfilled_at,
            ]
            for join in joins
        ]
        return sql.rows_parameters(self._dialect, _COLUMNS, lines)


def _count_changes(rows: Rows) -> dict[str, JoinCounts]:
    """Return how the numbers of jobs have changed, by join."""
    changes: dict[str, JoinCounts] = {}

    def count(row: JobRow, now: State | None) -> None:
        if row.join_id is not None and now is not row.loaded_state:
            counts = changes.setdefault(row.join_id, JoinCounts())
            counts.add(row.loaded_state, -1)
            counts.add(now, 1)

    for row in rows.jobs.values():
        count(row, row.state)
    for row in rows.deleted:
        count(row, None)
    return {join_id: each for join_id, each in changes.items() if each != JoinCounts()}
