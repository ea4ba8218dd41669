"""Store workers, their heartbeats, and the times when their event loops were blocked.

Times are the database's own, so that the clocks of the machines need not agree.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, delete, func, insert, select, text

from switchyard.services.engine.ledger.job_types import TYPES_VERSION
from switchyard.services.engine.ledger.sql.dialect import now_sql
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import attempts, jobs, loop_blocks, workers
from switchyard.services.engine.records.results import (
    NEWER_PAYLOAD,
    UNKNOWN_TYPE,
    LoopBlock,
    UnknownTypeReport,
    WorkerDeath,
    WorkerRecord,
)
from switchyard.services.engine.records.states import AttemptOutcome, State

RECENT_ATTEMPTS = 200_000
"""So many of the latest attempts are searched for those that a worker's death has ended. That takes
some tenths of a second, however many attempts the ledger has."""
BLOCKS_KEPT_FOR = 7 * 24 * 3600.0
"""Seconds for which records of blocked event loops are kept."""
MAX_BLOCKS = 1000


class WorkerRepository(Repository):
    """Stores workers, their heartbeats, and blocked event loops."""

    @write
    def register_worker(
        self,
        connection: Connection,
        worker_id: str,
        *,
        kinds: Sequence[str],
        lanes: Sequence[str],
        host: str,
        pid: int,
        concurrency: int,
        mark: str | None = None,
        job_types: Sequence[str] | None = None,
    ) -> None:
        """Register a worker that has started, with the types that it can run. The same id again
        starts its beat anew."""
        parameters = {
            "worker_id": worker_id,
            "kinds": json.dumps(list(kinds)),
            "lanes": json.dumps(list(lanes)),
            "host": host,
            "pid": pid,
            "concurrency": concurrency,
            "mark": mark,
            "job_types": None if job_types is None else json.dumps(list(job_types)),
        }
        now = now_sql(connection)
        connection.execute(
            text(
                "INSERT INTO workers (worker_id, kinds, lanes, host, pid, concurrency, mark, "
                "job_types, started_at, beat, beat_at) VALUES (:worker_id, :kinds, :lanes, :host, "
                f":pid, :concurrency, :mark, :job_types, {now}, 1, {now}) "
                "ON CONFLICT (worker_id) DO UPDATE SET kinds = excluded.kinds, "
                "lanes = excluded.lanes, host = excluded.host, pid = excluded.pid, "
                "concurrency = excluded.concurrency, mark = excluded.mark, "
                "job_types = excluded.job_types, "
                "started_at = excluded.started_at, "
                "beat = workers.beat + 1, beat_at = excluded.beat_at, stopped_at = NULL, "
                "stopping_at = NULL, memory_bytes = NULL"
            ),
            parameters,
        )

    @write
    def beat(
        self,
        connection: Connection,
        worker_id: str,
        *,
        hot: bool = False,
        memory_bytes: int | None = None,
        is_stopping: bool = False,
    ) -> str | None:
        """Record a heartbeat; `hot` when the worker took a hot job since the last one,
        `is_stopping` once it takes no more jobs. Return the version of the registered job types,
        which changes when another process registers some; None when the worker is not
        registered."""
        now = now_sql(connection)
        changes = f", hot_at = {now}" if hot else ""
        changes += f", stopping_at = COALESCE(stopping_at, {now})" if is_stopping else ""
        beat = text(
            f"UPDATE workers SET beat = beat + 1, beat_at = {now}, memory_bytes = :memory_bytes"
            f"{changes} WHERE worker_id = :worker_id RETURNING ({TYPES_VERSION})"
        )
        parameters = {"worker_id": worker_id, "memory_bytes": memory_bytes}
        types_version: str | None = connection.scalar(beat, parameters)
        return types_version

    @read
    def hot_idle(self, connection: Connection) -> float | None:
        """Return the seconds since a worker last reported a hot job; None where none ever has."""
        query = text(f"SELECT {now_sql(connection)} - MAX(hot_at) FROM workers")
        idle: float | None = connection.scalar(query)
        return idle

    @write
    def mark_stopped(self, connection: Connection, worker_id: str) -> bool:
        """Record that a worker has stopped in good order. False when it is not registered."""
        stop = text(
            f"UPDATE workers SET stopped_at = {now_sql(connection)} WHERE worker_id = :worker_id "
            "RETURNING worker_id"
        )
        return connection.scalar(stop, {"worker_id": worker_id}) is not None

    @read
    def worker_beat(self, connection: Connection, worker_id: str) -> int | None:
        """Return a worker's beat counter; None when it has stopped or was never registered. A
        counter that stands still between two readings means that the worker is dead."""
        query = select(workers.c.beat).where(
            workers.c.worker_id == worker_id, workers.c.stopped_at.is_(None)
        )
        return connection.scalar(query)

    @read
    def list_workers(self, connection: Connection) -> list[WorkerRecord]:
        """List all workers, those that started last first."""
        query = select(workers).order_by(workers.c.started_at.desc(), workers.c.worker_id)
        records = []
        for row in connection.execute(query).mappings():
            types = row["job_types"]
            fields = {
                **row,
                "kinds": tuple(json.loads(row["kinds"])),
                "lanes": tuple(json.loads(row["lanes"])),
                "job_types": None if types is None else frozenset(json.loads(types)),
            }
            records.append(WorkerRecord(**fields))
        return records

    @read
    def running_at_deaths(
        self, connection: Connection, worker_ids: Sequence[str]
    ) -> list[WorkerDeath]:
        """Return the types of the jobs that ran in these dead workers when they died: jobs that
        were not taken over yet, and those taken over in the latest RECENT_ATTEMPTS attempts."""
        newest = select(func.max(attempts.c.id) - RECENT_ATTEMPTS).scalar_subquery()
        taken_over = (
            select(attempts.c.worker_id, jobs.c.job_type)
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(
                attempts.c.id > newest,
                attempts.c.outcome == AttemptOutcome.CRASHED,
                attempts.c.worker_id.in_(worker_ids),
            )
        )
        running = select(jobs.c.worker_id, jobs.c.job_type).where(
            jobs.c.state == State.RUNNING, jobs.c.worker_id.in_(worker_ids)
        )
        rows = connection.execute(taken_over.union(running))
        return [WorkerDeath(*row) for row in rows]

    @write
    def record_loop_block(self, connection: Connection, block: LoopBlock) -> None:
        """Record a blocked event loop, kept for BLOCKS_KEPT_FOR seconds; the same id again updates
        its duration."""
        old = delete(loop_blocks).where(
            (loop_blocks.c.id == block.id)
            | (loop_blocks.c.began_at < block.began_at - BLOCKS_KEPT_FOR)
        )
        values = {**asdict(block), "ended": int(block.ended)}
        connection.execute(old)
        connection.execute(insert(loop_blocks).values(values))

    @read
    def loop_blocks(self, connection: Connection, since: float) -> list[LoopBlock]:
        """List blocked event loops since a time, the longest first; MAX_BLOCKS at most."""
        query = (
            select(loop_blocks)
            .where(loop_blocks.c.began_at >= since)
            .order_by(loop_blocks.c.seconds.desc(), loop_blocks.c.id)
            .limit(MAX_BLOCKS)
        )
        rows = connection.execute(query).mappings()
        return [LoopBlock(**{**row, "ended": bool(row["ended"])}) for row in rows]

    @read
    def find_unknown_types(self, connection: Connection) -> list[UnknownTypeReport]:
        """Report job types that workers got jobs of, do not know, and have sent on."""
        return self._sent_on(connection, UNKNOWN_TYPE)

    @read
    def find_outdated_types(self, connection: Connection) -> list[UnknownTypeReport]:
        """Report job types of which workers got newer versions of payloads than they know, and have
        sent the jobs on."""
        return self._sent_on(connection, NEWER_PAYLOAD)

    def _sent_on(self, connection: Connection, error_type: str) -> list[UnknownTypeReport]:
        query = (
            select(jobs.c.worker_id, jobs.c.job_type, func.count())
            .where(jobs.c.state == State.RETRYING, jobs.c.error_type == error_type)
            .group_by(jobs.c.worker_id, jobs.c.job_type)
            .order_by(jobs.c.worker_id, jobs.c.job_type)
        )
        return [UnknownTypeReport(*row) for row in connection.execute(query)]
