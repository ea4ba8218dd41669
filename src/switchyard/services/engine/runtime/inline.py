"""The pipeline without a broker: jobs run in the process that was asked for them.

For one process with a ledger of its own, and for what a process asks language models itself
(`services/llm/direct_requests.py`). The way of a job is the workers': claim, attempt, record;
the handlers, the stages and the ledger's rules are the same. What the broker would do is done in
memory: the next jobs wait in a list, a retry waits in its coroutine.
Nothing is lost with the process: `finish` takes up what the ledger says is not done.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count

import structlog

from switchyard.broker.closeable import AsyncCloseable
from switchyard.broker.dead.certificate import Reason
from switchyard.services.common.instance import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext, ProcessResources, Usage
from switchyard.services.engine.jobs.limits import LimitRefused, needs_of
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.retry import Decision, Delayed, Died, Failure
from switchyard.services.engine.ledger import Ledger, to_message
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.metric_names import Metric, Samples
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest, prepare
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.publishing.recorded import record_following
from switchyard.services.engine.records.errors import (
    LedgerClosed,
    LedgerError,
    LedgerUnavailable,
    RowRejected,
    SchemaOutdated,
)
from switchyard.services.engine.records.limits import PermitRefused, PermitRequest
from switchyard.services.engine.records.requests import ClaimRequest, NewJob
from switchyard.services.engine.records.results import Claimed, Existing, HeldBy, JobRecord
from switchyard.services.engine.records.states import FINISHED, State
from switchyard.services.engine.runtime.attempt import Attempt, attempt
from switchyard.services.engine.runtime.attempt_metrics import AttemptMetrics
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.engine.runtime.outcomes import (
    CancelledWhileRunning,
    Ending,
    finish_request,
    inherit_join,
    invalid_outcome,
    joined_died,
    unwritable,
)
from switchyard.services.engine.runtime.progress_writer import ProgressWriter
from switchyard.services.engine.runtime.running_job import is_from_outside

RETRY_TIMEOUT = 60.0
"""Seconds that one job may wait for its retries in all: somebody waits for the answer."""

LIMIT_POLL_INTERVAL = 0.5
"""Seconds between looks for room in a job's limits."""


