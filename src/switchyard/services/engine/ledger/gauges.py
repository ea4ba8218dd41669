"""Count open jobs for metrics, and find how old they are."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.engine.ledger.sql.tables import (
    IS_WAITING,
    bulk_operations,
    dead_letters,
    jobs,
    workers,
)
from switchyard.services.engine.records.bulk import ENDED, BulkState
from switchyard.services.engine.records.results import Gauges, WorkerLoad
from switchyard.services.engine.records.states import IN_QUEUES, OPEN, State

IN_FLIGHT = tuple(state for state in OPEN if state not in (State.SCHEDULED, State.JOINING))
"""Open states in which a job waits neither for its time nor for other jobs."""


class GaugeReads(Repository):
    """Reads for metrics. Their cost grows with open jobs and waiting dead letters, not with all
    jobs."""

    @read
    def gauges(self, connection: Connection) -> Gauges:
        """Return all gauges of one moment. Raises LedgerUnavailable."""
        open_jobs = (
            select(jobs.c.lane, jobs.c.state, func.count())
            .where(jobs.c.state.in_(OPEN))
            .group_by(jobs.c.lane, jobs.c.state)
        )
        since = func.min(func.coalesce(jobs.c.queued_at, jobs.c.created_at))
        oldest = (
            select(jobs.c.lane, jobs.c.worker, since)
            .where(jobs.c.state == State.QUEUED)
            .group_by(jobs.c.lane, jobs.c.worker)
        )
        pending = select(func.min(jobs.c.updated_at)).where(jobs.c.state == State.PENDING)
        dead = (
            select(dead_letters.c.lane, dead_letters.c.reason, func.count())
            .where(IS_WAITING)
            .group_by(dead_letters.c.lane, dead_letters.c.reason)
        )
        bulk = (
            select(bulk_operations.c.kind, bulk_operations.c.state, func.count())
            .where(bulk_operations.c.state.not_in(ENDED))
            .group_by(bulk_operations.c.kind, bulk_operations.c.state)
        )
        progress = (
            select(bulk_operations.c.kind, func.min(bulk_operations.c.updated_at))
            .where(bulk_operations.c.state == BulkState.RUNNING)
            .group_by(bulk_operations.c.kind)
        )
        return Gauges(
            open_jobs={(lane, state): n for lane, state, n in connection.execute(open_jobs)},
            oldest={(lane, worker): at for lane, worker, at in connection.execute(oldest)},
            oldest_pending=connection.scalar(pending),
            dead={(lane or "", reason): n for lane, reason, n in connection.execute(dead)},
            bulk={(kind, state): n for kind, state, n in connection.execute(bulk)},
            bulk_progress={row[0]: row[1] for row in connection.execute(progress)},
        )

    @read
    def load(self, connection: Connection, host: str) -> dict[str, WorkerLoad]:
        """Return the load of each kind of worker: its oldest waiting job, and the running jobs of
        its processes on that host. Raises LedgerUnavailable."""
        since = func.min(func.coalesce(jobs.c.queued_at, jobs.c.created_at))
        queued = select(jobs.c.worker, since).where(jobs.c.state == State.QUEUED)
        oldest = {row[0]: row[1] for row in connection.execute(queued.group_by(jobs.c.worker))}
        is_worker = workers.c.worker_id == jobs.c.worker_id
        query = (
            select(jobs.c.worker, workers.c.pid, func.count())
            .select_from(jobs.join(workers, is_worker))
            .where(jobs.c.state == State.RUNNING, workers.c.host == host)
            .group_by(jobs.c.worker, workers.c.pid)
        )
        running: dict[str, dict[int, int]] = {}
        for worker, pid, number in connection.execute(query):
            running.setdefault(worker, {})[pid] = number
        return {
            worker: WorkerLoad(oldest.get(worker), running.get(worker, {}))
            for worker in {*oldest, *running}
        }

    @read
    def queued_since(self, connection: Connection, moment: float) -> dict[tuple[str, str], int]:
        """Return how many jobs the broker holds, in a lane or until their next attempt, unchanged
        since before `moment` (seconds since the epoch), by lane and worker. Raises
        LedgerUnavailable."""
        query = (
            select(jobs.c.lane, jobs.c.worker, func.count())
            .where(jobs.c.state.in_(IN_QUEUES), jobs.c.updated_at < moment)
            .group_by(jobs.c.lane, jobs.c.worker)
        )
        return {(row[0], row[1]): int(row[2]) for row in connection.execute(query)}

    @read
    def waiting_types(self, connection: Connection) -> dict[tuple[str, str], int]:
        """Return how many jobs wait in a queue or for their next attempt, by type and worker.
        Raises LedgerUnavailable."""
        query = (
            select(jobs.c.job_type, jobs.c.worker, func.count())
            .where(jobs.c.state.in_(IN_QUEUES))
            .group_by(jobs.c.job_type, jobs.c.worker)
        )
        return {(row[0], row[1]): int(row[2]) for row in connection.execute(query)}

    @read
    def open_by_source(self, connection: Connection, lane: str, *, sample: int) -> dict[str, int]:
        """Count a lane's jobs in flight by source, among the first `sample` of them. Raises
        LedgerUnavailable."""
        sampled = (
            select(jobs.c.source)
            .where(jobs.c.state.in_(IN_FLIGHT), jobs.c.lane == lane)
            .limit(sample)
        ).subquery()
        query = select(sampled.c.source, func.count()).group_by(sampled.c.source)
        return {row[0]: int(row[1]) for row in connection.execute(query)}
