"""Count the jobs of bulk operations."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection, func, select

from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.engine.ledger.sql.tables import bulk_operations, jobs
from switchyard.services.engine.records.bulk import BulkDeaths
from switchyard.services.engine.records.states import OPEN, State


class BulkJobRepository(Repository):
    """Counts and lists the jobs of bulk operations. All methods raise LedgerUnavailable when the
    database is away."""

    @read
    def count_bulk_jobs(
        self, connection: Connection, operation_id: str
    ) -> tuple[dict[State, int], dict[State, int]]:
        """Count an operation's jobs by state: those that it published, and those that followed from
        them. Jobs that were removed for their age count with their last state. Reads every job: 1
        to 2 s for a million."""
        is_own = jobs.c.parent_id.is_(None)
        query = (
            select(is_own.label("own"), jobs.c.state, func.count())
            .where(jobs.c.operation_id == operation_id)
            .group_by(is_own, jobs.c.state)
        )
        own: dict[State, int] = {}
        followers: dict[State, int] = {}
        for is_bulk_job, state, number in connection.execute(query):
            (own if is_bulk_job else followers)[State(state)] = number
        counts = select(bulk_operations.c.counts).where(bulk_operations.c.id == operation_id)
        pruned = json.loads(connection.scalar(counts) or "{}").get("pruned", {})
        for whose, numbers in (("own", own), ("followers", followers)):
            for name, number in pruned.get(whose, {}).items():
                numbers[State(name)] = numbers.get(State(name), 0) + number
        return own, followers

    @read
    def count_open_bulk_jobs(
        self, connection: Connection, operation_id: str, *, at_most: int
    ) -> int:
        """Count an operation's unfinished jobs, follow-up jobs included, up to `at_most`. The time
        depends on that number alone, not on the operation's size."""
        open_jobs = (
            select(jobs.c.state)
            .where(jobs.c.operation_id == operation_id, jobs.c.state.in_(OPEN))
            .limit(at_most)
        )
        query = select(func.count()).select_from(open_jobs.subquery())
        return connection.scalar(query) or 0

    @read
    def count_queued_bulk_jobs(
        self, connection: Connection, operation_id: str, lane: str, worker: str, *, at_most: int
    ) -> int:
        """Count an operation's jobs that wait in one queue, up to `at_most`."""
        waiting = [State.PENDING.value, State.PAUSED.value, State.QUEUED.value]
        queued_jobs = (
            select(jobs.c.state)
            .where(
                jobs.c.operation_id == operation_id,
                jobs.c.state.in_(waiting),
                jobs.c.lane == lane,
                jobs.c.worker == worker,
            )
            .limit(at_most)
        )
        query = select(func.count()).select_from(queued_jobs.subquery())
        return connection.scalar(query) or 0

    @read
    def bulk_jobs(
        self, connection: Connection, operation_id: str, states: Collection[State], *, limit: int
    ) -> list[str]:
        """Return ids of an operation's jobs in one of the states."""
        query = (
            select(jobs.c.id)
            .where(
                jobs.c.operation_id == operation_id,
                jobs.c.state.in_([state.value for state in states]),
            )
            .limit(limit)
        )
        return list(connection.execute(query).scalars())

    @read
    def bulk_deaths(
        self, connection: Connection, operation_id: str, *, limit: int = 20
    ) -> list[BulkDeaths]:
        """Return the dead jobs of an operation by cause, the most frequent first."""
        number = func.count()
        query = (
            select(
                jobs.c.job_type,
                jobs.c.reason,
                jobs.c.error_type,
                number,
                func.min(jobs.c.id),
                func.min(jobs.c.error_message),
            )
            .where(jobs.c.operation_id == operation_id, jobs.c.state == State.DEAD)
            .group_by(jobs.c.job_type, jobs.c.reason, jobs.c.error_type)
            .order_by(number.desc(), jobs.c.job_type)
            .limit(limit)
        )
        return [BulkDeaths(*row) for row in connection.execute(query)]
