"""Store schedules and the firings of their due times. Each due time has one row, so that it is
fired once, however many schedulers there are. All times are by the database's clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    TextClause,
    delete,
    func,
    select,
    text,
    true,
    update,
)

from switchyard.services.engine.ledger.sql.codec import clean, to_json
from switchyard.services.engine.ledger.sql.dialect import db_now, insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import schedule_firings, schedules
from switchyard.services.engine.records.schedules import Firing, FiringOutcome, ScheduleRecord

MAX_FIRINGS = 500
"""Firings that are kept of each schedule."""


class ScheduleRepository(Repository):
    """Stores schedules and their firings. All methods raise LedgerUnavailable when the database is
    away."""

    @read
    def schedules(self, connection: Connection) -> list[ScheduleRecord]:
        """Return all schedules, by name."""
        query = select(schedules).order_by(schedules.c.name)
        return [_to_schedule(row) for row in connection.execute(query)]

    @read
    def schedule(self, connection: Connection, name: str) -> ScheduleRecord | None:
        """Return one schedule; None where there is none of that name."""
        row = connection.execute(select(schedules).where(schedules.c.name == name)).first()
        return None if row is None else _to_schedule(row)

    @write
    def add_schedule(
        self, connection: Connection, entry: ScheduleRecord, *, max_number: int
    ) -> bool | None:
        """Record a new schedule. False where its name is taken, None where there are `max_number`
        schedules already."""
        number = connection.scalar(select(func.count()).select_from(schedules)) or 0
        if number >= max_number:
            return None
        added = connection.execute(
            insert_into(connection, schedules)
            .values(**_columns(entry))
            .on_conflict_do_nothing()
            .returning(schedules.c.name)
        )
        return added.first() is not None

    @write
    def replace_schedules(
        self,
        connection: Connection,
        origin: str,
        changed: Sequence[ScheduleRecord],
        removed_names: Sequence[str],
    ) -> None:
        """Write the `changed` schedules of an origin, and remove those of `removed_names`, in one
        transaction. An existing schedule stays paused if it is."""
        for entry in changed:
            columns = _columns(entry)
            insert = insert_into(connection, schedules).values(**columns)
            unchanged_columns = ("name", "paused_at", "created_at")
            connection.execute(
                insert.on_conflict_do_update(
                    index_elements=["name"],
                    set_={
                        name: value
                        for name, value in columns.items()
                        if name not in unchanged_columns
                    },
                )
            )
        for name in removed_names:
            _delete_schedule(connection, name, origin)

    @write
    def remove_schedule(self, connection: Connection, name: str, origin: str) -> bool:
        """Remove a schedule of that origin, with its history. False where there is none."""
        return _delete_schedule(connection, name, origin)

    @write
    def set_pause(
        self,
        connection: Connection,
        name: str,
        paused_at: float | None,
        next_at: float,
        fire_at: float,
    ) -> None:
        """Pause a schedule at `paused_at`, or with None resume it. Due times during a pause are
        neither fired nor missed."""
        change = (
            update(schedules)
            .where(schedules.c.name == name)
            .values(paused_at=paused_at, next_at=next_at, fire_at=fire_at)
        )
        connection.execute(change)

    @read
    def due_schedules(
        self, connection: Connection, limit: int
    ) -> tuple[list[ScheduleRecord], float]:
        """Return the schedules that are due, the longest due first; and the database's time."""
        now = db_now(connection)
        query = (
            select(schedules)
            .where(schedules.c.paused_at.is_(None), schedules.c.fire_at <= now)
            .order_by(schedules.c.fire_at)
            .limit(limit)
        )
        return [_to_schedule(row) for row in connection.execute(query)], now

    @write
    def record_due(
        self,
        connection: Connection,
        entry: ScheduleRecord,
        firings: Sequence[Firing],
        next_at: float,
        fire_at: float,
    ) -> bool:
        """Record the outcomes of the due times before `next_at`, the next one. False where another
        scheduler has done so, or the schedule was changed, paused or removed meanwhile."""
        move = (
            update(schedules)
            .where(
                schedules.c.name == entry.name,
                schedules.c.next_at == entry.next_at,
                schedules.c.cron == entry.cron,
                schedules.c.timezone == entry.timezone,
                schedules.c.paused_at.is_(None),
            )
            .values(next_at=next_at, fire_at=fire_at)
            .returning(schedules.c.name)
        )
        if connection.execute(move).first() is None:
            return False
        for each in firings:
            _insert_firing(connection, each)
        _delete_old_firings(connection, entry.name)
        return True

    @write
    def record_firing(self, connection: Connection, firing: Firing) -> bool:
        """Record a firing outside of the schedule's due times. False where there is one for that
        moment."""
        _delete_old_firings(connection, firing.schedule)
        return _insert_firing(connection, firing)

    @read
    def open_firings(
        self, connection: Connection, limit: int
    ) -> list[tuple[Firing, ScheduleRecord]]:
        """Return the firings whose jobs are still to be published, the longest due first."""
        query = (
            select(schedule_firings, schedules)
            .join(schedules, schedules.c.name == schedule_firings.c.schedule)
            .where(text("schedule_firings.outcome = 'due'"))
            .order_by(schedule_firings.c.due_at)
            .limit(limit)
        )
        rows = connection.execute(query).all()
        return [(_to_firing(row), _to_schedule(row)) for row in rows]

    @write
    def settle_firing(
        self,
        connection: Connection,
        firing: Firing,
        outcome: FiringOutcome,
        now: float,
        note: str | None = None,
    ) -> None:
        """Record the outcome of an open firing; with the outcome `due`, only the reason why it is
        still open."""
        change = (
            update(schedule_firings)
            .where(
                schedule_firings.c.schedule == firing.schedule,
                schedule_firings.c.due_at == firing.due_at,
                schedule_firings.c.outcome == FiringOutcome.DUE,
            )
            .values(outcome=outcome, noted_at=now, note=clean(note))
        )
        connection.execute(change)

    @read
    def firings(self, connection: Connection, name: str, limit: int) -> list[Firing]:
        """Return the firings of a schedule, the latest first."""
        query = (
            select(schedule_firings)
            .where(schedule_firings.c.schedule == name)
            .order_by(schedule_firings.c.due_at.desc())
            .limit(limit)
        )
        return [_to_firing(row) for row in connection.execute(query)]

    async def last_firings(self, *, settled: bool = False) -> dict[str, Firing]:
        """Return the latest firing of each schedule that has any; with `settled`, the latest whose
        outcome is decided."""
        return await self._pick_firings(
            func.max(schedule_firings.c.due_at),
            schedule_firings.c.outcome != FiringOutcome.DUE if settled else true(),
        )

    async def waiting_firings(self) -> dict[str, Firing]:
        """Return, of each schedule with open firings, the one that has been open longest."""
        return await self._pick_firings(
            func.min(schedule_firings.c.due_at), text("schedule_firings.outcome = 'due'")
        )

    @read
    def _pick_firings(
        self,
        connection: Connection,
        due_at: ColumnElement[float],
        condition: ColumnElement[bool] | TextClause,
    ) -> dict[str, Firing]:
        chosen = (
            select(schedule_firings.c.schedule, due_at.label("due_at"))
            .where(condition)
            .group_by(schedule_firings.c.schedule)
            .subquery()
        )
        query = select(schedule_firings).join(
            chosen,
            (schedule_firings.c.schedule == chosen.c.schedule)
            & (schedule_firings.c.due_at == chosen.c.due_at),
        )
        return {row.schedule: _to_firing(row) for row in connection.execute(query)}


