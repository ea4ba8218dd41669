"""How an attempt ends: publish what follows, record it, acknowledge the delivery.

The order is the system's promise. What follows from an attempt (next stages, the retry, the dead
letter) is confirmed by the broker before the ledger says so, and the delivery is acknowledged
after that. A crash in between repeats work and loses none; ids made from the job's id, and the
ledger's claim, make the repeat harmless.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import structlog
from pydantic_core import to_json

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.certificate import (
    DeathCertificate,
    Reason,
    letter_id,
    unreadable_properties,
)
from switchyard.broker.errors import LaneFull, PublishError, Refused
from switchyard.broker.lanes import DEAD_EXCHANGE, EVENTS_EXCHANGE, retry_name
from switchyard.broker.message import JobMessage, now
from switchyard.broker.publish.outcome import Accepted, Outgoing, Result, envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.jobs.registry import (
    InvalidPayload,
    Registry,
    UnknownJobType,
)
from switchyard.services.jobs.retry import (
    Decision,
    Delayed,
    Died,
    Failure,
    Policy,
    Succeeded,
)
from switchyard.services.ledger import Ledger
from switchyard.services.ledger.sql.codec import to_json as ledger_json
from switchyard.services.publishing.publisher import InvalidJob, children_of
from switchyard.services.records import (
    AttemptOutcome,
    FinishRequest,
    LedgerUnavailable,
    RowRejected,
    SchemaOutdated,
    State,
)

LANE_FULL_PAUSE = 5.0
"""Seconds after which a job whose next stage found a full lane runs again (no attempt used)."""
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 5.0
"""Seconds between tries to reach a broker or ledger that is away, doubled up to the last."""

T = TypeVar("T")


@dataclass(slots=True)
class Run:
    """One attempt under way."""

    delivery: Delivery
    """What to settle at the end; replaced when the broker sends the job again meanwhile."""
    message: JobMessage
    claim_id: str
    started_at: float
    """Seconds since the epoch."""
    handler: asyncio.Task[None] | None = None
    """The task in which the handler runs, while it does."""
    cancelled: bool = False
    """Somebody asked for the job to be cancelled."""


@dataclass(slots=True)
class Counters:
    """What a worker has done since it started."""

    succeeded: int = 0
    retried: int = 0
    snoozed: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    """Deliveries of jobs that had ended before, or of older copies."""
    returned: int = 0
    hot: int = 0
    """Hot jobs that it has taken."""


@dataclass
class Conclusion:
    """Ends the attempts of one worker."""

    registry: Registry
    ledger: Ledger
    publisher: Publisher
    policy: Policy
    worker_id: str
    on_ledger_away: Callable[[], None]
    """Called when the ledger can't be reached: the worker stops taking jobs until it can."""
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")

    async def conclude(self, run: Run, decision: Decision) -> None:
        """See the attempt to its end: publish, record, acknowledge.

        An end that comes too late, when another worker has taken the job over, does not count.
        """
        if isinstance(decision, Delayed | Died) and not await self._is_ours(run):
            run.delivery.ack()
            return
        match decision:
            case Succeeded():
                decision = await self._publish_next(run, decision)
            case Delayed():
                await self._publish_delayed(run, decision)
            case Died():
                await self._publish_dead(run, decision)
        counts = await self._record(run, decision)
        run.delivery.ack()
        if counts:
            self._report(run, decision)

    async def cancelled(self, run: Run) -> None:
        """The job was called off while it ran: it is never run again."""
        await self._finish(run, State.CANCELLED, outcome=AttemptOutcome.CANCELLED)
        run.delivery.ack()
        self.counters.cancelled += 1
        self._log.info("cancelled")
        self.emit("cancelled", run.message, run.delivery.lane)

    async def release(self, run: Run) -> None:
        """The worker stops: the job goes back as it came, no attempt used up."""
        try:
            await self.ledger.finish(
                self._ending(run, State.QUEUED, outcome=AttemptOutcome.RELEASED)
            )
        except LedgerUnavailable as error:
            # The claim stays; whoever gets the job next sees that this worker is silent.
            self._log.warning("can't record the release", error=str(error))
        run.delivery.requeue()
        self.counters.returned += 1

    async def disown(self, message: JobMessage, claim_id: str) -> None:
        """Give up a claim of this worker under which nothing runs. Raises LedgerUnavailable."""
        orphan = FinishRequest(
            job_id=message.job_id,
            claim_id=claim_id,
            state=State.QUEUED,
            attempts=message.metadata.attempts,
            now=time.time(),
            outcome=AttemptOutcome.RELEASED,
        )
        await self.ledger.finish(orphan)

    async def delay(
        self, delivery: Delivery, message: JobMessage, level: float, *, ages: bool = False
    ) -> None:
        """Send the job through a retry level, back to the queue that it came from. The time there
        does not count towards the age in the lane, unless it `ages`."""
        if not ages:
            message = message.with_metadata(queued_at=now() + timedelta(seconds=level))
        await self._send(retry_name(level), delivery.queue, envelope_of(message))

    async def bury_malformed(self, delivery: Delivery, error: Exception) -> None:
        """Put what is not a valid job into the dead letters, its bytes as they came."""
        await self._bury(
            delivery,
            DeathCertificate(
                reason=Reason.MALFORMED,
                routing_key=delivery.routing_key,
                queue=delivery.queue,
                error_type=type(error).__name__,
                message=str(error),
                worker=self.worker_id,
            ),
        )

    async def bury_unreadable(self, delivery: Delivery) -> None:
        """Put a message whose properties can't be read into the dead letters: its body as it
        came, its properties in a header."""
        await self._bury(delivery, unreadable_properties(delivery, worker=self.worker_id))

    async def _bury(self, delivery: Delivery, certificate: DeathCertificate) -> None:
        envelope = Envelope(
            body=delivery.body,
            message_id=delivery.message_id or letter_id(None, delivery.body),
            priority=delivery.priority,
            timestamp=int(time.time()),
            headers=certificate.headers(),
        )
        await self._send(DEAD_EXCHANGE, delivery.routing_key, envelope)
        delivery.ack()
        self.counters.dead += 1
        self._log.error(
            "malformed",
            queue=delivery.queue,
            message_id=envelope.message_id,
            error_type=certificate.error_type,
            error=certificate.message,
        )

    def emit(self, event: str, message: JobMessage, lane: str) -> None:
        """Tell whoever listens, best effort: `<event>.<lane>.<job_type>` on `jobs.events`."""
        body = to_json(
            {
                "event": event,
                "job_id": message.job_id,
                "job_type": message.job_type,
                "lane": lane,
                "attempt": message.metadata.attempts + 1,
                "worker_id": self.worker_id,
                "at": time.time(),
            }
        )
        envelope = Envelope(body=body, message_id=message.job_id, type=event)
        self.publisher.send_soon(EVENTS_EXCHANGE, f"{event}.{lane}.{message.job_type}", envelope)

    # --- publish ----------------------------------------------------------------------------

    async def _publish_next(self, run: Run, done: Succeeded) -> Decision:
        """Publish the next stages. When a lane refuses one, this job runs again later: what it
        has made is kept, so that is cheap, and a slot never waits for a full lane."""
        try:
            ledger_json(done.result)
            jobs = children_of(self.registry, run.message, run.delivery.lane, done.jobs)
        except (RowRejected, InvalidJob, InvalidPayload, UnknownJobType) as error:
            # A defect of the handler, which no attempt can mend.
            failure = Failure("InvalidOutcome", str(error), permanent=True)
            died = Died(Reason.PERMANENT, run.message.metadata.attempts + 1, failure)
            await self._publish_dead(run, died)
            return died
        if not jobs:
            return done
        await self._until_reached(lambda: self.ledger.record_many(jobs))
        left = [Outgoing(job.message, job.routing_key) for job in jobs]
        backoff = FIRST_BACKOFF
        while left:
            results = await self.publisher.publish_many(left)
            full = await self._note_published(left, results)
            if full is not None:
                return await self._delay_for_full_lane(run, full)
            left = [
                outgoing
                for outgoing, result in zip(left, results, strict=True)
                if isinstance(result, PublishError) and not isinstance(result, LaneFull)
            ]
            if left:
                self._log.warning("publish again", jobs=len(left), next_try_in=backoff)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)
        return done

    async def _note_published(
        self, sent: Sequence[Outgoing], results: Sequence[Result]
    ) -> Refused | None:
        """Record what became of next stages; the refusal of a lane that kept nothing."""
        accepted: list[str] = []
        full: Refused | None = None
        for outgoing, result in zip(sent, results, strict=True):
            job_id = outgoing.message.job_id
            if isinstance(result, Accepted):
                accepted.append(job_id)
            elif isinstance(result, LaneFull) and result.dead_lettered:
                self._log.error("next stage overflowed", next_job=job_id)
                await self._mark_overflowed(job_id)
            elif isinstance(result, Refused):
                full = result
            else:
                self._log.warning("not published", next_job=job_id, error=str(result))
        if accepted:
            await self._until_reached(lambda: self.ledger.mark_queued(accepted, time.time()))
        return full

    async def _mark_overflowed(self, job_id: str) -> None:
        await self._until_reached(lambda: self.ledger.mark_overflowed(job_id, time.time()))

    async def _delay_for_full_lane(self, run: Run, full: Refused) -> Delayed:
        delayed = Delayed(
            self.policy.level(LANE_FULL_PAUSE),
            run.message.metadata.attempts,
            not_before=None,
            failure=Failure("LaneFull", str(full)),
            counts=False,
        )
        await self._publish_delayed(run, delayed)
        return delayed

    async def _publish_delayed(self, run: Run, delayed: Delayed) -> None:
        message = run.message.with_metadata(
            attempts=delayed.attempts, not_before=delayed.not_before
        )
        await self.delay(run.delivery, message, delayed.level, ages=delayed.ages)

    async def _publish_dead(self, run: Run, died: Died) -> None:
        message = run.message.with_metadata(attempts=died.attempts)
        certificate = DeathCertificate(
            reason=died.reason,
            routing_key=f"{run.delivery.lane}.{message.job_type}",
            queue=run.delivery.queue,
            error_type=died.failure.error_type,
            message=died.failure.message,
            traceback=died.failure.traceback,
            attempts=died.attempts,
            worker=self.worker_id,
        )
        envelope = envelope_of(message, certificate.headers())
        await self._send(DEAD_EXCHANGE, certificate.routing_key, envelope)

    async def _send(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish, and again for as long as the broker does not confirm it."""
        delay = FIRST_BACKOFF
        while True:
            try:
                return await self.publisher.send(exchange, routing_key, envelope)
            except PublishError as error:
                self._log.warning("publish again", error=str(error), next_try_in=delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_BACKOFF)

    # --- record -----------------------------------------------------------------------------

    async def _is_ours(self, run: Run) -> bool:
        """Whether the claim still holds. Asked before a retry or a dead letter is published,
        which nothing could take back; the end itself the ledger checks on its own."""
        record = await self._until_reached(lambda: self.ledger.get(run.message.job_id))
        if record is None or record.claim_id == run.claim_id:
            return True
        self._log.warning("another worker had taken over", worker_id=record.worker_id)
        return False

    async def _record(self, run: Run, decision: Decision) -> bool:
        match decision:
            case Succeeded():
                return await self._finish(run, State.SUCCEEDED, decision=decision)
            case Delayed():
                outcome = AttemptOutcome.RETRY if decision.counts else AttemptOutcome.SNOOZE
                return await self._finish(run, State.RETRYING, decision=decision, outcome=outcome)
            case Died():
                outcome = AttemptOutcome.DEAD
                return await self._finish(run, State.DEAD, decision=decision, outcome=outcome)

    async def _finish(
        self,
        run: Run,
        state: State,
        *,
        decision: Decision | None = None,
        outcome: AttemptOutcome | None = None,
    ) -> bool:
        """False when it does not count: another worker has taken the job over."""
        request = self._ending(run, state, decision=decision, outcome=outcome)
        counts = await self._until_reached(lambda: self.ledger.finish(request))
        if not counts:
            self._log.warning("another worker had taken over", state=str(state))
        return counts

    def _ending(
        self,
        run: Run,
        state: State,
        *,
        decision: Decision | None = None,
        outcome: AttemptOutcome | None = None,
    ) -> FinishRequest:
        failure = decision.failure if isinstance(decision, Delayed | Died) else None
        attempts = run.message.metadata.attempts
        return FinishRequest(
            job_id=run.message.job_id,
            claim_id=run.claim_id,
            state=state,
            attempts=decision.attempts if isinstance(decision, Delayed | Died) else attempts,
            now=time.time(),
            result=decision.result if isinstance(decision, Succeeded) else None,
            reason=str(decision.reason) if isinstance(decision, Died) else None,
            error_type=failure.error_type if failure else None,
            error_message=failure.message if failure else None,
            outcome=outcome,
        )

    async def _until_reached(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write to the ledger, and again for as long as it is away: the work is done, and what
        came of it must not be lost."""
        delay = FIRST_BACKOFF
        while True:
            try:
                return await write()
            except (LedgerUnavailable, SchemaOutdated) as error:
                self._log.warning("ledger away", error=str(error), next_try_in=delay)
                self.on_ledger_away()
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_BACKOFF)

    # --- report -----------------------------------------------------------------------------

    def _report(self, run: Run, decision: Decision) -> None:
        lane = run.delivery.lane
        match decision:
            case Succeeded():
                self.counters.succeeded += 1
                self._log.debug("succeeded", seconds=round(time.time() - run.started_at, 3))
                self.emit("succeeded", run.message, lane)
            case Delayed():
                self.counters.retried += decision.counts
                self.counters.snoozed += not decision.counts
                self._log.warning(
                    "retried" if decision.counts else "snoozed",
                    delay=decision.level,
                    error_type=decision.failure.error_type,
                    error=decision.failure.message,
                )
                self.emit("retrying", run.message, lane)
            case Died():
                self.counters.dead += 1
                self._log.error(
                    "dead",
                    reason=str(decision.reason),
                    error_type=decision.failure.error_type,
                    error=decision.failure.message,
                )
                self.emit("dead", run.message, lane)
