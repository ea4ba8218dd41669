"""Run jobs without a broker, in the process that was asked for them.

For one process with a ledger of its own, and for direct requests to language models
(`services/llm/direct_requests.py`). Attempts run as in a worker (`attempt_lifecycle.py`). The
broker's part is done in memory: the next jobs wait in a list, a retry waits in its coroutine.
Nothing is lost with the process: `finish` continues the jobs that are unfinished in the ledger.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TypeVar

import structlog

from switchyard.broker.closeable import AsyncCloseable
from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.lanes import queue_name
from switchyard.broker.message import JobMessage
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import ProcessResources
from switchyard.services.engine.jobs.limits import LimitRefused, demands_of
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.retry import Delayed, Died, RetryPolicy, Succeeded
from switchyard.services.engine.ledger import Ledger, to_message
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.metric_names import Metric, Samples
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.engine.publishing.outbox import ledger_only_letter
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest, prepare
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.errors import LedgerError, RowRejected
from switchyard.services.engine.records.limits import (
    PermitDemand,
    PermitRefused,
    PermitRequest,
    rank_of,
)
from switchyard.services.engine.records.requests import ClaimRequest, NewJob
from switchyard.services.engine.records.results import Claimed, Existing, HeldByPause, HeldByWorker
from switchyard.services.engine.records.states import FINISHED, State
from switchyard.services.engine.runtime.attempt_endings import (
    CancelledWhileRunning,
    Ending,
    end_expired,
    end_invalid_outcome,
    end_limit_refused,
    end_unwritable,
)
from switchyard.services.engine.runtime.attempt_lifecycle import (
    AttemptLifecycle,
    ResolvedJob,
    log_fields,
)
from switchyard.services.engine.runtime.attempt_metrics import AttemptMetrics
from switchyard.services.engine.runtime.attempt_reporter import AttemptReporter
from switchyard.services.engine.runtime.attempt_writer import AttemptWriter
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.engine.runtime.followups import record_stages
from switchyard.services.engine.runtime.permits import Permit
from switchyard.services.engine.runtime.running_job import ClaimLost, RunningJob, is_from_outside

T = TypeVar("T")
HandOver = Callable[[str], Awaitable[None]]
"""Publishes a job, by its id, that was released here and is pending."""
RETRY_TIMEOUT = 60.0
"""Seconds that one job may wait for all its retries together: a caller waits for the answer."""

LIMIT_POLL_INTERVAL = 0.5
"""Seconds between attempts to get permits of a job's limits."""
PAUSE_POLL_INTERVAL = 1.0
"""Seconds between checks whether a job's pause has ended."""


