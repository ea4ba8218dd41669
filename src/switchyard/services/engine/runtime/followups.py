"""Publish what follows from an attempt: next stages, the retry, or the dead letter; also the dead
letters of malformed messages. Each publish is confirmed on return."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.dead_letter_headers import (
    DeadLetterInfo,
    Reason,
    letter_id,
    unreadable_properties,
)
from switchyard.broker.errors import (
    ForeignCopy,
    LaneFull,
    NeverTaken,
    NotPermitted,
    PublishError,
    Refused,
    Unroutable,
)
from switchyard.broker.lanes import DEAD_EXCHANGE, retry_name
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Accepted, Outgoing, Result, envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.reconnector import MAX_BACKOFF, MIN_BACKOFF
from switchyard.services.engine.jobs.retry import Delayed, Died, Failure, RetryPolicy, Succeeded
from switchyard.services.engine.publishing.outbox import (
    ledger_only_letter,
    publish_recorded,
    record_following,
    refused_letter,
    routed,
    without_paused,
)
from switchyard.services.engine.records.errors import LedgerError, RowRejected
from switchyard.services.engine.records.requests import DeadLetterRecord, NewJob
from switchyard.services.engine.records.results import Created, Existing
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.attempt_endings import (
    CancelledWhileRunning,
    Ending,
    end_invalid_outcome,
    end_unwaitable,
)
from switchyard.services.engine.runtime.attempt_writer import AttemptWriter
from switchyard.services.engine.runtime.running_job import DeliveredJob

LANE_FULL_PAUSE = 5.0
"""Seconds after which a job runs again because a full lane refused its next stage; no attempt is
used."""


@dataclass
class FollowUpPublisher:
    """Publishes for one worker, and retries until the broker confirms."""

    publisher: Publisher
    attempt_writer: AttemptWriter
    policy: RetryPolicy
    worker_id: str
    keeps_letters: bool = True

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")

    async def publish(self, job: DeliveredJob, ending: Ending, jobs: Sequence[NewJob]) -> Ending:
        """Publish what follows from an attempt, and return how the attempt ends after that. `jobs`
        are the next stages of one that has succeeded. Raises ClaimLost before anything is
        published."""
        match ending:
            case Succeeded() if jobs:
                return await self._publish_stages(job, ending, jobs)
            case Delayed() | Died() if not await self.attempt_writer.is_not_cancelled(job):
                return CancelledWhileRunning()
            case Delayed():
                try:
                    await self.retry_or_dead_letter(job, ending)
                except NeverTaken as error:
                    return await self.publish(job, end_unwaitable(job.message, ending, error), ())
            case Died():
                await self.retry_or_dead_letter(job, ending)
        return ending

    async def retry_or_dead_letter(self, job: DeliveredJob, ending: Delayed | Died) -> None:
        """Publish the retry or the dead letter, without asking the ledger whether the job was
        cancelled."""
        if isinstance(ending, Died):
            await self._dead_letter(job, ending)
        else:
            await self._retry(job, ending)

    async def delay(
        self, delivery: Delivery, message: JobMessage, level: float, *, ages: bool = False
    ) -> None:
        """Send the job through a retry level, back to the queue that it came from. Only with `ages`
        does the time in the level count towards the job's age in its lane. A job that has become
        too large for the broker is sent unchanged. Raises NeverTaken."""
        try:
            await self._delay(delivery, message, level, ages=ages)
        except NeverTaken as error:
            self._log.warning("job delayed unchanged", error=str(error))
            await self.delay_for_limit(delivery, message, level)

    async def _delay(
        self,
        delivery: Delivery,
        message: JobMessage,
        level: float,
        *,
        ages: bool,
        until: datetime | None = None,
    ) -> None:
        """Send the job through a retry level. Its age counts from `until`, or from the end of the
        level, unless it `ages` meanwhile."""
        if not ages:
            back_at = self.attempt_writer.ledger.clock.now() + timedelta(seconds=level)
            message = message.with_metadata(queued_at=until or back_at)
        await self._send(retry_name(level), delivery.queue, envelope_of(message))

    async def delay_for_limit(self, delivery: Delivery, message: JobMessage, level: float) -> None:
        """Send a job that was refused a permit through a retry level, unchanged, so that it
        ages."""
        envelope = envelope_of(message, body=delivery.body)
        await self._send(retry_name(level), delivery.queue, envelope)

    async def dead_letter_malformed(
        self, delivery: Delivery, error: BaseException, job: JobMessage | None = None
    ) -> None:
        """Dead-letter a message that can't be run, with its body unchanged; unreadable properties
        are kept in a header. `job` is given if only the payload is invalid."""
        # A foreign copy must not count as the job whose id it has.
        is_foreign = isinstance(error, ForeignCopy)
        message_id = "" if is_foreign else delivery.message_id
        if delivery.unreadable:
            info = unreadable_properties(delivery, worker=self.worker_id)
        else:
            failure = Failure.from_error(error)
            info = DeadLetterInfo(
                reason=Reason.MALFORMED if job is None else Reason.INVALID_PAYLOAD,
                routing_key=delivery.routing_key,
                queue=delivery.queue,
                error_type=failure.error_type,
                message=failure.message,
                attempts=0 if job is None else job.metadata.attempts,
                worker=self.worker_id,
                dead_at=self.attempt_writer.ledger.clock.now().isoformat(),
            )
        job_id = None if job is None else job.job_id
        envelope = Envelope(
            body=delivery.body,
            message_id=message_id or letter_id(job_id, delivery.body),
            priority=delivery.priority,
            timestamp=int(self.attempt_writer.ledger.clock.time()),
        )
        try:
            await self._send_letter(envelope, delivery.routing_key, info)
        except ValueError as refusal:
            self._log.error("dead letter kept in the ledger alone", error=str(refusal))
            ledger = self.attempt_writer.ledger
            letter = _record_of_unsent(delivery, info, job)
            await self.attempt_writer.until_reached(
                lambda: ledger.dead_letters.index_dead([letter])
            )
        self._log.error(
            "message dead-lettered",
            reason=str(info.reason),
            queue=delivery.queue,
            message_id=envelope.message_id,
            error_type=info.error_type,
            error=info.message,
        )

    # --- next stages ------------------------------------------------------------------------

    async def _publish_stages(
        self, job: DeliveredJob, ending: Succeeded, jobs: Sequence[NewJob]
    ) -> Ending:
        """Record the next stages and publish them. If a full lane refuses one, this job runs again
        later: its output is stored, so that is cheap, and no slot waits for a lane. A stage without
        a queue, or without permission to publish it, stays `pending` for the outbox until an
        operator fixes that. A stage that the broker can never take is dead, and so is this job:
        another attempt would end the same way."""
        try:
            for each in jobs:
                self.publisher.check(each.message)
            recorded = await record_stages(self.attempt_writer, jobs)
        except (NeverTaken, RowRejected) as error:
            return await self.publish(job, end_invalid_outcome(job.message, error), ())
        remaining = [routed(each, each.message) for each in recorded]
        backoff = MIN_BACKOFF
        while remaining:
            results = await self.publisher.publish_many(remaining)
            refusal = await self._record_results(remaining, results)
            never_taken = next((each for each in results if isinstance(each, NeverTaken)), None)
            if never_taken is not None:
                return await self.publish(job, end_invalid_outcome(job.message, never_taken), ())
            if refusal is not None:
                return await self._retry_for_full_lane(job, refusal)
            remaining = [
                stage
                for stage, result in zip(remaining, results, strict=True)
                if isinstance(result, PublishError)
                and not isinstance(result, LaneFull | Unroutable | NotPermitted)
            ]
            if remaining:
                self._log.warning(
                    "next stages not published", jobs=len(remaining), next_try_in=backoff
                )
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, MAX_BACKOFF)
        return ending

    async def publish_due(self, job_ids: Sequence[str]) -> None:
        """Publish jobs whose wait for others has ended. They are recorded as `pending`, so the
        scheduler publishes those that fail here."""
        if not job_ids:
            return
        ledger = self.attempt_writer.ledger
        try:
            records = [await ledger.job_reads.get(job_id) for job_id in job_ids]
            due = await without_paused(ledger, [each for each in records if each])
            await publish_recorded(self.publisher, ledger, due)
        except LedgerError as error:
            self._log.warning("due jobs left to the scheduler", jobs=len(job_ids), error=str(error))

    async def _record_results(
        self, sent: Sequence[Outgoing], results: Sequence[Result]
    ) -> Refused | None:
        """Record the results of publishing next stages; return the refusal of a full lane, if
        any."""
        accepted: list[str] = []
        refusal: Refused | None = None
        for stage, result in zip(sent, results, strict=True):
            job_id = stage.message.job_id
            if isinstance(result, Accepted):
                accepted.append(job_id)
            elif isinstance(result, LaneFull) and result.dead_lettered:
                self._log.error("next stage overflowed", next_job=job_id)
                await self._mark_overflowed(job_id)
            elif isinstance(result, NeverTaken):
                await self._record_refused_stage(stage, result)
            elif isinstance(result, Refused):
                refusal = result
            else:
                self._log.warning("next stage not published", next_job=job_id, error=str(result))
        if accepted:
            ledger = self.attempt_writer.ledger
            await self.attempt_writer.until_reached(
                lambda: ledger.jobs.mark_queued(accepted, ledger.clock.time())
            )
        return refusal

    async def _record_refused_stage(self, stage: Outgoing, error: NeverTaken) -> None:
        message, ledger = stage.message, self.attempt_writer.ledger
        self._log.error("next stage refused", next_job=message.job_id, error=str(error))
        record = await self.attempt_writer.until_reached(
            partial(ledger.job_reads.get, message.job_id)
        )
        if record is not None:
            letter = refused_letter(record, message, error, ledger.clock.now())
            await self.attempt_writer.until_reached(
                partial(ledger.dead_letters.index_dead, [letter])
            )

    async def _mark_overflowed(self, job_id: str) -> None:
        ledger = self.attempt_writer.ledger
        await self.attempt_writer.until_reached(
            lambda: ledger.jobs.mark_overflowed(job_id, ledger.clock.time())
        )

    async def _retry_for_full_lane(self, job: DeliveredJob, refusal: Refused) -> Delayed:
        delayed = Delayed(
            self.policy.level(LANE_FULL_PAUSE),
            job.message.metadata.attempts,
            not_before=None,
            failure=Failure("LaneFull", str(refusal)),
            counts=False,
        )
        await self._retry(job, delayed)
        return delayed

    # --- retry, dead letter -----------------------------------------------------------------

    async def _retry(self, job: DeliveredJob, delayed: Delayed) -> None:
        message = job.message.with_metadata(
            attempts=delayed.attempts, not_before=delayed.not_before
        )
        level, until = delayed.level, delayed.not_before
        await self._delay(job.delivery, message, level, ages=delayed.ages, until=until)

    async def _dead_letter(self, job: DeliveredJob, died: Died) -> None:
        message = job.message.with_metadata(attempts=died.attempts)
        info = DeadLetterInfo(
            reason=died.reason,
            routing_key=f"{job.delivery.lane}.{message.job_type}",
            queue=job.delivery.queue,
            error_type=died.failure.error_type,
            message=died.failure.message,
            traceback=died.failure.traceback,
            attempts=died.attempts,
            worker=self.worker_id,
            dead_at=self.attempt_writer.ledger.clock.now().isoformat(),
        )
        for body in (None, job.delivery.body):  # the broker has accepted the unchanged body before
            try:
                envelope = envelope_of(message, body=body)
                await self._send_letter(envelope, info.routing_key, info)
            except ValueError as error:
                self._log.warning("dead letter refused", error=str(error))
            else:
                return
        await self._store_letter(job, message, info)

    async def _store_letter(
        self, job: DeliveredJob, message: JobMessage, info: DeadLetterInfo
    ) -> None:
        """Store a dead letter that the broker refuses in the ledger alone."""
        ledger = self.attempt_writer.ledger
        record = await self.attempt_writer.until_reached(
            partial(ledger.job_reads.get, message.job_id)
        )
        if record is not None:
            letter = ledger_only_letter(info, message, job.delivery.body, record)
            await self.attempt_writer.until_reached(
                partial(ledger.dead_letters.index_dead, [letter])
            )

    async def _send_letter(
        self, envelope: Envelope, routing_key: str, info: DeadLetterInfo
    ) -> None:
        """Publish a dead letter, with as much of its DeadLetterInfo as fits into a frame."""
        for each in (info, *info.shortened()):
            try:
                complete = replace(envelope, headers=each.headers())
                await self._send(DEAD_EXCHANGE, routing_key, complete)
            except ValueError as error:
                self._log.warning("dead letter shortened", error=str(error))
            else:
                return
        # Without dead-letter headers, the message must fit.
        await self._send(DEAD_EXCHANGE, routing_key, envelope)

    async def _send(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish, and retry until the broker confirms. Raises NeverTaken."""
        delay = MIN_BACKOFF
        while True:
            try:
                return await self.publisher.send(exchange, routing_key, envelope)
            except NeverTaken:
                raise
            except PublishError as error:
                self._log.warning("publish failed", error=str(error), next_try_in=delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_BACKOFF)


