"""Pauses, and the jobs that they hold. All times are by the database's clock.

A pause takes effect with its commit: no later transaction gives a claim that it forbids
(`services.engine.ledger.sql.attempt_ops`), and none makes a job `pending` that it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from switchyard.broker.lanes import LANES
from switchyard.services.common.errors import ConflictError
from switchyard.services.engine.ledger.job_reads import to_record
from switchyard.services.engine.ledger.sql.codec import clean
from switchyard.services.engine.ledger.sql.dialect import among, db_now, insert_into
from switchyard.services.engine.ledger.sql.pausing import load_pauses, to_pause
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import jobs, pauses
from switchyard.services.engine.records.pauses import (
    MAX_PAUSES,
    ActivePauses,
    NewPause,
    PauseRecord,
    PauseScope,
)
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import WAITING, State

HISTORY_SECONDS = 90 * 24 * 3600.0
"""Seconds for which an ended pause is listed."""
MAX_COUNTED = 10_000
"""Jobs of one state that are counted for a pause, at most."""
MAX_HELD_COUNTED = 100_000
"""Paused jobs that are looked at to count those of each pause."""
_TARGET_COLUMNS: Mapping[PauseScope, ColumnElement[str]] = {
    PauseScope.LANE: jobs.c.lane,
    PauseScope.TYPE: jobs.c.job_type,
    PauseScope.SOURCE: jobs.c.source,
    PauseScope.QUEUE: jobs.c.lane + "." + jobs.c.worker,
}


_NOT_ENDED = pauses.c.ended_at.is_(None)


class TooManyPauses(ConflictError):
    """Too many pauses are in force: another one would slow down every claim."""


class PauseRepository(Repository):
    """Stores pauses, and holds and releases jobs by them. All methods raise LedgerUnavailable when
    the database is away."""

    @write
    def pause(self, connection: Connection, new_pause: NewPause) -> PauseRecord:
        """Put a pause in force; one of the same target is replaced. Raises TooManyPauses."""
        now = db_now(connection)
        _end_expired(connection, now)
        columns = {
            "scope": new_pause.scope.value,
            "target": clean(new_pause.target),
            "reason": clean(new_pause.reason),
            "created_by": clean(new_pause.created_by),
            "created_at": now,
            "ends_at": None if new_pause.seconds is None else now + new_pause.seconds,
        }
        others = [
            each
            for each in load_pauses(connection)
            if (each.scope, each.target) != (columns["scope"], columns["target"])
        ]
        if len(others) >= MAX_PAUSES:
            raise TooManyPauses(
                f"{MAX_PAUSES} pauses are in force: end some (`jobctl pauses`, `jobctl resume`), "
                "or pause a lane instead of many types or sources"
            )
        row = connection.execute(
            insert_into(connection, pauses)
            .values(id=f"pause-{uuid4().hex[:12]}", **columns)
            .on_conflict_do_update(
                index_elements=["scope", "target"], index_where=_NOT_ENDED, set_=columns
            )
            .returning(pauses)
        ).one()
        connection.execute(delete(pauses).where(pauses.c.ended_at < now - HISTORY_SECONDS))
        return to_pause(row)

    @write
    def resume(self, connection: Connection, pause_id: str, by: str) -> PauseRecord | None:
        """End a pause; None where no such pause is in force."""
        now = db_now(connection)
        _end_expired(connection, now)
        return _end_pause(connection, pauses.c.id == pause_id, now, by)

    @write
    def resume_target(
        self, connection: Connection, scope: PauseScope, target: str, by: str
    ) -> PauseRecord | None:
        """End the pause of a lane, type, source or queue; None where it is not paused."""
        now = db_now(connection)
        _end_expired(connection, now)
        condition = (pauses.c.scope == scope) & (pauses.c.target == clean(target))
        return _end_pause(connection, condition, now, by)

    @read
    def active(self, connection: Connection) -> ActivePauses:
        """Return the pauses that are in force, the oldest first."""
        return ActivePauses.from_records(load_pauses(connection))

    @read
    def held_by_pause(self, connection: Connection) -> list[tuple[PauseRecord, int]]:
        """Return the pauses in force, the oldest first, with the number of jobs that each holds,
        among MAX_HELD_COUNTED paused jobs at most."""
        active = load_pauses(connection)
        columns = (jobs.c.lane, jobs.c.worker, jobs.c.job_type, jobs.c.source)
        sample = select(*columns).where(jobs.c.state == State.PAUSED).limit(MAX_HELD_COUNTED)
        kinds = sample.subquery()
        query = select(kinds, func.count()).group_by(*kinds.c)
        held: Counter[str] = Counter()
        for lane, worker, job_type, source, number in connection.execute(query):
            for pause in active:
                if ActivePauses.from_records([pause]).pause_of(lane, worker, job_type, source):
                    held[pause.id] += number
        return [(pause, held[pause.id]) for pause in active]

    @read
    def history(self, connection: Connection, limit: int) -> list[PauseRecord]:
        """Return the pauses that have ended, the latest first."""
        ended = func.coalesce(pauses.c.ended_at, pauses.c.ends_at)
        query = select(pauses).where(ended <= db_now(connection))
        rows = connection.execute(query.order_by(ended.desc(), pauses.c.id).limit(limit))
        return [to_pause(row) for row in rows]

    @read
    def counts(self, connection: Connection, scope: PauseScope, target: str) -> dict[State, int]:
        """Count the unfinished jobs of a lane, type, source or queue by state, up to MAX_COUNTED of
        each; scheduled ones are left out."""
        counts: dict[State, int] = {}
        for state in sorted((WAITING | {State.RUNNING}) - {State.SCHEDULED}):
            sample = (
                select(jobs.c.id)
                .where(jobs.c.state == state, _TARGET_COLUMNS[scope] == clean(target))
                .limit(MAX_COUNTED)
            )
            number = connection.scalar(select(func.count()).select_from(sample.subquery())) or 0
            if number:
                counts[state] = number
        return counts

    @read
    def held(self, connection: Connection, job_ids: Sequence[str]) -> set[str]:
        """Return the ids of those of these jobs that a pause holds; running and ended ones are left
        out."""
        if not job_ids:
            return set()
        query = select(jobs.c.id).where(
            among(connection, jobs.c.id, job_ids),
            jobs.c.state.in_(sorted(WAITING)),
            _is_paused(connection),
        )
        return set(connection.scalars(query))

    async def hold(self, job_ids: Sequence[str], now: float) -> set[str]:
        """Mark those of these jobs `paused` that a pause holds, and return their ids: they must not
        be published. Only for jobs that the broker does not have, or has given up."""
        if not job_ids or not (await self.active()).pauses:
            return set()
        held = await self._hold(job_ids, now)
        if held:
            await self._database.sync()
        return held

    @write
    def _hold(self, connection: Connection, job_ids: Sequence[str], now: float) -> set[str]:
        held = update(jobs).where(
            among(connection, jobs.c.id, sorted(job_ids)),
            jobs.c.state.in_(sorted(WAITING)),
            _is_paused(connection),
        )
        values = {"state": State.PAUSED, "updated_at": now}
        return set(connection.scalars(held.values(**values).returning(jobs.c.id)))

    @write
    def release(self, connection: Connection, limit: int) -> list[JobRecord]:
        """Make paused jobs `pending` that no pause holds any more, and return them: the most urgent
        lane first, then the oldest job."""
        job_ids: list[str] = []
        is_free = ~_is_paused(connection)
        for lane in LANES:  # one by one, to use the index: a million other jobs may still be held
            query = (
                select(jobs.c.id)
                .where(jobs.c.state == State.PAUSED, jobs.c.lane == lane.name, is_free)
                .order_by(jobs.c.created_at)
                .limit(limit - len(job_ids))
            )
            job_ids += connection.scalars(query)
            if len(job_ids) >= limit:
                break
        released = update(jobs).where(
            among(connection, jobs.c.id, sorted(job_ids)), jobs.c.state == State.PAUSED
        )
        rows = connection.execute(
            released.values(state=State.PENDING, claim_id=None).returning(jobs)
        )
        records = {row.id: to_record(row) for row in rows}
        return [records[each] for each in job_ids if each in records]


def _is_paused(connection: Connection) -> ColumnElement[bool]:
    """Return the condition that a pause holds the job of a row."""
    now = db_now(connection)
    is_target = or_(
        *(
            and_(pauses.c.scope == scope.value, pauses.c.target == column)
            for scope, column in _TARGET_COLUMNS.items()
        )
    )
    in_force = _NOT_ENDED & (pauses.c.ends_at.is_(None) | (pauses.c.ends_at > now))
    return exists().where(in_force, is_target)


def _end_expired(connection: Connection, now: float) -> None:
    """Mark pauses as ended whose time is over."""
    is_expired = _NOT_ENDED & (pauses.c.ends_at <= now)
    connection.execute(update(pauses).where(is_expired).values(ended_at=pauses.c.ends_at))


def _end_pause(
    connection: Connection, condition: ColumnElement[bool], now: float, by: str
) -> PauseRecord | None:
    ended = (
        update(pauses)
        .where(condition, _NOT_ENDED)
        .values(ended_at=now, ended_by=clean(by))
        .returning(pauses)
    )
    row: Row[Any] | None = connection.execute(ended).first()
    return None if row is None else to_pause(row)