class InlineRunner(AsyncCloseable):
    """Runs jobs, each with those that follow from it. Use it as a context manager.

    It serves HTTP: what it is asked to run comes from outside.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        *,
        patience: float = RETRY_TIMEOUT,
        slots: int | None = None,
        shared_ledger: bool = False,
        hear: Callable[[str, str, int], None] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """With `shared_ledger` other processes run jobs of the same ledger: theirs are left alone,
        and what is under way here at the end is cancelled, as no process takes it up.
        `slots`: how many pipelines run at once. `hear` gets what jobs write as they write it: the
        job's id, a piece, and how many characters were before it. `metrics` show what it runs."""
        self._hear = hear
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._patience = patience
        self._executor = Executor(min(settings.worker_concurrency, os.cpu_count() or 1))
        self._shared = ProcessResources()
        self._slots = asyncio.Semaphore(slots or settings.worker_concurrency)
        self._shared_ledger = shared_ledger
        self.worker_id = f"inline-{new_instance_id()}"
        self._claims = count(1)
        self._held: dict[str, str] = {}
        """Claims of the attempts under way, by job id."""
        self._notes = ProgressWriter(ledger)
        self._runs: dict[str, asyncio.Task[None]] = {}
        """Pipelines under way, by the id of their first job."""
        self._log = structlog.get_logger("inline")
        self._attempts: Counter[str] = Counter()
        """Under way, by kind of worker."""
        self._meter: AttemptMetrics | None = None
        if metrics is not None:
            kinds = {each.worker for each in registry}
            self._meter = AttemptMetrics(metrics, registry, kinds)
            metrics.show(self._metrics)
            metrics.show(self._shared.shown)

    async def close(self) -> None:
        """Stop what runs; `finish` takes it up again in the next process, unless others share the
        ledger."""
        left = dict(self._runs)
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        if self._shared_ledger:
            await self._cancel_waiting(list(left))
        await self._executor.close()
        await self._shared.close()

    @property
    def under_way(self) -> int:
        """Pipelines that have not ended."""
        return len(self._runs)

    async def wait(self, job_id: str, timeout: float) -> None:
        """Return when the pipeline is not under way here any more, or `timeout` seconds are over.
        Raises LedgerUnavailable."""
        task = self._runs.get(job_id)
        if task is None:
            return
        done, _ = await asyncio.wait([task], timeout=timeout)
        if done and not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def publish(self, request: JobRequest) -> Published:
        """Record a job and start it; it runs on when the caller has gone.

        Raises InvalidJob (also for a delay: nobody would wait for its time), UnknownJobType,
        InvalidPayload, IdempotencyConflict and LedgerUnavailable.
        """
        if request.delay:
            raise InvalidJob("a delay needs a broker: set JOBS_AMQP_URL")
        if request.notify_url is not None:
            text = "notify_url needs a broker: set JOBS_AMQP_URL"
            raise InvalidJob(text, at="notify_url")
        job = prepare(self._registry, request, remote=True).shifted(self._ledger.clock.offset)
        recorded = await self._ledger.jobs.record(job)
        if isinstance(recorded, Existing):
            return Published(recorded.job_id, job.routing_key, recorded.state, duplicate=True)
        self._start(job.message.job_id, [job])
        return Published(job.message.job_id, job.routing_key, State.QUEUED)

    async def finish(self, job_id: str) -> None:
        """Return when the job and all that follow from it have ended.

        Starts again what an earlier process left undone. Raises LedgerUnavailable.
        """
        if job_id not in self._runs:
            left = [
                job.id
                for job in await self._ledger.job_reads.pipeline(job_id)
                if _is_open(job.state)
            ]
            records = [await self._ledger.job_reads.get(each) for each in left]
            jobs = [_job_of(record) for record in records if record is not None]
            if jobs and job_id not in self._runs:  # another caller may have been faster
                self._start(job_id, jobs)
        if task := self._runs.get(job_id):
            await asyncio.shield(task)

    def _start(self, job_id: str, jobs: list[NewJob]) -> None:
        task = asyncio.create_task(self._run_all(deque(jobs)))
        self._runs[job_id] = task
        task.add_done_callback(lambda done: self._on_end(job_id, done))

    def _on_end(self, job_id: str, task: asyncio.Task[None]) -> None:
        del self._runs[job_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its callers are told; but there may be none any more.
            self._log.error("pipeline interrupted", job_id=job_id, error=str(error))

    async def _run_all(self, jobs: deque[NewJob]) -> None:
        async with self._slots:
            while jobs:
                job = jobs.popleft()
                try:
                    jobs.extend(await self._run_to_end(job))
                except (LedgerUnavailable, LedgerClosed, SchemaOutdated):
                    raise
                except BaseException as error:
                    if is_from_outside(error):
                        raise
                    jobs.extend(await self._give_up(job, error))

    async def _give_up(self, job: NewJob, error: BaseException) -> list[NewJob]:
        """The last resort, where the end of an attempt could not be written: the job is dead. Gives
        the jobs that had waited for it."""
        claim_id = self._held.get(job.message.job_id)
        if claim_id is None:
            claim_id, claim = await self._claim(job)
            if claim is None:
                return []
        return await self._record_end(job, claim_id, unwritable(job.message, None, error))

    async def _run_to_end(self, job: NewJob) -> list[NewJob]:
        """Run a job, and again as its retries want it; gives the jobs that follow."""
        waited = 0.0
        while True:
            async with self._wait_for_permit(job) as usage:
                claim_id, claim = await self._claim(job)
                if claim is None:
                    return []
                started_at = self._ledger.clock.time()
                self._begin(job, started_at)
                try:
                    decision, following = await self._decide(job, claim_id, claim, usage)
                except asyncio.CancelledError:
                    if self._shared_ledger:
                        await self._record_end(job, claim_id, CancelledWhileRunning())
                    raise
                finally:
                    self._attempts[job.worker] -= 1
            if isinstance(decision, Delayed):
                pause = min(decision.seconds, self._time_left(job))
                waited += pause
                if waited > self._patience:
                    decision = Died(Reason.EXHAUSTED, decision.attempts, decision.failure)
            try:
                if following:
                    offset = self._ledger.clock.offset
                    following = [each.shifted(offset) for each in following]
                    await record_following(self._ledger, following)
            except RowRejected as error:
                decision, following = invalid_outcome(job.message, error), []
            due = await self._record_end(job, claim_id, decision)
            if self._meter is not None:
                seconds = max(0.0, self._ledger.clock.time() - started_at)
                self._meter.ended(job.message, job.lane, seconds, decision)
            if not isinstance(decision, Delayed):
                return [*(each for each in following if each.joins is None), *due]
            await asyncio.sleep(pause)
            job = replace(job, message=job.message.with_metadata(attempts=decision.attempts))

    def _begin(self, job: NewJob, started_at: float) -> None:
        self._attempts[job.worker] += 1
        if self._meter is not None:
            self._meter.started(job.message, job.lane, started_at)

    def _metrics(self) -> Iterable[tuple[Metric, Samples]]:
        return [(names.LLM_CONCURRENCY, {(self.worker_id,): float(self._attempts[names.LLM])})]

    @asynccontextmanager
    async def _wait_for_permit(self, job: NewJob) -> AsyncIterator[Usage]:
        """Room in the job's limits, waited for in place: there is no queue to go back to."""
        usage = Usage()
        message = job.message
        job_type = self._registry.get(message.job_type)
        try:
            payload = job_type.validate(message.payload)
            needs = needs_of(job_type.limits, payload, self._settings.limits)
        except LimitRefused:
            needs = []  # the attempt says so
        if not needs:
            yield usage
            return
        request = PermitRequest(
            hold=f"{self.worker_id}/{next(self._claims)}",
            holder=self.worker_id,
            needs=needs,
            job_id=message.job_id,
            redrives=message.metadata.redrives,
            attempts=message.metadata.attempts,
            queue="",
            body=None,
            levels=(LIMIT_POLL_INTERVAL,),
            expires_at=float("inf"),
            life=job_type.timeout + RETRY_TIMEOUT,
        )
        answer = await self._ledger.limits.take_permits(request)
        while isinstance(answer, PermitRefused):
            left = self._time_left(job)
            if left <= 0:
                yield usage  # it is not run any more
                return
            await asyncio.sleep(min(answer.seconds, left))
            answer = await self._ledger.limits.take_permits(request)
        try:
            yield usage
        finally:
            await self._ledger.limits.return_permits(request.hold, needs, usage.tokens)

    async def _claim(self, job: NewJob) -> tuple[str, Claimed | None]:
        """The claim, and what the ledger says to it; None when the job is not to run."""
        request = ClaimRequest(
            message=job.message,
            lane=job.lane,
            worker=job.worker,
            routing_key=job.routing_key,
            worker_id=self.worker_id,
            claim_id=f"{self.worker_id}/{next(self._claims)}",
            now=self._ledger.clock.time(),
        )
        claim = await self._ledger.jobs.claim(request)
        if isinstance(claim, HeldBy) and not self._shared_ledger:
            # Of a process that is gone: in this one, a job has one run at a time.
            request = replace(request, takeover_from=claim.claim_id, now=self._ledger.clock.time())
            claim = await self._ledger.jobs.claim(request)
        if not isinstance(claim, Claimed):
            return request.claim_id, None
        self._held[job.message.job_id] = request.claim_id
        return request.claim_id, claim

    async def _decide(
        self, job: NewJob, claim_id: str, claim: Claimed, usage: Usage
    ) -> tuple[Decision, list[NewJob]]:
        """How the attempt ends, and what follows."""
        join = await self._ledger.joins.join(job.message.job_id) if claim.joins else None
        if (died := joined_died(job.message, join)) is not None:
            return died, []
        if self._time_left(job) <= 0:
            late = Failure("Expired", "the job expired before it was run")
            return Died(Reason.EXPIRED, job.message.metadata.attempts, late), []
        ended = await self._attempt(job, claim_id, claim, usage)
        return ended.decision, inherit_join(claim.join_id, ended.following)

    async def _attempt(self, job: NewJob, claim_id: str, claim: Claimed, usage: Usage) -> Attempt:
        kept = await self._notes.last_checkpoint(job.message) if claim.has_checkpoint else None
        hear = None if self._hear is None else partial(self._hear, job.message.job_id)
        output = OutputStream(hear)
        async with self._notes.buffer_for(job.message, claim_id) as progress_buffer:
            ctx = JobContext(
                message=job.message,
                lane=job.lane,
                worker_id=self.worker_id,
                settings=self._settings,
                ledger=self._ledger,
                shared=self._shared,
                last_checkpoint=kept,
                progress_buffer=progress_buffer,
                usage=usage,
                output=output,
            )
            try:
                return await attempt(
                    self._registry,
                    ctx,
                    self._executor,
                    crashes=claim.crashes,
                    unended=claim.unended,
                )
            finally:
                output.end()

    async def _record_end(self, job: NewJob, claim_id: str, decision: Ending) -> list[NewJob]:
        """Gives the jobs that had waited for this one, and may run now."""
        request = finish_request(job.message, claim_id, decision, now=self._ledger.clock.time())
        if isinstance(decision, Delayed | Died):
            self._log.warning(
                str(request.state),
                job_id=job.message.job_id,
                job_type=job.message.job_type,
                error_type=request.error_type,
                error=request.error_message,
            )
        noted = await self._ledger.jobs.finish(request)
        self._held.pop(job.message.job_id, None)
        due = [await self._ledger.job_reads.get(each) for each in noted.due] if noted else []
        return [_job_of(record) for record in due if record is not None]

    async def _cancel_waiting(self, job_ids: list[str]) -> None:
        """Cancel what had not begun, or waited for its next attempt."""
        for job_id in job_ids:
            try:
                await self._ledger.jobs.cancel(job_id, self._ledger.clock.time())
            except LedgerError as error:
                self._log.error("job not cancelled", job_id=job_id, error=str(error))

    def _time_left(self, job: NewJob) -> float:
        """Return the seconds until it is not to be run any more."""
        expires_at = job.message.metadata.expires_at
        if expires_at is None:
            return float("inf")
        return (expires_at - self._ledger.clock.now()).total_seconds()


def _is_open(state: State) -> bool:
    # One that waits for others comes when those have ended.
    return state not in FINISHED and state is not State.JOINING


def _job_of(record: JobRecord) -> NewJob:
    return NewJob(to_message(record), record.lane, record.worker, record.routing_key)
