"""Room in the named limits of a job, before it is claimed.

A job without room goes into the longest retry level, with no attempt used up, and grows older in
its lane meanwhile. It keeps its place in the ledger: whoever makes room calls those that wait
longest, which is to send a copy of the job ahead of its queue; the scheduler calls where time makes
room. The copy in the retry level comes later, and is skipped by the rules that hold for every copy.
So a call that gets lost costs time and no job.

Job types without limits pass without a word to the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import structlog
from pydantic import BaseModel
from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.certificate import Reason
from switchyard.broker.errors import PublishError
from switchyard.broker.message import MAX_PRIORITY, JobMessage
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.common.instance import new_instance_id
from switchyard.services.common.settings import LimitNumbers
from switchyard.services.engine.jobs.context import Usage
from switchyard.services.engine.jobs.limits import LimitRefused, needs_of
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.jobs.retry import Delayed, Died, Failure
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.limits import (
    PermitDemand,
    PermitGranted,
    PermitRefused,
    PermitRequest,
    RoomAnswer,
    WokenJob,
)
from switchyard.services.engine.runtime.events import Counters
from switchyard.services.engine.runtime.followups import FollowUpPublisher
from switchyard.services.engine.runtime.permit_batching import PermitRequestBatcher
from switchyard.services.engine.runtime.running_job import RunningJob

PERMIT_TTL = 15.0
"""Seconds after which what a process held that has died is free again."""
MAX_KEPT_BYTES = 64 * 1024
"""Bytes of a message that is kept to be called; a larger job comes back when its time is over."""
NO_ROOM = "PermitRefused"
"""The error type of jobs that wait for a limit."""


@dataclass(slots=True)
class Permit:
    """A delivery's way through the limits of its job."""

    needs: Sequence[PermitDemand] = ()
    hold: str | None = None
    """What it has; None where it has nothing."""
    refused: LimitRefused | None = None
    """Why it never can have room."""
    usage: Usage = field(default_factory=Usage)
    expires_at: float = 0.0


@dataclass
class PermitClient:
    """The named limits, as one worker keeps to them."""

    ledger: Ledger
    follow_up: FollowUpPublisher
    counters: Counters
    numbers: Mapping[str, LimitNumbers]
    """JOBS_LIMITS."""
    gathering: PermitRequestBatcher

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")
        self._holder = new_instance_id()
        self._numbers = count(1)
        self._held: set[str] = set()

    # --- one job ----------------------------------------------------------------------------

    async def enter(
        self,
        delivery: Delivery,
        message: JobMessage,
        job_type: JobType,
        payload: BaseModel,
        expires_at: float,
    ) -> Permit | None:
        """Room for the job; None when there is none, and the delivery is settled: it comes back.
        At `expires_at` it will be too old to run. Raises LedgerError."""
        try:
            needs = needs_of(job_type.limits, payload, self.numbers)
        except LimitRefused as error:
            return Permit(refused=error)
        if not needs:
            return Permit()
        entry = Permit(needs, expires_at=expires_at)
        if not _may_be_called(delivery):
            await self.gathering.join(needs)
        answer = await self._request(entry, message, delivery.queue, delivery.body)
        if isinstance(answer, PermitRefused):
            self.gathering.found_full(answer.name, answer.key)
            self._log.info(
                "permit refused", limit=answer.name, key=answer.key, delay=answer.seconds
            )
            await self.follow_up.delay_for_limit(delivery, message, answer.seconds)
            delivery.ack()
            self.counters.put_off += 1
            return None
        return entry

    async def confirm(self, entry: Permit, job: RunningJob) -> None:
        """The job is claimed. One that needed no room, as it ran elsewhere, needs it now: that of
        its last worker, who has died, goes over. Raises LedgerError."""
        if job.verdict is not None:
            return
        if entry.refused is not None:
            failure = Failure.from_error(entry.refused)
            job.verdict = Died(Reason.PERMANENT, job.message.metadata.attempts, failure)
        elif entry.needs and entry.hold is None:
            answer = await self._request(
                entry, job.message, job.delivery.queue, job.message.encode(), claimed=True
            )
            if isinstance(answer, PermitRefused):
                job.verdict = Delayed(
                    self.follow_up.policy.levels[0],
                    job.message.metadata.attempts,
                    not_before=None,
                    failure=Failure(NO_ROOM, str(answer)),
                    counts=False,
                    ages=True,
                )

    async def leave(self, entry: Permit) -> None:
        """The job has ended: others may have its room."""
        hold, entry.hold = entry.hold, None
        if hold is None:
            return
        self._held.discard(hold)
        self.gathering.leave()
        try:
            freed = await self.ledger.limits.return_permits(hold, entry.needs, entry.usage.tokens)
        except LedgerError as error:  # it runs out by itself
            self._log.warning("permits not released", error=str(error))
            return
        if not freed.waited_for:
            self.gathering.found_room(entry.needs)
        await self._wake(freed.woken)

    async def _request(
        self,
        entry: Permit,
        message: JobMessage,
        queue: str,
        body: bytes,
        *,
        claimed: bool = False,
    ) -> RoomAnswer:
        hold = f"{self._holder}/{next(self._numbers)}"
        metadata = message.metadata
        request = PermitRequest(
            hold=hold,
            holder=self._holder,
            needs=entry.needs,
            job_id=message.job_id,
            redrives=metadata.redrives,
            attempts=metadata.attempts,
            queue=queue,
            body=body if len(body) <= MAX_KEPT_BYTES else None,
            levels=self.follow_up.policy.levels,
            expires_at=entry.expires_at,
            life=PERMIT_TTL,
            claimed=claimed,
        )
        self._held.add(hold)
        entry.hold = hold  # also when the answer is lost: it is given back then
        answer: RoomAnswer | None = None
        try:
            answer = await self.ledger.limits.take_permits(request)
        finally:
            if not isinstance(answer, PermitGranted):
                self._held.discard(hold)
                entry.hold = None
        await self._wake(answer.woken)
        return answer

    async def _wake(self, called: Sequence[WokenJob]) -> None:
        await wake(self.follow_up.publisher, called, self._log)

    # --- the process ------------------------------------------------------------------------

    def start(self, background: TaskSupervisor) -> None:
        """Keep what is held for as long as it is needed."""
        background.start("keep room in limits", self._keep_renewing)

    async def close(self) -> None:
        """Give back all that is still held. Raises LedgerError."""
        if self._held:
            await self.ledger.limits.release_permits(self._holder)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(PERMIT_TTL / 3)
            if self._held:
                try:
                    await self.ledger.limits.renew_permits(sorted(self._held), PERMIT_TTL)
                except LedgerError as error:
                    self._log.warning("permits not renewed", error=str(error))


def _may_be_called(delivery: Delivery) -> bool:
    """Whether it has come as `wake` sends it: room is kept for it."""
    return delivery.exchange == "" and delivery.priority == MAX_PRIORITY


async def wake(publisher: Publisher, called: Sequence[WokenJob], log: FilteringBoundLogger) -> None:
    """Send those that have room now ahead of their queues. One that can't be sent now is called
    again, or comes by itself."""
    for each in called:
        envelope = replace(envelope_of(JobMessage.decode(each.body)), priority=MAX_PRIORITY)
        try:
            await publisher.send("", each.queue, envelope)
        except PublishError as error:
            log.warning(
                "woken job not published",
                job_id=each.job_id,
                error=str(error),
            )
