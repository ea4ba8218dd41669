"""One delivery, from the queue to its end: the pipeline that every job goes through.

decode → check age → claim → run → decide → publish → record → acknowledge

The last three are `services.runtime.conclusion`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import structlog
from pydantic import BaseModel

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.certificate import Reason
from switchyard.broker.errors import MalformedMessage
from switchyard.broker.lanes import HOT, LANES, Lane, lane_named
from switchyard.broker.message import JobMessage, now
from switchyard.services.jobs.context import JobContext
from switchyard.services.jobs.registry import (
    InvalidPayload,
    JobType,
    Registry,
    UnknownJobType,
)
from switchyard.services.jobs.retry import MAX_CRASHES, Delayed, Died, Failure, decide
from switchyard.services.ledger import Ledger
from switchyard.services.records import (
    UNKNOWN_TYPE,
    Claimed,
    ClaimRequest,
    HeldBy,
    LedgerError,
    RowRejected,
)
from switchyard.services.runtime.conclusion import Conclusion, Run
from switchyard.services.runtime.execution import Executor
from switchyard.services.settings import Settings

PROBATION = 2.0
"""Seconds in which a job that was taken from a dead worker may kill this one, too, before the
next such job is started beside it."""


Task = tuple[JobType, BaseModel]
"""A job type and the payload for it."""


class Suspects:
    """Lets one job at a time start of those whose worker has died.

    Any of them may have killed it. The one that does so again takes no other suspect with it,
    whose second crash would count as proof.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._job_id: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, job_id: str) -> None:
        """Wait until the job may be taken over."""
        await self._turn.acquire()
        self._job_id = job_id
        self._timer = asyncio.get_running_loop().call_later(PROBATION, self.leave, job_id)

    def leave(self, job_id: str) -> None:
        """It has ended, or has run for long enough; any other call does nothing."""
        if self._job_id == job_id and self._timer is not None:
            self._timer.cancel()
            self._job_id = self._timer = None
            self._turn.release()


