"""Claim jobs: the ledger grants the right to run a job to one delivery at a time.

A delivery that must not run now is settled here: skipped when its job has ended, delayed when the
job runs already or is not due yet, adopted when the job runs in this worker.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count

import structlog

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.errors import ForeignCopy
from switchyard.broker.lanes import HOT, LANES, Lane
from switchyard.broker.message import JobMessage
from switchyard.services.common.durations import MAX_RETRY_DELAY
from switchyard.services.engine.jobs.retry import Delayed, Failure
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import RowRejected
from switchyard.services.engine.records.requests import ClaimRequest
from switchyard.services.engine.records.results import (
    Claimed,
    HeldByPause,
    HeldByWorker,
    IdCollision,
    Suspect,
)
from switchyard.services.engine.runtime.attempt_endings import end_expired
from switchyard.services.engine.runtime.attempt_reporter import Counters
from switchyard.services.engine.runtime.attempt_writer import AttemptWriter
from switchyard.services.engine.runtime.followups import FollowUpPublisher
from switchyard.services.engine.runtime.running_job import DeliveredJob
from switchyard.services.engine.runtime.suspect_slots import SuspectSlots

MAX_KNOWN_BEATS = 1_000
"""Heartbeats of other workers that are remembered."""
MAX_WAIT = timedelta(seconds=MAX_RETRY_DELAY)
"""The longest wait for which this system delays a job."""


@dataclass
class Claims:
    """Requests and closes the claims of one kind of worker."""

    ledger: Ledger
    attempt_writer: AttemptWriter
    follow_up: FollowUpPublisher
    counters: Counters
    worker: str
    """The kind of worker."""
    worker_id: str
    takeover_after: float
    """Seconds of silence after which a worker counts as dead."""
    suspects: SuspectSlots
    lanes: tuple[Lane, ...] = LANES
    running: dict[str, DeliveredJob] = field(default_factory=dict)
    """Attempts under way, by job id."""
    claim_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a claim is requested: heartbeats are sent often from then on."""

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")
        self._numbers = count(1)
        self._ttls = {lane.name: timedelta(seconds=lane.ttl_seconds) for lane in self.lanes}
        self._open: set[str] = set()
        """Ids of the claims that this worker has requested and not yet closed."""
        self._known_beats: dict[str, tuple[int, float]] = {}
        """By claim of another worker: the number of that worker's last known heartbeat, and since
        when it is known, on the monotonic clock."""

    async def claim(
        self,
        delivery: Delivery,
        message: JobMessage,
        *,
        unknown_type: Failure | None,
        is_isolated: bool = False,
    ) -> DeliveredJob | None:
        """Claim the job of a delivery, until `close`; None when the delivery is settled instead.

        `unknown_type` is the failure of a job whose type this worker does not have. Such a job, and
        one that is too old, is claimed with a verdict and not run. `is_isolated`: each of its runs
        has a process of its own, suspect or not.

        Raises LedgerError.
        """
        now = self.ledger.clock.now()
        not_before = message.metadata.not_before
        if not_before is not None and now < not_before <= now + MAX_WAIT:
            # The wait is longer than the longest retry level: delay the job again for the rest. A
            # wait longer than MAX_WAIT was not set by this system, and is ignored.
            await self._delay_again(delivery, message, (not_before - now).total_seconds())
            return None
        request = self._request(delivery, message, defers_suspects=not is_isolated)
        self._open.add(request.claim_id)
        self.claim_requested.set()
        job: DeliveredJob | None = None
        try:
            claim = await self._claim_in_ledger(delivery, request)
            if claim is not None:
                job = await DeliveredJob.from_claim(self.ledger, request, claim, delivery=delivery)
                if job.verdict is None:
                    self._set_verdict(job, now, unknown_type)
                self.running[message.job_id] = job
                self.counters.hot += delivery.lane == HOT.name
            return job
        finally:
            if job is None:
                self._open.discard(request.claim_id)
            if job is None or is_isolated:
                self.suspects.give_back(request.claim_id)

    def startable_until(self, delivery: Delivery, message: JobMessage) -> float | None:
        """Return until when the job may be started, in seconds since the epoch; None when it is too
        old or not due yet."""
        now = self.ledger.clock.now()
        not_before = message.metadata.not_before
        expiry = self._expiry(delivery.lane, message, now)
        if (not_before is not None and not_before > now) or expiry <= now:
            return None
        return expiry.timestamp()

    def holds(self, job_id: str, claim_id: str) -> bool:
        """Tell whether the job runs here, or is about to run under that claim."""
        return job_id in self.running or claim_id in self._open

    @property
    def has_open(self) -> bool:
        """Whether any claim is open: a job runs here, or is about to."""
        return bool(self._open)

    def close(self, job: DeliveredJob) -> None:
        """End the claim of a job whose attempt is over."""
        del self.running[job.message.job_id]
        self._open.discard(job.claim_id)
        self.suspects.give_back(job.claim_id)

    def _request(
        self, delivery: Delivery, message: JobMessage, *, defers_suspects: bool
    ) -> ClaimRequest:
        return ClaimRequest(
            message=message,
            lane=delivery.lane,
            worker=self.worker,
            routing_key=f"{delivery.lane}.{message.job_type}",
            worker_id=self.worker_id,
            claim_id=f"{self.worker_id}/{next(self._numbers)}",
            now=self.ledger.clock.time(),
            defers_suspects=defers_suspects,
        )

    async def _claim_in_ledger(self, delivery: Delivery, request: ClaimRequest) -> Claimed | None:
        """Ask the ledger for the claim; None when the delivery is settled without a run."""
        message = request.message
        try:
            claim = await self.ledger.jobs.claim(request)
        except RowRejected as error:
            await self._dead_letter(delivery, error)
            return None
        if isinstance(claim, HeldByWorker):
            if claim.worker_id == self.worker_id and claim.claim_id in self._open:
                await self._adopt(delivery, message)
                return None
            if claim.worker_id == self.worker_id:
                # Our own claim, whose answer was lost: nothing runs under it.
                await self.attempt_writer.release_claim(message, claim.claim_id)
            elif await self._has_fallen_silent(claim, delivery.lane, request.claim_id):
                request = replace(
                    request,
                    takeover_from=claim.claim_id,
                    now=self.ledger.clock.time(),
                    defers_suspects=request.defers_suspects
                    and not self.suspects.holds(request.claim_id),
                )
            else:
                await self._wait_for_holder(delivery, message, claim)
                return None
            claim = await self.ledger.jobs.claim(request)
        if isinstance(claim, Suspect):
            if not self.suspects.take(delivery.lane, request.claim_id):
                self._log.info("suspect waits", crashes=claim.crashes)
                await self._delay_shortly(delivery, message)
                return None
            request = replace(request, takeover_from=None, defers_suspects=False)
            claim = await self.ledger.jobs.claim(request)
        if isinstance(claim, HeldByWorker):  # another worker took it over more quickly
            await self._wait_for_holder(delivery, message, claim)
            return None
        if isinstance(claim, IdCollision):
            await self._dead_letter(delivery, ForeignCopy(message.job_id))
            return None
        if isinstance(claim, HeldByPause):
            self._log.info("job paused", pause=claim.by)
            delivery.ack()
            return None
        if not isinstance(claim, Claimed):
            self.counters.skipped += 1
            self._log.info("job skipped", reason=type(claim).__name__, detail=str(claim))
            delivery.ack()
            return None
        return claim

    async def _dead_letter(self, delivery: Delivery, error: Exception) -> None:
        await self.follow_up.dead_letter_malformed(delivery, error)
        delivery.ack()
        self.counters.count_malformed()

    async def _adopt(self, delivery: Delivery, message: JobMessage) -> None:
        """Adopt a job that runs here and was delivered again after the connection was lost: at its
        end, the new delivery is settled instead of the lost one."""
        job = self.running.get(message.job_id)
        # A delivery of another generation is the retry that this run has published; settling it
        # with this run would lose it.
        is_same_generation = job is not None and job.message.generation == message.generation
        if job is not None and is_same_generation and job.delivery.is_lost:
            job.delivery = delivery
        else:
            await self._delay_shortly(delivery, message)

    async def _wait_for_holder(
        self, delivery: Delivery, message: JobMessage, holder: HeldByWorker
    ) -> None:
        self._log.info("job runs elsewhere", worker_id=holder.worker_id)
        await self._delay_shortly(delivery, message)

    async def _delay_again(self, delivery: Delivery, message: JobMessage, seconds: float) -> None:
        """Send the job through the retry level for `seconds`, or the longest level. `ages`, because
        `queued_at` was set when the wait began, and must stay."""
        level = self.follow_up.policy.first_level(seconds)
        await self.follow_up.delay(delivery, message, level, ages=True)
        delivery.ack()

    async def _delay_shortly(self, delivery: Delivery, message: JobMessage) -> None:
        """Send a copy of a job that runs, or a suspect, through the shortest retry level: by the
        time it is back, the run may have ended. Requeued, it would be back at once, over and
        over."""
        await self.follow_up.delay(delivery, message, self.follow_up.policy.levels[0])
        delivery.ack()

    async def _has_fallen_silent(self, holder: HeldByWorker, lane: str, claim_id: str) -> bool:
        """Tell whether a job's worker has sent no heartbeat for `takeover_after` seconds.

        Waits for that long if one more slot may be held by a suspect. Otherwise, remembers the
        heartbeat and returns False: the job comes back later, and is compared with it.

        Heartbeats are counted, so two hosts need not agree on the time, and no lease has to be
        long enough for a busy ledger and short enough for a quick takeover. A worker that runs a
        job sends heartbeats often, so a remembered one is valid for as long as the claim is held.
        """
        now = time.monotonic()
        beat = await self.ledger.workers.worker_beat(holder.worker_id)
        if beat is None:
            return True
        known, since = self._known_beats.get(holder.claim_id, (beat, now))
        if known != beat:
            since = now
        left = since + self.takeover_after - now
        if left > 0 and not self.suspects.take(lane, claim_id):
            self._note_beat(holder.claim_id, beat, since)
            return False
        if left > 0:
            await asyncio.sleep(left)
            return await self.ledger.workers.worker_beat(holder.worker_id) in (beat, None)
        return True

    def _note_beat(self, claim_id: str, beat: int, since: float) -> None:
        if claim_id not in self._known_beats and len(self._known_beats) >= MAX_KNOWN_BEATS:
            del self._known_beats[next(iter(self._known_beats))]  # the oldest
        self._known_beats[claim_id] = beat, since

    # --- too old, or of an unknown type ------------------------------------------------------

    def _set_verdict(self, job: DeliveredJob, now: datetime, unknown_type: Failure | None) -> None:
        """Set the verdict of a job that is too old, or whose type this worker does not have."""
        expiry = self._expiry(job.lane, job.message, now)
        if expiry <= now:
            detail = "" if unknown_type is None else f"; {unknown_type.message}"
            job.verdict = end_expired(job.message, detail)
        elif unknown_type is not None:
            self._pass_on(job, now, (expiry - now).total_seconds(), unknown_type)

    def _expiry(self, lane: str, message: JobMessage, now: datetime) -> datetime:
        """Return the time from which the job is too old to be started."""
        # The broker's TTL only removes messages at the head of a queue: an old message may be
        # behind younger ones of higher priority.
        metadata = message.metadata
        # Not `created_at`, which may be by the wrong clock of a foreign publisher.
        entered = metadata.queued_at or now
        expires_at = entered + self._ttls[lane]
        return expires_at if metadata.expires_at is None else min(expires_at, metadata.expires_at)

    def _pass_on(
        self, job: DeliveredJob, now: datetime, seconds_left: float, unknown_type: Failure
    ) -> None:
        """Pass the job on to a worker that has its type, as in a rolling deploy. It goes through a
        retry level, each time a longer one, as this worker may get it again. No attempt is used,
        but the job ages, so it expires in `seconds_left` seconds if no worker has its type."""
        metadata = job.message.metadata
        sent_on = metadata.sent_on + 1
        job.message = job.message.with_metadata(
            sent_on=sent_on, queued_at=metadata.queued_at or now
        )
        policy = self.follow_up.policy
        job.verdict = Delayed(
            policy.level(min(policy.backoff(sent_on), seconds_left)),
            job.message.metadata.attempts,
            not_before=None,
            failure=unknown_type,
            counts=False,
            ages=True,
        )
