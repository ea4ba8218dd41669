"""Permits: a job gets a permit of each of its named limits before it is claimed.

A job that is refused a permit goes into the longest retry level, with no attempt used up, and grows
older in its lane meanwhile. The ledger keeps its place among those that wait. A worker that
returns a permit wakes the most urgent of them: it sends a copy of the job to the head of its queue.
The scheduler does so where a permit gets free by time. The copy in the retry level returns later,
and is skipped like any older copy. So a lost copy costs time and no job.

Job types without limits run without asking the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import structlog
from pydantic import BaseModel
from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.errors import PublishError
from switchyard.broker.lanes import lane_of
from switchyard.broker.message import MAX_PRIORITY, JobMessage
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import KeyedLimitOverride
from switchyard.services.engine.jobs.context import Usage
from switchyard.services.engine.jobs.limits import LimitRefused, demands_of
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.jobs.retry import Delayed, Failure
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import keep_renewing
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.limits import (
    PermitAnswer,
    PermitDemand,
    PermitGranted,
    PermitRefused,
    PermitRequest,
    WokenJob,
    rank_of,
)
from switchyard.services.engine.records.pauses import ActivePauses
from switchyard.services.engine.runtime.attempt_endings import end_limit_refused
from switchyard.services.engine.runtime.attempt_reporter import Counters
from switchyard.services.engine.runtime.followups import FollowUpPublisher
from switchyard.services.engine.runtime.permit_batching import PermitRequestBatcher
from switchyard.services.engine.runtime.running_job import DeliveredJob

PERMIT_TTL = 15.0
"""Seconds after which the permits of a dead process are free again."""
MAX_KEPT_BYTES = 64 * 1024
"""Bytes of a message that the ledger stores for waking its job, at most; a larger job returns by
its retry level."""
PAUSES_TTL = 1.0
"""Seconds for which the pauses that were read are used again. Only a claim is always checked
against the ledger's pauses."""
PERMIT_REFUSED = "NoRoom"
"""The error type of jobs that wait for a limit."""


@dataclass(slots=True)
class Permit:
    """The permits that one job needs, and holds once they are granted."""

    needs: Sequence[PermitDemand] = ()
    hold_id: str | None = None
    """Id under which the ledger has the permits; None where the job holds none."""
    refused: LimitRefused | None = None
    """Set where the job can never get a permit: the reason."""
    usage: Usage = field(default_factory=Usage)
    expires_at: float = 0.0


