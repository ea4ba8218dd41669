"""Process one delivery, from the queue to its end: the steps that every job goes through.

decode → permits → claim → run → classify → publish what follows → record → acknowledge → report

The order is the system's promise. What follows from an attempt (next stages, the retry, the dead
letter) is confirmed by the broker before the ledger says so, and the delivery is acknowledged
after that. A crash in between repeats work and loses none; ids made from the job's id, and the
ledger's claim, make the repeat harmless.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import structlog

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.errors import MalformedMessage
from switchyard.broker.message import JobMessage
from switchyard.services.engine.jobs.registry import NewerPayload, UnknownJobType
from switchyard.services.engine.jobs.retry import Delayed, Died, Failure, decide
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.records.results import NEWER_PAYLOAD, UNKNOWN_TYPE
from switchyard.services.engine.runtime.attempt_endings import Ending
from switchyard.services.engine.runtime.attempt_lifecycle import (
    LEDGER_UNUSABLE,
    AttemptLifecycle,
    ResolvedJob,
    log_failure,
    log_fields,
)
from switchyard.services.engine.runtime.attempt_spans import tracing_attempt
from switchyard.services.engine.runtime.claims import Claims
from switchyard.services.engine.runtime.followups import FollowUpPublisher
from switchyard.services.engine.runtime.permits import Permit, PermitClient
from switchyard.services.engine.runtime.running_job import ClaimLost, DeliveredJob, is_from_outside


@dataclass
class Runner(AttemptLifecycle[DeliveredJob]):
    """Handles the deliveries of one kind of worker."""

    follow_up: FollowUpPublisher
    claims: Claims
    permits: PermitClient

    async def handle(self, delivery: Delivery) -> None:
        """Process one delivery; it is settled in every case.

        Cancelling this call (the worker gives up) sends the job back, no attempt used up.
        """
        try:
            message = self._decode(delivery)
        except (
            BaseException
        ) as error:  # whatever the error is, the message must not be delivered again
            await self._dead_letter_malformed(delivery, error)
            return
        try:
            resolved = self._resolve(message)
        except BaseException as error:  # a validator may raise anything
            await self._dead_letter_malformed(delivery, error, message)
            return
        structlog.contextvars.bind_contextvars(**log_fields(message))
        try:
            permit = await self._acquire_permits(delivery, message, resolved)
            if permit is not None:
                await self._claim_and_run(delivery, message, resolved, permit)
        except LEDGER_UNUSABLE as error:
            self._log.warning("ledger unreachable", error=str(error))
            self.reporter.counters.returned += 1
            delivery.requeue()
            if self.attempt_writer.on_ledger_away is not None:
                self.attempt_writer.on_ledger_away()
        except BaseException as error:
            if is_from_outside(error) or delivery.is_settled:
                raise
            # The claim, or the request for permits, failed because of the job itself.
            begun_at, ids = self.ledger.clock.time(), PUBLIC_IDS  # nothing follows from it
            unclaimed_job = DeliveredJob(
                delivery.lane, message, "", begun_at, ids, delivery=delivery
            )
            await self._fail(unclaimed_job, error)

    async def _dead_letter_malformed(
        self, delivery: Delivery, error: BaseException, job: JobMessage | None = None
    ) -> None:
        await self.follow_up.dead_letter_malformed(delivery, error, job)
        delivery.ack()
        self.reporter.counters.count_malformed()

    async def _acquire_permits(
        self, delivery: Delivery, message: JobMessage, resolved: ResolvedJob | Failure
    ) -> Permit | None:
        """Get permits for the job; None when it has to wait, and the delivery is settled."""
        if isinstance(resolved, Failure) or not resolved[0].limits:
            return Permit()
        expires_at = self.claims.startable_until(delivery, message)
        if expires_at is None:
            await self.ledger.limits.cancel_wait(message.job_id)
            return Permit()
        return await self.permits.acquire(delivery, message, *resolved, expires_at)

    async def _claim_and_run(
        self,
        delivery: Delivery,
        message: JobMessage,
        resolved: ResolvedJob | Failure,
        permit: Permit,
    ) -> None:
        unknown_type = resolved if isinstance(resolved, Failure) else None
        try:
            job = await self.claims.claim(
                delivery,
                message,
                unknown_type=unknown_type,
                is_isolated=not isinstance(resolved, Failure)
                and resolved[0].isolation == "process",
            )
            if job is not None:
                await self._run_attempt(
                    job, None if isinstance(resolved, Failure) else resolved, permit
                )
        finally:
            await self.permits.release(permit)

    async def _run_attempt(
        self, job: DeliveredJob, resolved: ResolvedJob | None, permit: Permit
    ) -> None:
        """Run a claimed job once, and settle its delivery."""
        try:
            with tracing_attempt(job) as set_ending:
                confirm = partial(self._confirm, job, permit)
                ending, due = await self.run(job, resolved, confirm)
                set_ending(ending)
        except ClaimLost as error:
            self._log.warning("claim lost to another worker", error=str(error))
            job.delivery.ack()
        except LEDGER_UNUSABLE:
            raise
        except BaseException as error:
            if not is_from_outside(error):
                await self._fail(job, error)
                return
            if issubclass(type(error), asyncio.CancelledError):
                await self.attempt_writer.release(job)
                job.delivery.requeue()
                self.reporter.counters.returned += 1
            raise
        else:
            job.delivery.ack()
            self.reporter.report_end(job, ending)
            await self.follow_up.publish_due(due)
        finally:
            self.claims.close(job)

    async def _fail(self, job: DeliveredJob, error: BaseException) -> None:
        """Publish the job, with one more attempt, as a retry or a dead letter. This is the last
        resort if neither the attempt's ending nor a dead letter for it could be written.
        """
        failure = Failure.from_error(error)
        log_failure("job failed outside of its handler", failure)
        metadata = job.message.metadata
        ending: Ending = decide(
            failure,
            attempts=metadata.attempts,
            max_attempts=metadata.max_attempts,
            policy=self.follow_up.policy,
            now=self.ledger.clock.now(),
        )
        if isinstance(job.verdict, Died):
            ending = job.verdict
        if isinstance(ending, Delayed | Died):
            await self.follow_up.retry_or_dead_letter(job, ending)
            job.delivery.ack()
            self.reporter.report_end(job, ending)

    def cancel(self, job_id: str) -> bool:
        """Stop a job that runs here. False when it does not."""
        job = self.claims.running.get(job_id)
        if job is None or job.handler is None:
            return False
        job.cancel_requested = True
        job.handler.cancel()
        return True

    def interrupt(self) -> None:
        """Stop all running handlers; their jobs return to their queues without using an attempt.
        Follow-ups of handlers that have ended are still published and recorded."""
        for job in self.claims.running.values():
            if job.handler is not None:
                job.handler.cancel()

    # --- steps ------------------------------------------------------------------------------

    def _decode(self, delivery: Delivery) -> JobMessage:
        """Read the job. Raises MalformedMessage."""
        if delivery.unreadable:
            raise MalformedMessage(delivery.unreadable)
        return JobMessage.decode(delivery.body)

    def _resolve(self, message: JobMessage) -> ResolvedJob | Failure:
        """Return the job's type and payload; or a Failure that says why only other workers can run
        it: those that know its type, or a newer version of its payload. Raises InvalidPayload."""
        worker = f"worker {self.claims.worker_id} ({self.claims.worker})"
        try:
            job_type = self.registry.get(message.job_type)
        except UnknownJobType:
            return Failure(
                UNKNOWN_TYPE,
                f"{worker} does not know the job type {message.job_type!r}: name its module in "
                "JOBS_MODULES or with --include",
            )
        try:
            return job_type, job_type.read(message.payload, message.metadata.payload_version)
        except NewerPayload as error:
            return Failure(NEWER_PAYLOAD, f"{worker}: {error}")

    async def _confirm(self, job: DeliveredJob, permit: Permit) -> None:
        """Check that a claimed job has its permits; set its verdict if not. If the ledger is away,
        the job runs anyway: one job above a limit does less harm."""
        job.usage = permit.usage
        try:
            await self.permits.confirm(permit, job)
        except LedgerError as error:
            self._log.warning("permit not requested", error=str(error))
