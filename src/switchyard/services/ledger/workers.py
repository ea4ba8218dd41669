"""Workers and their beats; leases, of which one process at a time holds each.

Times are the database's own, so that the clocks of the machines need not agree.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, func, select, text

from switchyard.services.ledger.sql.base import LedgerBase
from switchyard.services.ledger.sql.dialect import clock
from switchyard.services.ledger.sql.tables import jobs, workers
from switchyard.services.records.results import UNKNOWN_TYPE, Lacking, WorkerRecord
from switchyard.services.records.states import State


class Workers(LedgerBase):
    """Who works, and who is alive. All raise LedgerUnavailable when the database is away."""

    async def register_worker(
        self,
        worker_id: str,
        *,
        kinds: Sequence[str],
        lanes: Sequence[str],
        host: str,
        pid: int,
        concurrency: int,
    ) -> None:
        """A worker has started. The same id again starts its beat anew."""
        parameters = {
            "worker_id": worker_id,
            "kinds": json.dumps(list(kinds)),
            "lanes": json.dumps(list(lanes)),
            "host": host,
            "pid": pid,
            "concurrency": concurrency,
        }

        def work(connection: Connection) -> None:
            now = clock(connection)
            connection.execute(
                text(
                    "INSERT INTO workers (worker_id, kinds, lanes, host, pid, concurrency, "
                    "started_at, beat, beat_at) VALUES (:worker_id, :kinds, :lanes, :host, "
                    f":pid, :concurrency, {now}, 1, {now}) "
                    "ON CONFLICT (worker_id) DO UPDATE SET kinds = excluded.kinds, "
                    "lanes = excluded.lanes, host = excluded.host, pid = excluded.pid, "
                    "concurrency = excluded.concurrency, started_at = excluded.started_at, "
                    "beat = workers.beat + 1, beat_at = excluded.beat_at, stopped_at = NULL"
                ),
                parameters,
            )

        await self._database.write(work)

    async def beat(self, worker_id: str, *, hot: bool = False) -> bool:
        """A sign of life; `hot` when the worker took a hot job since the last one. False when the
        worker is not registered."""
        hot_at = ", hot_at = {now}" if hot else ""
        return await self._touch(
            f"UPDATE workers SET beat = beat + 1, beat_at = {{now}}{hot_at} "
            "WHERE worker_id = :worker_id",
            worker_id,
        )

    async def hot_idle(self) -> float | None:
        """Seconds since a worker that took a hot job has said so; None where none ever has."""

        def work(connection: Connection) -> float | None:
            query = text(f"SELECT {clock(connection)} - MAX(hot_at) FROM workers")
            idle: float | None = connection.scalar(query)
            return idle

        return await self._database.read(work)

    async def stopped(self, worker_id: str) -> bool:
        """The worker has stopped in good order. False when it is not registered."""
        return await self._touch(
            "UPDATE workers SET stopped_at = {now} WHERE worker_id = :worker_id", worker_id
        )

    async def worker_beat(self, worker_id: str) -> int | None:
        """The worker's beat counter; None when it has stopped or was never registered. A
        counter that stands still between two readings means that the worker is dead."""
        query = select(workers.c.beat).where(
            workers.c.worker_id == worker_id, workers.c.stopped_at.is_(None)
        )
        return await self._database.read(lambda connection: connection.scalar(query))

    async def list_workers(self) -> list[WorkerRecord]:
        """All workers, those that started last first."""

        def work(connection: Connection) -> list[WorkerRecord]:
            query = select(workers).order_by(workers.c.started_at.desc(), workers.c.worker_id)
            found = []
            for row in connection.execute(query).mappings():
                fields = {**row, "kinds": tuple(json.loads(row["kinds"]))}
                found.append(WorkerRecord(**{**fields, "lanes": tuple(json.loads(row["lanes"]))}))
            return found

        return await self._database.read(work)

    async def lacking(self) -> list[Lacking]:
        """Job types that workers got jobs of, do not know, and have sent on."""
        query = (
            select(jobs.c.worker_id, jobs.c.job_type, func.count())
            .where(jobs.c.state == State.RETRYING, jobs.c.error_type == UNKNOWN_TYPE)
            .group_by(jobs.c.worker_id, jobs.c.job_type)
            .order_by(jobs.c.worker_id, jobs.c.job_type)
        )

        def work(connection: Connection) -> list[Lacking]:
            return [Lacking(*row) for row in connection.execute(query)]

        return await self._database.read(work)

    async def _touch(self, statement: str, worker_id: str) -> bool:
        def work(connection: Connection) -> bool:
            touched = connection.execute(
                text(statement.format(now=clock(connection)) + " RETURNING worker_id"),
                {"worker_id": worker_id},
            )
            return touched.first() is not None

        return await self._database.write(work)