@dataclass
class PermitClient:
    """Requests, renews and returns the permits of one worker's jobs."""

    ledger: Ledger
    follow_up: FollowUpPublisher
    counters: Counters
    overrides: Mapping[str, KeyedLimitOverride]
    """The limits of JOBS_LIMITS, by name."""
    batcher: PermitRequestBatcher

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")
        self._holder = new_instance_id()
        self._hold_numbers = count(1)
        self._held: set[str] = set()
        self._pauses = ActivePauses()
        self._pauses_read_at = float("-inf")

    # --- one job ----------------------------------------------------------------------------

    async def acquire(
        self,
        delivery: Delivery,
        message: JobMessage,
        job_type: JobType,
        payload: BaseModel,
        expires_at: float,
    ) -> Permit | None:
        """Request the job's permits. If one is refused, delay the job, settle the delivery, and
        return None. At `expires_at`, the job is too old to run. Raises LedgerError."""
        try:
            needs = demands_of(job_type.limits, payload, self.overrides)
        except LimitRefused as error:
            return Permit(refused=error)
        if not needs:
            return Permit()
        permit = Permit(needs, expires_at=expires_at)
        if await self._is_paused(message, delivery.queue):
            return permit  # its claim will be refused: it needs no permit
        if not _was_woken(delivery):
            await self.batcher.wait_to_ask(needs)
        answer = await self._request(permit, message, delivery.queue, delivery.body)
        if isinstance(answer, PermitRefused):
            self.batcher.mark_full(answer.name, answer.key)
            self._log.info(
                "permit refused", limit=answer.name, key=answer.key, delay=answer.seconds
            )
            await self.follow_up.delay_for_limit(delivery, message, answer.seconds)
            delivery.ack()
            self.counters.put_off += 1
            return None
        return permit

    async def _is_paused(self, message: JobMessage, queue: str) -> bool:
        if time.monotonic() - self._pauses_read_at > PAUSES_TTL:
            self._pauses = await self.ledger.pauses.active()
            self._pauses_read_at = time.monotonic()
        lane, _, worker = queue.partition(".")
        source = message.metadata.source
        return self._pauses.pause_of(lane, worker, message.job_type, source) is not None

    async def confirm(self, permit: Permit, job: DeliveredJob) -> None:
        """Check the permits of a claimed job. If it got none, because it ran elsewhere when it
        asked, take over the permits of its dead worker. Raises LedgerError."""
        if job.verdict is not None:
            return
        if permit.refused is not None:
            job.verdict = end_limit_refused(job.message, permit.refused)
        elif permit.needs and permit.hold_id is None:
            answer = await self._request(
                permit, job.message, job.delivery.queue, job.message.encode(), claimed=True
            )
            if isinstance(answer, PermitRefused):
                job.verdict = Delayed(
                    self.follow_up.policy.levels[0],
                    job.message.metadata.attempts,
                    not_before=None,
                    failure=Failure(PERMIT_REFUSED, str(answer)),
                    counts=False,
                    ages=True,
                )

    async def release(self, permit: Permit) -> None:
        """Return the permits of a job that has ended."""
        hold, permit.hold_id = permit.hold_id, None
        if hold is None:
            return
        self._held.discard(hold)
        self.batcher.release_waiting()
        try:
            released = await self.ledger.limits.return_permits(
                hold, permit.needs, permit.usage.tokens
            )
        except LedgerError as error:  # the permits expire by themselves
            self._log.warning("permits not released", error=str(error))
            return
        if not released.waited_for:
            self.batcher.mark_free(permit.needs)
        await self._wake(released.woken)

    async def _request(
        self,
        permit: Permit,
        message: JobMessage,
        queue: str,
        body: bytes,
        *,
        claimed: bool = False,
    ) -> PermitAnswer:
        new_hold_id = f"{self._holder}/{next(self._hold_numbers)}"
        metadata = message.metadata
        request = PermitRequest(
            hold=new_hold_id,
            holder=self._holder,
            needs=permit.needs,
            job_id=message.job_id,
            redrives=metadata.redrives,
            attempts=metadata.attempts,
            queue=queue,
            rank=rank_of(lane_of(queue), message.priority),
            body=body if len(body) <= MAX_KEPT_BYTES else None,
            levels=self.follow_up.policy.levels,
            expires_at=permit.expires_at,
            life=PERMIT_TTL,
            claimed=claimed,
        )
        self._held.add(new_hold_id)
        permit.hold_id = new_hold_id  # set before the answer; cleared below unless it is granted
        answer: PermitAnswer | None = None
        try:
            answer = await self.ledger.limits.take_permits(request)
        finally:
            if not isinstance(answer, PermitGranted):
                self._held.discard(new_hold_id)
                permit.hold_id = None
        await self._wake(answer.woken)
        return answer

    async def _wake(self, woken: Sequence[WokenJob]) -> None:
        await wake(self.follow_up.publisher, woken, self._log)

    # --- the process ------------------------------------------------------------------------

    def start(self, background: TaskSupervisor) -> None:
        """Keep renewing the permits that are held."""
        background.start(
            "renew permits", partial(keep_renewing, "permits", PERMIT_TTL, self._renew)
        )

    async def close(self) -> None:
        """Return all permits that are still held. Raises LedgerError."""
        if self._held:
            await self.ledger.limits.release_permits(self._holder)

    async def _renew(self) -> None:
        if self._held:
            await self.ledger.limits.renew_permits(sorted(self._held), PERMIT_TTL)


def _was_woken(delivery: Delivery) -> bool:
    """Tell whether `wake` has sent the delivery: permits are reserved for its job."""
    return delivery.exchange == "" and delivery.priority == MAX_PRIORITY


async def wake(publisher: Publisher, woken: Sequence[WokenJob], log: FilteringBoundLogger) -> None:
    """Send jobs that may run now to the head of their queues. A job that can't be sent is woken
    again later, or returns by its retry level."""
    for job in woken:
        envelope = replace(envelope_of(JobMessage.decode(job.body)), priority=MAX_PRIORITY)
        try:
            await publisher.send("", job.queue, envelope)
        except PublishError as error:
            log.warning(
                "woken job not published",
                job_id=job.job_id,
                error=str(error),
            )
