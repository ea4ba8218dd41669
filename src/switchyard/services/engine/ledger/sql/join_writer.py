"""Count joins: the jobs that another job waits for, in the transaction in which they begin and end.

Every change of a job's state goes through `JobWriter`, so this is the one place where a join is
counted: by what a row was and what it has become, however it came to that. The job that waits is a
row from the start, `joining`; the transaction in which the last of the others ends makes it
`pending`. From there on it is a job that was recorded and not yet published, as any other. Where a
join says `again`, and its jobs end anew after a redrive, a copy of that job is made, `pending`.

A transaction takes the rows of joins after all others, in one order. So nobody who holds a join
waits for anything but the row of the job that waits, which only calling it off holds beside a join.
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

_LOADED: Final = "id, when_dead, held, again, total, open_jobs, dead, cancelled, fulfilled_at"

_CHANGED: Final[sql.Columns] = {
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
class JoinDelta:
    """Numbers of a join's jobs by state; also used for changes of these numbers."""

    total: int = 0
    open: int = 0
    dead: int = 0
    cancelled: int = 0

    def add(self, state: State | None, number: int) -> None:
        """Add `number` jobs to a state's count; None counts for no state."""
        if state is None:
            return
        self.total += number
        self.open += number * (state not in FINISHED)
        self.dead += number * (state is State.DEAD)
        self.cancelled += number * (state is State.CANCELLED)

    def plus(self, other: JoinDelta) -> JoinDelta:
        return JoinDelta(
            self.total + other.total,
            self.open + other.open,
            self.dead + other.dead,
            self.cancelled + other.cancelled,
        )


@dataclass(slots=True)
class JoinRow:
    """A join, as a transaction works on it."""

    id: str
    when_dead: WhenDead
    held: bool
    again: bool
    counted: JoinDelta
    fulfilled_at: float | None

    @property
    def is_due(self) -> bool:
        """Whether the job that waits is to be published now."""
        if self.fulfilled_at is not None or self.held or self.counted.open:
            return False
        return self.when_dead != "wait" or not self.counted.dead


_COPIED: Final = (
    "job_type, lane, routing_key, worker, priority, source, parent_id, pipeline, operation_id, "
    "max_attempts, metadata, payload"
)


