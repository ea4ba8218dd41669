"""One delivery, from the queue to its end: the pipeline that every job goes through.

decode → check age → claim → run → decide → publish → record → acknowledge

The last three are `services.conclusion`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import structlog
from pydantic import BaseModel

from broker.dead import Reason
from broker.delivery import Delivery
from broker.errors import MalformedMessage
from broker.lanes import LANES, Lane, lane_named
from broker.message import JobMessage, now
from services.conclusion import Conclusion, Run
from services.context import JobContext
from services.execution import Executor
from services.ledger import Claimed, ClaimRequest, HeldBy, Ledger, LedgerUnavailable
from services.registry import InvalidPayload, JobType, Registry, UnknownJobType
from services.retry import MAX_CRASHES, Died, Failure, decide
from services.settings import Settings


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
    runs: dict[str, Run] = field(default_factory=dict)
    """Attempts under way, by job id."""

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")

    async def handle(self, delivery: Delivery) -> None:
        """See it through to its end. Settles the delivery in every case."""
        try:
            message = JobMessage.decode(delivery.body)
            job_type = self.registry.get(message.job_type)
            payload = job_type.validate(message.payload)
        except (MalformedMessage, UnknownJobType, InvalidPayload) as error:
            await self.conclusion.bury_malformed(delivery, error)
            return
        structlog.contextvars.bind_contextvars(
            job_id=message.job_id,
            job_type=message.job_type,
            attempt=message.metadata.attempts + 1,
        )
        try:
            await self._handle(delivery, message, job_type, payload)
        except LedgerUnavailable as error:
            self._log.warning("ledger away", error=str(error))
            self._return(delivery)
            self.conclusion.on_ledger_away()

    def cancel(self, job_id: str) -> bool:
        """Stop a job that runs here. False when it does not."""
        run = self.runs.get(job_id)
        if run is None or run.handler is None:
            return False
        run.cancelled = True
        run.handler.cancel()
        return True

    async def _handle(
        self, delivery: Delivery, message: JobMessage, job_type: JobType, payload: BaseModel
    ) -> None:
        moment = now()
        if await self._waits_on(delivery, message, moment):
            return
        run = await self._claim(delivery, message)
        if run is None:
            return
        self.runs[message.job_id] = run
        try:
            if self._is_expired(delivery.lane, message, moment):
                too_old = Failure("Expired", "it waited longer than its lane or its job allows")
                died = Died(Reason.EXPIRED, message.metadata.attempts, too_old)
                await self.conclusion.conclude(run, died)
            else:
                await self._run(run, job_type, payload)
        finally:
            del self.runs[message.job_id]

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

    def _is_expired(self, lane: str, message: JobMessage, moment: datetime) -> bool:
        # The broker's TTL only takes messages at the head of a queue: an old one can hide
        # behind younger ones of higher priority.
        expires_at = message.metadata.expires_at
        if expires_at is not None and expires_at <= moment:
            return True
        entered = message.metadata.queued_at or message.metadata.created_at
        return moment - entered > timedelta(seconds=lane_named(lane, self.lanes).ttl_seconds)

    # --- claim ------------------------------------------------------------------------------

    async def _claim(self, delivery: Delivery, message: JobMessage) -> Run | None:
        """The run that is ours now, or None when the delivery is settled without one."""
        request = ClaimRequest(
            message=message,
            lane=delivery.lane,
            worker=self.worker,
            routing_key=f"{delivery.lane}.{message.job_type}",
            worker_id=self.worker_id,
            claim_id=uuid4().hex,
            now=time.time(),
        )
        claim = await self.ledger.claim(request)
        if isinstance(claim, HeldBy):
            if claim.worker_id == self.worker_id:
                self._adopt(delivery, message)
                return None
            if not await self._has_fallen_silent(claim.worker_id):
                self._log.info("runs elsewhere", worker_id=claim.worker_id)
                await self.conclusion.delay(delivery, message, self.conclusion.policy.levels[0])
                delivery.ack()
                return None
            claim = await self.ledger.claim(replace(request, takeover_from=claim.claim_id))
        if isinstance(claim, HeldBy):
            self._return(delivery)  # another worker took it over more quickly
            return None
        if not isinstance(claim, Claimed):
            self.conclusion.counters.skipped += 1
            self._log.info("skipped", why=str(claim))
            delivery.ack()
            return None
        run = Run(delivery, message, request.claim_id, request.now)
        if claim.crashes >= MAX_CRASHES:
            killer = Failure("WorkerCrashed", f"its worker died {claim.crashes} times")
            died = Died(Reason.CRASHED, message.metadata.attempts, killer)
            await self.conclusion.conclude(run, died)
            return None
        return run

    def _adopt(self, delivery: Delivery, message: JobMessage) -> None:
        """The broker sent again what runs here (the connection was lost): keep running, and
        settle the new delivery at the end instead of the lost one."""
        run = self.runs.get(message.job_id)
        if run is not None and run.delivery.is_lost:
            run.delivery = delivery
        else:
            self._return(delivery)

    def _return(self, delivery: Delivery) -> None:
        self.conclusion.counters.returned += 1
        delivery.requeue()

    async def _has_fallen_silent(self, worker_id: str) -> bool:
        """Whether a worker shows no sign of life for `takeover_after` seconds, from now on.

        Watching its counter needs no clock that two hosts agree on, and no lease that is either
        too long to recover quickly or too short for a busy ledger.
        """
        before = await self.ledger.worker_beat(worker_id)
        if before is None:
            return True
        await asyncio.sleep(self.settings.takeover_after)
        return await self.ledger.worker_beat(worker_id) == before

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
            if run.cancelled:
                await self.conclusion.cancelled(run)
                return
            await self.conclusion.release(run)
            raise
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