@dataclass
class Runner:
    """Handles the deliveries of one kind of worker."""

    settings: Settings
    registry: Registry
    ledger: Ledger
    executor: Executor
    conclusion: Conclusion
    worker: str
    """The kind of worker."""
    worker_id: str
    lanes: tuple[Lane, ...] = LANES
    suspects: Suspects = field(default_factory=Suspects)
    """Shared by all runners of a process."""
    runs: dict[str, Run] = field(default_factory=dict)
    """Attempts under way, by job id."""

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")
        self._claims = count(1)
        self._open_claims: set[str] = set()
        """Claims that were asked for here and have not come to their end."""

    async def handle(self, delivery: Delivery) -> None:
        """See it through to its end. Settles the delivery in every case.

        Cancelling this call (the worker gives up) sends the job back, no attempt used up.
        """
        if delivery.unreadable:
            await self.conclusion.bury_unreadable(delivery)
            return
        try:
            message = JobMessage.decode(delivery.body)
            task = self._task_of(message)
        except (MalformedMessage, InvalidPayload) as error:
            await self.conclusion.bury_malformed(delivery, error)
            return
        structlog.contextvars.bind_contextvars(
            job_id=message.job_id,
            job_type=message.job_type,
            attempt=message.metadata.attempts + 1,
        )
        try:
            await self._handle(delivery, message, task)
        except LedgerError as error:
            self._log.warning("ledger away", error=str(error))
            self.conclusion.counters.returned += 1
            delivery.requeue()
            self.conclusion.on_ledger_away()
        finally:
            self.suspects.leave(message.job_id)

    def cancel(self, job_id: str) -> bool:
        """Stop a job that runs here. False when it does not."""
        run = self.runs.get(job_id)
        if run is None or run.handler is None:
            return False
        run.cancelled = True
        run.handler.cancel()
        return True

    def interrupt(self) -> None:
        """Stop every handler that runs; its job goes back, and no attempt is used up. What
        follows from a handler that has ended is still seen through."""
        for run in self.runs.values():
            if run.handler is not None:
                run.handler.cancel()

    def _task_of(self, message: JobMessage) -> Task | None:
        """What to run; None for a type that only other workers know. Raises InvalidPayload."""
        try:
            job_type = self.registry.get(message.job_type)
        except UnknownJobType:
            return None
        return job_type, job_type.validate(message.payload)

    async def _handle(self, delivery: Delivery, message: JobMessage, task: Task | None) -> None:
        moment = now()
        if await self._waits_on(delivery, message, moment):
            return
        request = self._claim_request(delivery, message)
        self._open_claims.add(request.claim_id)
        try:
            crashes = await self._claim(delivery, request)
            if crashes is None:
                return
            if delivery.lane == HOT.name:
                self.conclusion.counters.hot += 1
            run = Run(delivery, message, request.claim_id, request.now)
            self.runs[message.job_id] = run
            try:
                if crashes >= MAX_CRASHES:
                    killer = Failure("WorkerCrashed", f"its worker died {crashes} times")
                    await self._give_up(run, Reason.CRASHED, killer)
                elif self._expiry(delivery.lane, message) <= moment:
                    age = "it waited longer than its lane or its job allows"
                    if task is None:
                        age += f"; {self._unknown(message)}"
                    await self._give_up(run, Reason.EXPIRED, Failure("Expired", age))
                elif task is None:
                    await self._send_on(run, moment)
                else:
                    await self._run(run, *task)
            except asyncio.CancelledError:
                await self.conclusion.release(run)
                raise
            finally:
                del self.runs[message.job_id]
        finally:
            self._open_claims.discard(request.claim_id)

    async def _give_up(self, run: Run, reason: Reason, failure: Failure) -> None:
        died = Died(reason, run.message.metadata.attempts, failure)
        await self.conclusion.conclude(run, died)

    # --- age --------------------------------------------------------------------------------

    async def _waits_on(self, delivery: Delivery, message: JobMessage, moment: datetime) -> bool:
        """Send back what has come before its time (a Retry-After longer than any level)."""
        not_before = message.metadata.not_before
        if not_before is None or not_before <= moment:
            return False
        level = self.conclusion.policy.level((not_before - moment).total_seconds())
        await self.conclusion.delay(delivery, message, level)
        delivery.ack()
        return True

    def _expiry(self, lane: str, message: JobMessage) -> datetime:
        """When it is too old to be started."""
        # The broker's TTL only takes messages at the head of a queue: an old one can hide
        # behind younger ones of higher priority.
        metadata = message.metadata
        entered = metadata.queued_at or metadata.created_at
        ends = entered + timedelta(seconds=lane_named(lane, self.lanes).ttl_seconds)
        return ends if metadata.expires_at is None else min(ends, metadata.expires_at)

    # --- a type that others know ------------------------------------------------------------

    async def _send_on(self, run: Run, moment: datetime) -> None:
        """Give the job to a worker that knows its type, as in a rolling deploy: through a retry
        level, a longer one each time, as this worker may be the next to get it again. No attempt
        is used up; but it grows older in its lane, so that it ends where nobody knows it."""
        times = run.message.metadata.sent_on + 1
        run.message = run.message.with_metadata(sent_on=times)
        policy = self.conclusion.policy
        left = (self._expiry(run.delivery.lane, run.message) - moment).total_seconds()
        delayed = Delayed(
            policy.level(min(policy.backoff(times), left)),
            run.message.metadata.attempts,
            not_before=None,
            failure=Failure(UNKNOWN_TYPE, self._unknown(run.message)),
            counts=False,
            ages=True,
        )
        await self.conclusion.conclude(run, delayed)

    def _unknown(self, message: JobMessage) -> str:
        return (
            f"worker {self.worker_id} ({self.worker}) does not know the job type "
            f"{message.job_type!r}: name its module in JOBS_MODULES or with --include"
        )

    # --- claim ------------------------------------------------------------------------------

    def _claim_request(self, delivery: Delivery, message: JobMessage) -> ClaimRequest:
        return ClaimRequest(
            message=message,
            lane=delivery.lane,
            worker=self.worker,
            routing_key=f"{delivery.lane}.{message.job_type}",
            worker_id=self.worker_id,
            claim_id=f"{self.worker_id}/{next(self._claims)}",
            now=time.time(),
        )

    async def _claim(self, delivery: Delivery, request: ClaimRequest) -> int | None:
        """How often the job has killed a worker, now that it is ours; None when the delivery is
        settled without a run."""
        message = request.message
        try:
            claim = await self.ledger.claim(request)
        except RowRejected as error:
            await self.conclusion.bury_malformed(delivery, error)
            return None
        if isinstance(claim, HeldBy):
            if claim.worker_id == self.worker_id and claim.claim_id in self._open_claims:
                await self._adopt(delivery, message)
                return None
            if claim.worker_id == self.worker_id:
                # A claim of ours whose answer was lost: nothing runs under it.
                await self.conclusion.disown(message, claim.claim_id)
            elif await self._has_fallen_silent(claim.worker_id):
                await self.suspects.enter(message.job_id)
                request = replace(request, takeover_from=claim.claim_id, now=time.time())
            else:
                await self._wait_for_holder(delivery, message, claim)
                return None
            claim = await self.ledger.claim(request)
        if isinstance(claim, HeldBy):  # another worker took it over more quickly
            await self._wait_for_holder(delivery, message, claim)
            return None
        if not isinstance(claim, Claimed):
            self.conclusion.counters.skipped += 1
            self._log.info("skipped", why=str(claim))
            delivery.ack()
            return None
        return claim.crashes

    async def _adopt(self, delivery: Delivery, message: JobMessage) -> None:
        """The broker sent again what runs here (the connection was lost): keep running, and
        settle the new delivery at the end instead of the lost one."""
        run = self.runs.get(message.job_id)
        # Not the retry that this very run has just published: acknowledged, it would be lost.
        same = run is not None and run.message.generation == message.generation
        if run is not None and same and run.delivery.is_lost:
            run.delivery = delivery
        else:
            await self._look_again_later(delivery, message)

    async def _wait_for_holder(
        self, delivery: Delivery, message: JobMessage, holder: HeldBy
    ) -> None:
        self._log.info("runs elsewhere", worker_id=holder.worker_id)
        await self._look_again_later(delivery, message)

    async def _look_again_later(self, delivery: Delivery, message: JobMessage) -> None:
        """A copy of a job that runs: by the time it is back, the run may have ended. Returned
        to its queue it would be back at once, over and over."""
        await self.conclusion.delay(delivery, message, self.conclusion.policy.levels[0])
        delivery.ack()

    async def _has_fallen_silent(self, worker_id: str) -> bool:
        """Whether a worker shows no sign of life for `takeover_after` seconds, from now on.

        Watching its counter needs no clock that two hosts agree on, and no lease that is either
        too long to recover quickly or too short for a busy ledger.
        """
        before = await self.ledger.worker_beat(worker_id)
        if before is None:
            return True
        await asyncio.sleep(self.settings.takeover_after)
        return await self.ledger.worker_beat(worker_id) in (before, None)

    # --- run --------------------------------------------------------------------------------

    async def _run(self, run: Run, job_type: JobType, payload: BaseModel) -> None:
        message = run.message
        self.conclusion.emit("started", message, run.delivery.lane)
        ctx = JobContext(
            message=message,
            lane=run.delivery.lane,
            worker_id=self.worker_id,
            settings=self.settings,
            ledger=self.ledger,
            is_cancelled=lambda: run.cancelled,
        )
        # Only the handler may be cancelled: what follows from it must be seen through.
        run.handler = asyncio.current_task()
        try:
            ended: Any = await self.executor.run(job_type, payload, ctx)
        except asyncio.CancelledError:
            if not run.cancelled:
                raise
            if run.handler is not None:
                run.handler.uncancel()
            await self.conclusion.cancelled(run)
            return
        finally:
            run.handler = None
        decision = decide(
            ended,
            attempts=message.metadata.attempts,
            max_attempts=message.metadata.max_attempts,
            policy=self.conclusion.policy,
            now=now(),
        )
        await self.conclusion.conclude(run, decision)