def _insert_firing(connection: Connection, firing: Firing) -> bool:
    values = asdict(firing) | {"note": clean(firing.note)}
    insert = insert_into(connection, schedule_firings).values(**values).on_conflict_do_nothing()
    return connection.execute(insert.returning(schedule_firings.c.schedule)).first() is not None


def _delete_old_firings(connection: Connection, name: str) -> None:
    condition = schedule_firings.c.schedule == name
    oldest = connection.scalar(
        select(schedule_firings.c.due_at)
        .where(condition)
        .order_by(schedule_firings.c.due_at.desc())
        .limit(1)
        .offset(MAX_FIRINGS - 1)
    )
    if oldest is not None:
        old = schedule_firings.c.due_at < oldest
        closed = schedule_firings.c.outcome != FiringOutcome.DUE
        connection.execute(delete(schedule_firings).where(condition, old, closed))


def _delete_schedule(connection: Connection, name: str, origin: str) -> bool:
    deleted = connection.execute(
        delete(schedules)
        .where(schedules.c.name == name, schedules.c.origin == origin)
        .returning(schedules.c.name)
    ).first()
    if deleted is None:
        return False
    connection.execute(delete(schedule_firings).where(schedule_firings.c.schedule == name))
    return True


def _columns(entry: ScheduleRecord) -> Mapping[str, Any]:
    tags = to_json(entry.tags) if entry.tags else None
    return asdict(entry) | {"payload": to_json(entry.payload), "tags": tags}


def _to_schedule(row: Row[Any]) -> ScheduleRecord:
    columns = {column.name: row._mapping[column.name] for column in schedules.c}
    parsed = {
        "payload": json.loads(columns["payload"]),
        "tags": json.loads(columns["tags"] or "{}"),
    }
    return ScheduleRecord(**columns | parsed)


def _to_firing(row: Row[Any]) -> Firing:
    columns = {column.name: row._mapping[column.name] for column in schedule_firings.c}
    return Firing(**columns | {"outcome": FiringOutcome(columns["outcome"])})