class JoinWriter:
    """Counts in a transaction. Holds only statements."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._select = sql.select_locked(dialect, _LOADED, "id", table="joins")
        source = sql.rows_source(dialect, _CHANGED)
        names = ", ".join(_CHANGED)
        self._insert = text(
            f"INSERT INTO joins ({names}, made_at) SELECT {names}, :at FROM {source} WHERE true"
        )
        changes = ", ".join(f"{name} = r.{name}" for name in _CHANGED if name != "id")
        self._update = text(f"UPDATE joins SET {changes} FROM {source} WHERE joins.id = r.id")
        self._delete = text(f"DELETE FROM joins WHERE {sql.keys_condition(dialect, 'id')}")
        self._publish = text(
            "UPDATE jobs SET state = 'pending', updated_at = :at "
            f"WHERE {sql.keys_condition(dialect, 'id')} AND state = 'joining' RETURNING id"
        )
        self._pending = text(
            f"SELECT id FROM jobs WHERE {sql.keys_condition(dialect, 'id')} AND state = 'pending'"
        )
        self._copy = text(
            f"INSERT INTO jobs (id, state, attempts, redrives, crashes, created_at, queued_at, "
            f"updated_at, {_COPIED}) SELECT :copy, 'pending', 0, 0, 0, :at, :at, :at, {_COPIED} "
            "FROM jobs WHERE id = :id AND state NOT IN ('joining', 'cancelled')"
        )

    def write(self, connection: Connection, rows: Rows) -> None:
        """Count what has changed among these rows; nothing is asked where none is joined. Whoever
        ended the last job of a join is told in `rows.noted`."""
        changes = _changes(rows)
        self._report_late(connection, rows, sorted(rows.noted.keys() - changes.keys()))
        deleted_ids = [row.id for row in rows.deleted if row.joins]
        if deleted_ids:  # nobody waits any more for what they waited for
            connection.execute(self._delete, sql.keys_parameter(self._dialect, sorted(deleted_ids)))
            changes = {
                join_id: each for join_id, each in changes.items() if join_id not in deleted_ids
            }
        if not changes and not rows.opened:
            return
        at = max((row.updated_at or 0 for row in rows.jobs.values()), default=0)
        new = [
            JoinRow(
                join_id,
                join.when_dead,
                join.held,
                join.again,
                changes.pop(join_id, JoinDelta()),
                None,
            )
            for join_id, join in rows.opened.items()
            if join_id in rows.jobs
        ]
        known = self._load(connection, list(changes)) if changes else []
        anew = []
        for join in known:
            was_open = join.counted.open
            join.counted = join.counted.plus(changes[join.id])
            if join.again and join.fulfilled_at is not None and was_open and not join.counted.open:
                anew.append(join.id)
        due = {join_id: join_id for join_id in self._store(connection, at, new=new, known=known)}
        for join_id in anew:
            if (copy := self._recreate(connection, join_id, at)) is not None:
                due[join_id] = copy
        for join_id, job_id in due.items():
            if (noted := rows.noted.get(join_id)) is not None:
                noted.due.append(job_id)

    def _report_late(self, connection: Connection, rows: Rows, join_ids: list[str]) -> None:
        """Report jobs that had ended before their worker said so: their dead letter was read first,
        or the first answer was lost. Otherwise the outbox would find the waiting job only 15 s
        later."""
        if join_ids:
            keys = sql.keys_parameter(self._dialect, join_ids)
            for row in connection.execute(self._pending, keys):
                rows.noted[row.id].due.append(row.id)

    def settle(
        self, connection: Connection, join_id: str, at: float, *, when_dead: WhenDead | None
    ) -> bool | None:
        """End what holds a join, and change what becomes of it when some are dead. Whether the job
        that waits is to be published now; None where no such join waits."""
        known = [join for join in self._load(connection, [join_id]) if join.fulfilled_at is None]
        for join in known:
            join.held = False
            join.when_dead = when_dead or join.when_dead
        if not known:
            return None
        return bool(self._store(connection, at, new=[], known=known))

    def seal(self, connection: Connection, join_id: str, at: float) -> None:
        """End what holds a join; where that has ended before, and it is one that says `again`, a
        copy of the job that waited is `pending` now."""
        if self.settle(connection, join_id, at, when_dead=None) is None and any(
            join.again for join in self._load(connection, [join_id])
        ):
            self._recreate(connection, join_id, at)

    def _recreate(self, connection: Connection, join_id: str, at: float) -> str | None:
        """Return the id of a new job like the one that has waited; None where that one is gone, or
        was called off."""
        copy = str(uuid4())
        done = connection.execute(self._copy, {"copy": copy, "id": join_id, "at": at})
        return copy if done.rowcount else None

    def _load(self, connection: Connection, ids: list[str]) -> list[JoinRow]:
        rows = sql.fetch_locked(connection, self._select, ids)
        return [
            JoinRow(join_id, when_dead, bool(held), bool(again), JoinDelta(*numbers), fulfilled_at)
            for join_id, when_dead, held, again, *numbers, fulfilled_at in rows
        ]

    def _store(
        self, connection: Connection, at: float, *, new: list[JoinRow], known: list[JoinRow]
    ) -> list[str]:
        """Write the joins, and let go the jobs whose time has come: their ids."""
        due = [join for join in (*new, *known) if join.is_due]
        for join in due:
            join.fulfilled_at = at
        if new:
            connection.execute(self._insert, {**self._parameters(new), "at": at})
        if known:
            connection.execute(self._update, self._parameters(known))
        if not due:
            return []
        keys = sql.keys_parameter(self._dialect, sorted(join.id for join in due))
        return [row.id for row in connection.execute(self._publish, {**keys, "at": at})]

    def _parameters(self, joins: list[JoinRow]) -> dict[str, object]:
        lines = [
            [
                join.id,
                join.when_dead,
                int(join.held),
                int(join.again),
                join.counted.total,
                join.counted.open,
                join.counted.dead,
                join.counted.cancelled,
                join.fulfilled_at,
            ]
            for join in joins
        ]
        return sql.rows_parameters(self._dialect, _CHANGED, lines)


def _changes(rows: Rows) -> dict[str, JoinDelta]:
    """Return, by join, what has changed among its jobs."""
    changes: dict[str, JoinDelta] = {}

    def count(row: JobRow, now: State | None) -> None:
        if row.join_id is not None and now is not row.before:
            counted = changes.setdefault(row.join_id, JoinDelta())
            counted.add(row.before, -1)
            counted.add(now, 1)

    for row in rows.jobs.values():
        count(row, row.state)
    for row in rows.deleted:
        count(row, None)
    return {join_id: each for join_id, each in changes.items() if each != JoinDelta()}