async def record_stages(attempt_writer: AttemptWriter, jobs: Sequence[NewJob]) -> list[NewJob]:
    """Record the next stages, and return those that are due now, without waiting and paused ones. A
    stage that an earlier attempt has recorded keeps its first payload, even if the handler has
    returned another one now: with another payload, it would be a foreign copy. Raises
    RowRejected."""
    ledger = attempt_writer.ledger
    stages = [each.shifted(ledger.clock.offset) for each in jobs]
    answers = await attempt_writer.until_reached(lambda: record_following(ledger, stages))
    due: list[NewJob] = []
    for stage, answer in zip(stages, answers, strict=True):
        if isinstance(answer, Existing):
            recorded = await attempt_writer.until_reached(
                partial(ledger.job_reads.get, answer.job_id)
            )
            message = stage.message
            if recorded is not None and recorded.job_type == message.job_type:
                recorded_message = message.model_copy(update={"payload": recorded.payload})
                stage = replace(stage, message=recorded_message)
        is_held = (isinstance(answer, Created) and answer.paused) or (
            isinstance(answer, Existing) and answer.state is State.PAUSED
        )
        if stage.joins is None and not is_held:
            due.append(stage)
    return due


def _record_of_unsent(
    delivery: Delivery, info: DeadLetterInfo, job: JobMessage | None
) -> DeadLetterRecord:
    """Make the index's record of a dead letter that is in the ledger alone."""
    job_id = None if job is None else job.job_id
    return DeadLetterRecord(
        id=letter_id(job_id, delivery.body),
        job_id=job_id,
        job_type=None if job is None else job.job_type,
        redrives=0 if job is None else job.metadata.redrives,
        attempts=info.attempts,
        reason=str(info.reason),
        dead_at=datetime.fromisoformat(info.dead_at).timestamp(),
        body=delivery.body,
        headers=info.headers(),
        lane=delivery.lane,
        routing_key=delivery.routing_key,
        error_type=info.error_type,
        error_message=info.message,
    )
