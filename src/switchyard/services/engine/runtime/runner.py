"""One delivery, from the queue to its end: the line that every job goes through.

decode → permits → claim → run → classify → publish what follows → record → acknowledge → report

The order is the system's promise. What follows from an attempt (next stages, the retry, the dead
letter) is confirmed by the broker before the ledger says so, and the delivery is acknowledged
after that. A crash in between repeats work and loses none; ids made from the job's id, and the
ledger's claim, make the repeat harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from pydantic import BaseModel

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.errors import MalformedMessage
from switchyard.broker.message import JobMessage
from switchyard.services.common.settings import Settings
from switchyard.services.common.traceparent import trace_id_of
from switchyard.services.engine.jobs.context import JobContext, ProcessResources
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.engine.jobs.progress_buffer import ProgressBuffer
from switchyard.services.engine.jobs.registry import JobType, Registry, UnknownJobType
from switchyard.services.engine.jobs.retry import Decision, Delayed, Died, Failure, decide
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import (
    LedgerClosed,
    LedgerError,
    LedgerMisconfigured,
    LedgerUnavailable,
    SchemaOutdated,
)
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.runtime.attempt_writer import Recorder
from switchyard.services.engine.runtime.claims import Claims
from switchyard.services.engine.runtime.events import Reporter
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.engine.runtime.followups import FollowUpPublisher
from switchyard.services.engine.runtime.outcomes import (
    CancelledWhileRunning,
    Ending,
    classify,
    inherit_join,
    unwritable,
)
from switchyard.services.engine.runtime.permits import Permit, PermitClient
from switchyard.services.engine.runtime.progress_writer import ProgressWriter
from switchyard.services.engine.runtime.running_job import ClaimLost, RunningJob, is_from_outside
from switchyard.services.engine.runtime.traced import attempting

_LEDGER_AWAY = (LedgerUnavailable, LedgerMisconfigured, LedgerClosed, SchemaOutdated)
"""Errors of the ledger that are no fault of the job's: any other would meet them, too."""

Task = tuple[JobType, BaseModel]
"""A job type and the payload for it."""


