"""Read joins and the jobs that they wait for, and seal one.

Joins are counted, and waiting jobs released, in `services.engine.ledger.sql.join_writer`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select

from switchyard.services.engine.ledger.sql import job_operations as ops
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import jobs, joins
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.joins import JoinedJob, JoinRecord, WhenDead
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.results import Recorded
from switchyard.services.engine.records.states import State

_JOB_COLUMNS = (
    jobs.c.id,
    jobs.c.job_type,
    jobs.c.state,
    jobs.c.parent_id,
    jobs.c.created_at,
    jobs.c.payload,
    jobs.c.result,
    jobs.c.error_type,
    jobs.c.error_message,
    jobs.c.reason,
)


class JoinRepository(Repository):
    """Records, seals and reads joins. All methods raise LedgerUnavailable when the database is
    away."""

    async def record_joined(self, batch: Sequence[NewJob]) -> list[Recorded]:
        """Record jobs and the one that waits for them, all or none: otherwise, after a crash, some
        could end before the others are recorded. Raises RowRejected."""
        inserts = await ops.prepare_inserts(batch)
        results = await self._database.write(
            lambda connection: self._writer.run(connection, inserts)
        )
        recorded: list[Recorded] = []
        for result in results:
            if isinstance(result, LedgerError):
                raise result
            recorded.append(result)
        return recorded

    @write
    def seal(
        self, connection: Connection, join_id: str, now: float, *, when_dead: WhenDead | None = None
    ) -> bool | None:
        """Seal a join whose jobs are all recorded: no more are added. `when_dead` replaces the
        join's own. Return whether the waiting job is `pending` now; None where no such join
        waits."""
        settle = self._writer.joins.settle
        return settle(connection, join_id, now, when_dead=when_dead)

    @read
    def join(self, connection: Connection, join_id: str) -> JoinRecord | None:
        """Return a join by the id of the job that waits."""
        row = connection.execute(select(joins).where(joins.c.id == join_id)).one_or_none()
        return None if row is None else _record(row)

    @read
    def stuck_joins(self, connection: Connection, limit: int) -> list[JoinRecord]:
        """Return the joins that wait only for dead jobs: all others have ended."""
        waits = select(jobs.c.id).where(jobs.c.id == joins.c.id, jobs.c.state == State.JOINING)
        query = (
            select(joins)
            .where(
                joins.c.fulfilled_at.is_(None),
                joins.c.open_jobs == 0,
                joins.c.dead > 0,
                joins.c.held == 0,
                waits.exists(),
            )
            .order_by(joins.c.made_at, joins.c.id)
            .limit(limit)
        )
        return [_record(row) for row in connection.execute(query)]

    @read
    def joined_jobs(
        self,
        connection: Connection,
        join_id: str,
        *,
        after: tuple[float, str] | None = None,
        state: str | None = None,
        limit: int,
    ) -> tuple[list[JoinedJob], tuple[float, str] | None]:
        """Return a page of a join's jobs, in the order in which they were made, from behind the
        position `after`, and the position for the next page; None after the last."""
        query = select(*_JOB_COLUMNS).where(jobs.c.join_id == join_id)
        if state is not None:
            query = query.where(jobs.c.state == state)
        if after is not None:
            last_created, job_id = after
            query = query.where(
                or_(
                    jobs.c.created_at > last_created,
                    and_(jobs.c.created_at == last_created, jobs.c.id > job_id),
                )
            )
        query = query.order_by(jobs.c.created_at, jobs.c.id).limit(limit)
        rows = connection.execute(query).all()
        next_position = (rows[-1].created_at, rows[-1].id) if len(rows) == limit else None
        return [_joined_job(row) for row in rows], next_position


def _record(row: Row[Any]) -> JoinRecord:
    return JoinRecord(
        id=row.id,
        when_dead=row.when_dead,
        held=bool(row.held),
        total=row.total,
        open=row.open_jobs,
        dead=row.dead,
        cancelled=row.cancelled,
        made_at=row.made_at,
        fulfilled_at=row.fulfilled_at,
    )


def _joined_job(row: Any) -> JoinedJob:
    return JoinedJob(
        job_id=row.id,
        job_type=row.job_type,
        state=State(row.state),
        parent_id=row.parent_id,
        payload=json.loads(row.payload),
        result=None if row.result is None else json.loads(row.result),
        error_type=row.error_type,
        error_message=row.error_message,
        reason=row.reason,
    )
