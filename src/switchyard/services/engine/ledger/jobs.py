"""Change jobs: record, confirm, claim, finish, cancel them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import Connection, insert, literal, select, text, update

from switchyard.services.engine.ledger.sql import job_operations as ops
from switchyard.services.engine.ledger.sql.attempt_ops import Cancel, Claim, Finish
from switchyard.services.engine.ledger.sql.codec import to_json
from switchyard.services.engine.ledger.sql.dead_letter_ops import MarkOverflowed
from switchyard.services.engine.ledger.sql.dialect import keys_condition, keys_parameter
from switchyard.services.engine.ledger.sql.job_content import JobContent
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import attempts, jobs
from switchyard.services.engine.records.errors import IdempotencyConflict
from switchyard.services.engine.records.requests import ClaimRequest, FinishRequest, NewJob
from switchyard.services.engine.records.results import (
    AttemptFinished,
    CancelResult,
    ClaimResult,
    Created,
    Recorded,
)
from switchyard.services.engine.records.states import IN_QUEUES, AttemptOutcome, State

ResultT = TypeVar("ResultT")

OWN_STATEMENT_THRESHOLD = 100
"""So many jobs or more are marked by a statement of their own, and do not wait for a group
commit."""


class JobRepository(Repository):
    """Writes jobs' states: the busiest part of the ledger. Changes of single jobs are committed in
    groups. All methods may be called by any number of coroutines, and raise LedgerUnavailable when
    the database is away: the same call may then be made again."""

    async def record(self, job: NewJob) -> Recorded:
        """Make the job's row, `pending` or (with `run_at`) `scheduled`.

        Raises IdempotencyConflict, and RowRejected for a payload that is not JSON.
        """
        return await self._committer.submit(ops.InsertJob(job))

    async def record_many(self, batch: Sequence[NewJob]) -> list[Recorded | IdempotencyConflict]:
        """Record jobs; return the results in order, with a conflict in its job's place.

        Not all or nothing: when another error is raised, some of them may be recorded, and the
        same call may be made again.
        """
        results = await self._committer.submit_many(await ops.prepare_inserts(batch))
        recorded: list[Recorded | IdempotencyConflict] = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, IdempotencyConflict):
                raise result
            recorded.append(result)
        return recorded

    @write
    def requeue_all(self, connection: Connection, lane: str | None = None) -> int:
        """Make queued jobs pending again, all or those of a lane, after the broker has lost them:
        the scheduler publishes them. Returns the number of jobs. If the broker has a copy after
        all, only one of the two runs."""
        statement = (
            update(jobs)
            .where(jobs.c.state.in_(IN_QUEUES))
            .values(state=State.PENDING, claim_id=None)
        )
        if lane is not None:
            statement = statement.where(jobs.c.lane == lane)
        return connection.execute(statement).rowcount

    @write
    def requeue(self, connection: Connection, job_ids: Sequence[str]) -> int:
        """Make these queued jobs pending again, as `requeue_all` does."""
        dialect = self._database.dialect
        states = ", ".join(f"'{state}'" for state in sorted(IN_QUEUES))
        statement = text(
            f"UPDATE jobs SET state = '{State.PENDING}', claim_id = NULL "
            f"WHERE {keys_condition(dialect, 'id')} AND state IN ({states})"
        ).execution_options(preserve_rowcount=True)
        keys = keys_parameter(dialect, sorted(job_ids))
        return connection.execute(statement, keys).rowcount

    async def mark_queued(self, job_ids: Sequence[str], queued_at: float) -> None:
        """Mark jobs queued that the broker has confirmed; a job that a worker was faster to claim
        stays as it is."""
        if len(job_ids) >= OWN_STATEMENT_THRESHOLD:
            confirmed = [(job_id, queued_at) for job_id in job_ids]
            await self._database.write_each(
                lambda connection: self._writer.mark_queued(connection, confirmed)
            )
        else:
            marks = [ops.MarkQueued(job_id, queued_at) for job_id in job_ids]
            _raise_first_error(await self._committer.submit_many(marks))

    async def pin(self, job_ids: Sequence[str]) -> dict[str, State]:
        """Pin jobs that other requests have recorded: they are not rolled back any more. Returns
        the states of those that exist; a missing one was rolled back before."""
        results = await self._committer.submit_many([ops.PinJob(job_id) for job_id in job_ids])
        states = zip(job_ids, _raise_first_error(results), strict=True)
        return {job_id: state for job_id, state in states if state is not None}

    async def rollback_inserts(self, created: Sequence[Created]) -> list[State | None]:
        """Delete jobs whose publish was refused; `created` is what `record` returned for them.
        Returns, in order, None for a deleted job, and the state of a job that is kept because
        another request relies on it meanwhile; a `pending` one will run."""
        return _raise_first_error(
            await self._committer.submit_many([ops.RollbackInsert(each) for each in created])
        )

    async def mark_overflowed(self, job_id: str, now: float) -> bool:
        """Mark a job overflowed: its lane was full, and it waits in `jobs.dead`; False when it has
        gone on."""
        return await self._committer.submit(MarkOverflowed(job_id, now))

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Ask to run the job of a delivery; makes its row when there is none.

        Raises RowRejected for a payload that is not JSON.
        """
        return await self._committer.submit(
            Claim(request, JobContent.from_message(request.message))
        )

    async def finish(self, request: FinishRequest) -> AttemptFinished | None:
        """End an attempt. None when another worker has taken the job over: nothing is changed then.
        Raises RowRejected for a result that is not JSON."""
        result = None if request.result is None else to_json(request.result)
        return await self._committer.submit(Finish(request, result))

    async def cancel(self, job_id: str, now: float) -> CancelResult:
        """Cancel a job. A running job must be stopped by its worker; the request is recorded, so
        that the job never begins again."""
        return await self._committer.submit(Cancel(job_id, now))

    @read
    def running_claims(self, connection: Connection, worker_id: str) -> list[tuple[str, str]]:
        """Return job id and claim id of all jobs that the worker runs according to the ledger."""
        query = select(jobs.c.id, jobs.c.claim_id).where(
            jobs.c.state == State.RUNNING, jobs.c.worker_id == worker_id
        )
        return [(row.id, row.claim_id or "") for row in connection.execute(query)]

    async def release_all(self, worker_id: str, now: float) -> int:
        """Give back the jobs that a worker runs, when it stops or has lost the broker. This counts
        neither as a crash nor as an attempt, and ends their claims. Returns the number of jobs."""
        return await self._release(worker_id, now, State.QUEUED)

    async def release_unheld_claims(
        self, worker_id: str, claim_ids: Sequence[str], now: float
    ) -> int:
        """Give back claims of a worker under which no job runs, as `release_all` does; the
        scheduler publishes these jobs, as the broker may have no copy of them."""
        return await self._release(worker_id, now, State.PENDING, claim_ids)

    @write
    def _release(
        self,
        connection: Connection,
        worker_id: str,
        now: float,
        state: State,
        claim_ids: Sequence[str] | None = None,
    ) -> int:
        condition = (jobs.c.state == State.RUNNING) & (jobs.c.worker_id == worker_id)
        if claim_ids is not None:
            condition &= jobs.c.claim_id.in_(claim_ids)
        locked = connection.execute(select(jobs.c.id).where(condition).with_for_update()).scalars()
        ids = list(locked)
        if not ids:
            return 0
        connection.execute(
            insert(attempts).from_select(
                [column.name for column in attempts.c if column.name in _RELEASED_COLUMNS],
                select(
                    jobs.c.id,
                    jobs.c.redrives,
                    jobs.c.attempts + 1,
                    jobs.c.worker_id,
                    jobs.c.started_at,
                    literal(now),
                    literal(AttemptOutcome.RELEASED.value),
                ).where(condition),
            )
        )
        connection.execute(
            update(jobs)
            .where(condition)
            .values(state=state, worker_id=None, claim_id=None, updated_at=now)
        )
        return len(ids)


def _raise_first_error(results: Sequence[ResultT | BaseException]) -> list[ResultT]:
    """Return the results if none is an error; else raise the first error."""
    checked: list[ResultT] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        checked.append(result)
    return checked


_RELEASED_COLUMNS = (
    "job_id",
    "redrive",
    "attempt",
    "worker_id",
    "started_at",
    "finished_at",
    "outcome",
)