@dataclass
class Runner:
    """Handles the deliveries of one kind of worker."""

    settings: Settings
    registry: Registry
    ledger: Ledger
    claims: Claims
    limits: PermitClient
    executor: Executor
    follow_up: FollowUpPublisher
    recorder: Recorder
    reporter: Reporter
    shared: ProcessResources

    def __post_init__(self) -> None:
        self._notes = ProgressWriter(self.ledger)
        self._log = structlog.get_logger("worker")

    async def handle(self, delivery: Delivery) -> None:
        """Take one delivery to its end; it is settled in every case.

        Cancelling this call (the worker gives up) sends the job back, no attempt used up.
        """
        try:
            message = self._decode(delivery)
        except BaseException as error:  # whatever is wrong with it, it must not come again
            await self._dead_letter_malformed(delivery, error)
            return
        try:
            task = self._task_of(message)
        except BaseException as error:  # a validator may raise anything
            await self._dead_letter_malformed(delivery, error, message)
            return
        structlog.contextvars.bind_contextvars(
            job_id=message.job_id,
            job_type=message.job_type,
            attempt=message.metadata.attempts + 1,
            **_trace_of(message),
        )
        try:
            permit = await self._enter(delivery, message, task)
            if permit is not None:
                await self._claim_and_run(delivery, message, task, permit)
        except _LEDGER_AWAY as error:
            self._log.warning("ledger unreachable", error=str(error))
            self.reporter.counters.returned += 1
            delivery.requeue()
            self.recorder.on_ledger_away()
        except BaseException as error:
            if is_from_outside(error) or delivery.is_settled:
                raise
            # The claim, or the request for permits, failed for a reason of the job's own.
            unclaimed = RunningJob(delivery, message, "", self.ledger.clock.time())
            await self._fail(unclaimed, error)

    async def _dead_letter_malformed(
        self, delivery: Delivery, error: BaseException, job: JobMessage | None = None
    ) -> None:
        await self.follow_up.dead_letter_malformed(delivery, error, job)
        delivery.ack()
        self.reporter.counters.count_malformed()

    async def _enter(
        self, delivery: Delivery, message: JobMessage, task: Task | None
    ) -> Permit | None:
        """Get permits for the job; None when it has to wait, and the delivery is settled."""
        if task is None or not task[0].limits:
            return Permit()
        expires_at = self.claims.runs_until(delivery, message)
        if expires_at is None:
            await self.ledger.limits.cancel_wait(message.job_id)
            return Permit()
        return await self.limits.enter(delivery, message, *task, expires_at)

    async def _claim_and_run(
        self, delivery: Delivery, message: JobMessage, task: Task | None, permit: Permit
    ) -> None:
        try:
            job = await self.claims.claim(delivery, message, is_known=task is not None)
            if job is not None:
                await self._run_attempt(job, task, permit)
        finally:
            await self.limits.leave(permit)

    async def _run_attempt(self, job: RunningJob, task: Task | None, permit: Permit) -> None:
        """Run a claimed job once, and record how the attempt ends."""
        try:
            with attempting(job) as tell:
                ended = await self._attempt(job, task, permit)
                ending, due = await self._conclude(job, ended)
                tell(ending)
        except ClaimLost as error:
            self._log.warning("claim lost to another worker", error=str(error))
            job.delivery.ack()
        except _LEDGER_AWAY:
            raise
        except BaseException as error:
            if not is_from_outside(error):
                await self._fail(job, error)
                return
            if issubclass(type(error), asyncio.CancelledError):
                await self.recorder.release(job)
                job.delivery.requeue()
                self.reporter.counters.returned += 1
            raise
        else:
            job.delivery.ack()
            self.reporter.ended(job, ending)
            await self.follow_up.publish_due(due)
        finally:
            self.claims.close(job)

    async def _attempt(self, job: RunningJob, task: Task | None, permit: Permit) -> Any:
        """Return the handler's answer, or a Failure of the handler or of what comes before it. None
        for a job that has its verdict."""
        try:
            await self._confirm(job, permit)
            return await self._run(job, *task) if task and not job.verdict else None
        except _LEDGER_AWAY:
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            return Failure.from_error(error)

    async def _conclude(self, job: RunningJob, ended: Any) -> tuple[Ending, list[str]]:
        """Publish what follows from the attempt, and record its end.

        Returns the end and the ids of the jobs that are due now. An end that can't be written is
        replaced by one that can: a dead letter. Raises ClaimLost, LedgerError where the ledger is
        away.
        """
        try:
            ending, jobs = self._classify(job, ended)
            ending = await self.follow_up.publish(job, ending, inherit_join(job.join_id, jobs))
            return await self.recorder.record_end(job, ending)
        except (ClaimLost, *_LEDGER_AWAY):
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            died = unwritable(job.message, ended, error)
        self._log_failure("attempt end not written", died.failure)
        ending = await self.follow_up.publish(job, died, ())
        try:
            return await self.recorder.record_end(job, ending)
        except (ClaimLost, *_LEDGER_AWAY):
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            # The index of dead letters will tell the ledger.
            self._log_failure("dead letter not recorded", Failure.from_error(error))
            return ending, []

    async def _fail(self, job: RunningJob, error: BaseException) -> None:
        """Send the message on by itself, one attempt older, as a retry or a dead letter.

        The last resort, where neither the handler's end nor that of a defect could be written.
        """
        failure = Failure.from_error(error)
        self._log_failure("job failed outside of its handler", failure)
        metadata = job.message.metadata
        ending: Decision | CancelledWhileRunning = decide(
            failure,
            attempts=metadata.attempts,
            max_attempts=metadata.max_attempts,
            policy=self.follow_up.policy,
            now=self.ledger.clock.now(),
        )
        if isinstance(job.verdict, Died):
            ending = job.verdict
        if isinstance(ending, Delayed | Died):
            await self.follow_up.send_back(job, ending)
            job.delivery.ack()
            self.reporter.ended(job, ending)

    def _log_failure(self, event: str, failure: Failure) -> None:
        # As text: an exception may be one that can't be shown.
        self._log.error(
            event,
            error_type=failure.error_type,
            error=failure.message,
            traceback=failure.traceback,
        )

    def cancel(self, job_id: str) -> bool:
        """Stop a job that runs here. False when it does not."""
        job = self.claims.running.get(job_id)
        if job is None or job.handler is None:
            return False
        job.called_off = True
        job.handler.cancel()
        return True

    def interrupt(self) -> None:
        """Stop every handler that runs; its job goes back to its queue, no attempt used up. What
        follows from a handler that has ended is still published and recorded."""
        for job in self.claims.running.values():
            if job.handler is not None:
                job.handler.cancel()

    # --- steps ------------------------------------------------------------------------------

    def _decode(self, delivery: Delivery) -> JobMessage:
        """Read the job. Raises MalformedMessage."""
        if delivery.unreadable:
            raise MalformedMessage(delivery.unreadable)
        return JobMessage.decode(delivery.body)

    def _task_of(self, message: JobMessage) -> Task | None:
        """Find what to run; None for a type that only other workers know. Raises InvalidPayload."""
        try:
            job_type = self.registry.get(message.job_type)
        except UnknownJobType:
            return None
        return job_type, job_type.validate(message.payload)

    async def _confirm(self, job: RunningJob, permit: Permit) -> None:
        """Check that a claimed job has its permits; give it a verdict if not. Without the ledger
        it runs: it is claimed, and one job too many does less harm."""
        job.usage = permit.usage
        try:
            await self.limits.confirm(permit, job)
        except LedgerError as error:
            self._log.warning("permit not requested", error=str(error))

    async def _run(self, job: RunningJob, job_type: JobType, payload: BaseModel) -> Any:
        """Run the handler; return its answer or its failure. A job that is cancelled meanwhile gets
        its verdict."""
        checkpoint = await self._notes.last_checkpoint(job.message) if job.has_checkpoint else None
        self.reporter.started(job)
        announce = partial(self.reporter.progressed, job)
        async with self._notes.buffer_for(job.message, job.claim_id, announce) as progress_buffer:
            return await self._handle(job, job_type, payload, checkpoint, progress_buffer)

    async def _handle(
        self,
        job: RunningJob,
        job_type: JobType,
        payload: BaseModel,
        last_checkpoint: Any,
        progress_buffer: ProgressBuffer,
    ) -> Any:
        output = OutputStream(partial(self.reporter.wrote, job))
        ctx = JobContext(
            message=job.message,
            lane=job.delivery.lane,
            worker_id=self.reporter.worker_id,
            settings=self.settings,
            ledger=self.ledger,
            shared=self.shared,
            is_cancelled=lambda: job.called_off,
            compute=self.executor.compute,
            in_process=self.executor.in_process,
            last_checkpoint=last_checkpoint,
            progress_buffer=progress_buffer,
            usage=job.usage,
            output=output,
        )
        # Only the handler may be cancelled: what follows from it must be seen through.
        job.handler = asyncio.current_task()
        try:
            return await self.executor.run(job_type, payload, ctx, suspect=job.crashes > 0)
        except asyncio.CancelledError:
            if not job.called_off:
                raise
            if job.handler is not None:
                job.handler.uncancel()
            job.verdict = CancelledWhileRunning()
            return None
        finally:
            output.end()
            job.handler = None

    def _classify(self, job: RunningJob, ended: Any) -> tuple[Ending, Sequence[NewJob]]:
        """Decide how the attempt ends, and which jobs follow."""
        if job.verdict is not None:
            return job.verdict, ()
        return classify(
            self.registry,
            job.message,
            job.delivery.lane,
            ended,
            self.follow_up.policy,
            now=self.ledger.clock.now(),
            crashes=job.crashes,
        )


def _trace_of(message: JobMessage) -> dict[str, str]:
    """Return the fields by which a job's log lines are found in its trace."""
    trace_id = trace_id_of(message.metadata.traceparent)
    return {} if trace_id is None else {"trace_id": trace_id}