class InlineRunner(AsyncCloseable):
    """Runs jobs, each with those that follow from it. Use it as a context manager.

    Its requests count as remote, since they come over HTTP.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        *,
        max_wait: float = RETRY_TIMEOUT,
        slots: int | None = None,
        shared_ledger: bool = False,
        hand_over: HandOver | None = None,
        announce: Callable[..., None] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """With `shared_ledger`, other processes run jobs of the same ledger: their jobs are left
        alone, and pipelines that run here at `close` are cancelled, as no process would continue
        them. With `hand_over` there are workers that do: they get what still runs at `close`, and
        each job that would have to be tried again. `slots`: how many pipelines run at once.
        `announce` gets the events of the jobs, as `monitoring.job_events.announce` does. `metrics`
        expose what runs here."""
        self._hand_over = hand_over
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._executor = Executor(min(settings.worker_concurrency, os.cpu_count() or 1))
        self._resources = ProcessResources()
        self._slots = asyncio.Semaphore(slots or settings.worker_concurrency)
        self._shared_ledger = shared_ledger
        self.worker_id = f"inline-{new_instance_id()}"
        self._numbers = count(1)
        self._pipelines: dict[str, asyncio.Task[None]] = {}
        """Pipelines under way, by the id of their first job."""
        self._is_closing = False
        self._log = structlog.get_logger("inline")
        self._attempts: Counter[str] = Counter()
        """Attempts under way, by kind of worker."""
        self._running: dict[str, InlineJob] = {}
        """Attempts under way, by the job's id."""
        self._open_claims: set[str] = set()
        """Claims that were requested here and have not ended."""
        attempt_metrics = None
        if metrics is not None:
            kinds = {each.worker for each in registry}
            attempt_metrics = AttemptMetrics(metrics, registry, kinds)
            metrics.add_source(self._metric_samples)
            metrics.add_source(self._resources.metric_samples)
        self._reporter = AttemptReporter(
            announce or _announce_nothing,
            self.worker_id,
            ledger.clock,
            metrics=attempt_metrics,
            logs=False,
        )
        # Who can't hand a job over tells its caller of a ledger that is away.
        on_ledger_away = None if hand_over is None else self._log_ledger_away
        self._attempt_writer = AttemptWriter(ledger, on_ledger_away)
        policy = RetryPolicy.from_levels(settings.retry_delays)
        self._lifecycle: AttemptLifecycle[InlineJob] = AttemptLifecycle(
            settings=settings,
            registry=registry,
            ledger=ledger,
            executor=self._executor,
            follow_up=InlineFollowUps(
                self._attempt_writer, policy, max_wait, None if hand_over is None else self._release
            ),
            attempt_writer=self._attempt_writer,
            reporter=self._reporter,
            resources=self._resources,
        )

    async def close(self) -> None:
        """Stop all pipelines, also those that a caller would start from now on. `finish` continues
        them in the next process; with a shared ledger, they are cancelled, or handed over."""
        self._is_closing = True
        unfinished = dict(self._pipelines)
        for task in unfinished.values():
            task.cancel()
        await asyncio.gather(*unfinished.values(), return_exceptions=True)
        if self._shared_ledger and self._hand_over is None:
            await self._cancel_unended(list(unfinished))
        await self._executor.close()
        await self._resources.close()

    @property
    def under_way(self) -> int:
        """Pipelines that have not ended."""
        return len(self._pipelines)

    def has(self, job_id: str) -> bool:
        """Tell whether a pipeline that began with this job runs here."""
        return job_id in self._pipelines

    def shared(self, kind: type[T]) -> T | None:
        """Return the object of that kind that the handlers share; None before its first use."""
        return self._resources.get_existing(kind)

    def cancel(self, job_id: str) -> bool:
        """Stop the handler of a job that runs here; its cancellation is recorded already. False
        when it does not run here."""
        job = self._running.get(job_id)
        if job is None or job.handler is None:
            return False
        job.cancel_requested = True
        job.handler.cancel()
        return True

    async def release_unheld_claims(self) -> None:
        """Release claims of this process in the ledger under which nothing runs here: the ledger's
        answer to a claim was lost, and nobody takes over the jobs of a live process. Raises
        LedgerError."""
        claims = [
            claim_id
            for _, claim_id in await self._ledger.jobs.running_claims(self.worker_id)
            if claim_id not in self._open_claims
        ]
        if claims:
            now = self._ledger.clock.time()
            await self._ledger.jobs.release_unheld_claims(self.worker_id, claims, now)

    async def wait(self, job_id: str, timeout: float) -> None:
        """Wait until the pipeline no longer runs here, for at most `timeout` seconds. Raises
        LedgerUnavailable."""
        task = self._pipelines.get(job_id)
        if task is None:
            return
        done, _ = await asyncio.wait([task], timeout=timeout)
        if done and not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def publish(self, request: JobRequest) -> Published:
        """Record a job and start it; it runs even if the caller leaves.

        Raises InvalidJob (also for a delay: nobody would wait for its time), UnknownJobType,
        InvalidPayload, IdempotencyConflict and LedgerUnavailable.
        """
        if request.delay:
            raise InvalidJob("a delay needs a broker: set JOBS_AMQP_URL")
        if request.notify_url is not None:
            text = "notify_url needs a broker: set JOBS_AMQP_URL"
            raise InvalidJob(text, at="notify_url")
        ids = await self._ledger.system.job_ids()
        job = prepare(self._registry, request, remote=True, ids=ids)
        job = job.shifted(self._ledger.clock.offset)
        recorded = await self._ledger.jobs.record(job)
        if isinstance(recorded, Existing):
            return Published(recorded.job_id, job.routing_key, recorded.state, duplicate=True)
        self._start(job.message.job_id, [job])
        state = State.PAUSED if recorded.paused else State.QUEUED
        return Published(job.message.job_id, job.routing_key, state)

    async def finish(self, job_id: str) -> None:
        """Wait until the job and all jobs that follow from it have ended. Restarts those that an
        earlier process left unfinished. Raises LedgerUnavailable, and CancelledError where the
        runner is closed before the end.
        """
        if job_id not in self._pipelines:
            unfinished = [
                job.id
                for job in await self._ledger.job_reads.pipeline(job_id)
                if _is_unfinished(job.state)
            ]
            jobs = await self._recorded_jobs(unfinished)
            if jobs and job_id not in self._pipelines:  # another caller may have been faster
                self._start(job_id, jobs)
        if task := self._pipelines.get(job_id):
            await asyncio.shield(task)

    def _start(self, job_id: str, jobs: list[NewJob]) -> None:
        task = asyncio.create_task(self._run_pipeline(deque(jobs)))
        self._pipelines[job_id] = task
        task.add_done_callback(lambda done: self._on_pipeline_end(job_id, done))

    def _on_pipeline_end(self, job_id: str, task: asyncio.Task[None]) -> None:
        del self._pipelines[job_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Waiting callers get the error; but there may be none.
            self._log.error("pipeline interrupted", job_id=job_id, error=str(error))

    async def _run_pipeline(self, jobs: deque[NewJob]) -> None:
        async with self._slots:
            while jobs:
                jobs.extend(await self._run_to_end(jobs.popleft()))

    async def _run_to_end(self, job: NewJob) -> list[NewJob]:
        """Run a job with its retries; return the jobs that follow."""
        following: list[NewJob] = []
        waited = 0.0
        while True:
            with structlog.contextvars.bound_contextvars(**log_fields(job.message)):
                attempt = await self._run_attempt(job, waited)
            if attempt is None:
                return following
            running, ending, due = attempt
            following += running.following
            if not isinstance(ending, Delayed):
                return following + await self._recorded_jobs(due)
            await asyncio.sleep(running.pause)
            waited = running.waited
            message = running.message.with_metadata(attempts=ending.attempts)
            job = replace(job, message=message)

    async def _run_attempt(
        self, job: NewJob, waited: float
    ) -> tuple[InlineJob, Ending, list[str]] | None:
        """Run one attempt of a job that has waited `waited` seconds for its retries. Returns the
        attempt, its ending, and the ids of the jobs that are due now; None for a job that must not
        run."""
        if self._is_closing:
            # It was started during `close`, or it follows on an attempt that was at its end when
            # `close` cancelled it, and has succeeded.
            raise asyncio.CancelledError
        resolved, needs, verdict = self._resolve(job.message)
        permit = await self._wait_for_permit(job, needs)
        claim_id = f"{self.worker_id}/{next(self._numbers)}"
        self._open_claims.add(claim_id)
        try:
            running = await self._claim(job, claim_id, waited)
            if running is None:
                return None
            running.usage = permit.usage
            running.verdict = running.verdict or verdict
            self._attempts[job.worker] += 1
            self._running[job.message.job_id] = running
            try:
                ending, due = await self._lifecycle.run(running, resolved)
            except asyncio.CancelledError:
                await self._end_cancelled(running)
                raise
            finally:
                del self._running[job.message.job_id]
                self._attempts[job.worker] -= 1
        except HandedOver:
            return None
        except ClaimLost as error:
            self._log.warning("claim lost to another process", error=str(error))
            return None
        finally:
            self._open_claims.discard(claim_id)
            await self._return_permit(permit)
        self._reporter.report_end(running, ending)
        return running, ending, due

    async def _end_cancelled(self, job: InlineJob) -> None:
        """End the attempt of a job whose pipeline is stopped."""
        if self._hand_over is not None:
            try:
                await self._release(job)
            except LedgerError as error:  # it is taken over, as the heartbeats end
                self._log.warning("claim release not recorded", error=str(error))
        elif self._shared_ledger:
            with suppress(ClaimLost):
                await self._attempt_writer.record_end(job, CancelledWhileRunning())

    async def _release(self, job: InlineJob) -> None:
        """Release the claim of a job, with no attempt used up, and hand it over. Raises
        LedgerError."""
        jobs, now = self._ledger.jobs, self._ledger.clock.time()
        if (
            await jobs.release_unheld_claims(self.worker_id, [job.claim_id], now)
            and self._hand_over
        ):
            await self._hand_over(job.message.job_id)

    def _log_ledger_away(self) -> None:
        self._log.warning("the end of a job is recorded as soon as the ledger can be reached")

    def _resolve(
        self, message: JobMessage
    ) -> tuple[ResolvedJob | None, Sequence[PermitDemand], Died | None]:
        """Return a job's type with its payload, and the permits that it needs; or the verdict if it
        can't run."""
        try:
            job_type = self._registry.get(message.job_type)
            payload = job_type.read(message.payload, message.metadata.payload_version)
            needs = demands_of(job_type.limits, payload, self._settings.limits)
        except LimitRefused as error:
            return None, (), end_limit_refused(message, error)
        except BaseException as error:  # a validator may raise anything
            if is_from_outside(error):
                raise
            return None, (), end_unwritable(message, None, error)
        return (job_type, payload), needs, None

    async def _wait_for_permit(self, job: NewJob, needs: Sequence[PermitDemand]) -> Permit:
        """Wait for permits of the job's limits. If the job expires meanwhile, the permit's
        `hold_id` is None."""
        permit = Permit(needs)
        if not needs:
            return permit
        message = job.message
        request = PermitRequest(
            hold=f"{self.worker_id}/{next(self._numbers)}",
            holder=self.worker_id,
            needs=needs,
            job_id=message.job_id,
            redrives=message.metadata.redrives,
            attempts=message.metadata.attempts,
            queue="",
            rank=rank_of(job.lane, message.priority),
            body=None,
            levels=(LIMIT_POLL_INTERVAL,),
            expires_at=float("inf"),
            life=self._registry.get(message.job_type).timeout + RETRY_TIMEOUT,
        )
        while isinstance(answer := await self._ledger.limits.take_permits(request), PermitRefused):
            seconds_left = _time_left(message, self._ledger)
            if seconds_left <= 0:
                return permit
            await asyncio.sleep(min(answer.seconds, seconds_left))
        permit.hold_id = request.hold
        return permit

    async def _return_permit(self, permit: Permit) -> None:
        if permit.hold_id is None:
            return
        try:
            await self._ledger.limits.return_permits(
                permit.hold_id, permit.needs, permit.usage.tokens
            )
        except LedgerError as error:  # the permits expire by themselves
            self._log.warning("permits not released", error=str(error))

    async def _claim(self, job: NewJob, claim_id: str, waited: float) -> InlineJob | None:
        """Claim the job; None when it must not run."""
        request = ClaimRequest(
            message=job.message,
            lane=job.lane,
            worker=job.worker,
            routing_key=job.routing_key,
            worker_id=self.worker_id,
            claim_id=claim_id,
            now=self._ledger.clock.time(),
        )
        claim = await self._ledger.jobs.claim(request)
        if isinstance(claim, HeldByWorker) and not self._shared_ledger:
            # The claim of a dead process: in this one, a job has one run at a time.
            request = replace(request, takeover_from=claim.claim_id, now=self._ledger.clock.time())
            claim = await self._ledger.jobs.claim(request)
        while isinstance(claim, HeldByPause) and not self._shared_ledger:
            # No scheduler publishes it at the end of the pause.
            await asyncio.sleep(PAUSE_POLL_INTERVAL)
            claim = await self._ledger.jobs.claim(request)
        if not isinstance(claim, Claimed):
            return None
        running = await InlineJob.from_claim(self._ledger, request, claim, waited=waited)
        if running.verdict is None and _time_left(running.message, self._ledger) <= 0:
            running.verdict = end_expired(running.message)
        return running

    async def _recorded_jobs(self, job_ids: Sequence[str]) -> list[NewJob]:
        records = [await self._ledger.job_reads.get(each) for each in job_ids]
        return [
            NewJob(to_message(record), record.lane, record.worker, record.routing_key)
            for record in records
            if record is not None
        ]

    def _metric_samples(self) -> Iterable[tuple[Metric, Samples]]:
        return [(names.LLM_CONCURRENCY, {(self.worker_id,): float(self._attempts[LLM_WORKER])})]

    async def _cancel_unended(self, job_ids: list[str]) -> None:
        """Cancel jobs that had not begun, or waited for their next attempt."""
        for job_id in job_ids:
            try:
                await self._ledger.jobs.cancel(job_id, self._ledger.clock.time())
            except LedgerError as error:
                self._log.error("job not cancelled", job_id=job_id, error=str(error))


class HandedOver(ClaimLost):
    """The job was given to the workers."""


def _announce_nothing(event: str, **fields: object) -> None:
    """Drop an event: nobody listens."""


@dataclass(slots=True)
class InlineJob(RunningJob):
    """An attempt at a job of this process, and what follows from it."""

    waited: float = field(kw_only=True)
    """Seconds that the job has waited for its retries so far."""
    pause: float = 0.0
    """Seconds until the next attempt, where there is one."""
    following: list[NewJob] = field(default_factory=list)
    """Jobs to run next."""


@dataclass(slots=True)
class InlineFollowUps:
    """Keeps follow-up jobs in memory, or releases them to workers. Dead letters exist only in the
    ledger."""

    attempt_writer: AttemptWriter
    policy: RetryPolicy
    max_wait: float
    """Seconds that one job may wait for all its retries together."""
    release: Callable[[InlineJob], Awaitable[None]] | None
    """Gives a job to the workers; None where there are none."""
    keeps_letters: bool = False

    async def publish(self, job: InlineJob, ending: Ending, jobs: Sequence[NewJob]) -> Ending:
        """Record the next stages, or set how long the job waits for its retry; a job that would
        wait too long is dead. Where there are workers, they get what is to be tried again, and a
        dead letter is in the ledger's index. Raises HandedOver."""
        match ending:
            case Succeeded() if jobs:
                try:
                    job.following = await record_stages(self.attempt_writer, jobs)
                except RowRejected as error:
                    return await self.publish(job, end_invalid_outcome(job.message, error), ())
            case Delayed() | Died() if not await self.attempt_writer.is_not_cancelled(job):
                return CancelledWhileRunning()
            case Delayed() if self.release is not None:
                await self.release(job)
                raise HandedOver
            case Died() if self.release is not None:
                await self._index_letter(job, ending)
            case Delayed():
                job.pause = min(ending.seconds, _time_left(job.message, self.attempt_writer.ledger))
                job.waited += job.pause
                if job.waited > self.max_wait:
                    return Died(Reason.EXHAUSTED, ending.attempts, ending.failure)
        return ending

    async def _index_letter(self, job: InlineJob, died: Died) -> None:
        """Put a dead letter into the index of the ledger, which alone has it."""
        ledger, message = self.attempt_writer.ledger, job.message
        record = await self.attempt_writer.until_reached(
            partial(ledger.job_reads.get, message.job_id)
        )
        if record is None:
            return
        message = message.with_metadata(attempts=died.attempts)
        info = DeadLetterInfo(
            reason=died.reason,
            routing_key=record.routing_key,
            queue=queue_name(record.lane, record.worker),
            error_type=died.failure.error_type,
            message=died.failure.message,
            traceback=died.failure.traceback,
            attempts=died.attempts,
            worker=record.worker_id or "",
            dead_at=ledger.clock.now().isoformat(),
        )
        letter = ledger_only_letter(info, message, message.encode(), record)
        await self.attempt_writer.until_reached(partial(ledger.dead_letters.index_dead, [letter]))


def _time_left(message: JobMessage, ledger: Ledger) -> float:
    """Return the seconds until the job expires."""
    expires_at = message.metadata.expires_at
    if expires_at is None:
        return float("inf")
    return (expires_at - ledger.clock.now()).total_seconds()


def _is_unfinished(state: State) -> bool:
    # A job that waits for others is run when those have ended.
    return state not in FINISHED and state is not State.JOINING
