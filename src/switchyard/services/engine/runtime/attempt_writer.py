"""Write the ends of attempts into the ledger, and retry for as long as it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from switchyard.broker.message import JobMessage
from switchyard.broker.wire.reconnector import MAX_BACKOFF, MIN_BACKOFF
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerUnavailable, SchemaOutdated
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.attempt_endings import (
    CancelledWhileRunning,
    Ending,
    Released,
    finish_request,
)
from switchyard.services.engine.runtime.running_job import ClaimLost, RunningJob

T = TypeVar("T")


@dataclass
class AttemptWriter:
    """Records the attempts of one worker."""

    ledger: Ledger
    on_ledger_away: Callable[[], None] | None = None
    """Called when the ledger can't be reached, so that the worker takes no jobs. If None, the error
    is raised at once, instead of retries."""

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")

    async def record_end(self, job: RunningJob, ending: Ending) -> tuple[Ending, list[str]]:
        """Record how the attempt has ended. Returns the recorded ending, which may be a cancel that
        this worker did not receive, and the ids of the jobs that waited for this one and are due
        now. Raises ClaimLost."""
        now = self.ledger.clock.time()
        request = finish_request(job.message, job.claim_id, ending, now=now)
        finished = await self.until_reached(lambda: self.ledger.jobs.finish(request))
        if finished is None:
            raise ClaimLost(f"claim lost: the result {request.state} was not recorded")
        return (
            CancelledWhileRunning() if finished.state is State.CANCELLED else ending,
            finished.due,
        )

    async def is_not_cancelled(self, job: RunningJob) -> bool:
        """Tell whether the job was not cancelled meanwhile, before its retry or dead letter is
        published, which can't be undone. The ledger checks again when the end is recorded. Raises
        ClaimLost when another worker has taken the job over."""
        record = await self.until_reached(lambda: self.ledger.job_reads.get(job.message.job_id))
        if record is not None and record.claim_id != job.claim_id:
            raise ClaimLost(f"by {record.worker_id}")
        return record is None or record.cancel_asked_at is None

    async def release(self, job: RunningJob) -> None:
        """Release the claim when the worker stops. Does not wait for a ledger that is away."""
        try:
            await self.release_claim(job.message, job.claim_id)
        except LedgerUnavailable as error:
            # The claim stays; the job's next worker sees that this one is silent.
            self._log.warning("claim release not recorded", error=str(error))

    async def release_claim(self, message: JobMessage, claim_id: str) -> None:
        """Release a claim of this worker under which nothing runs. Raises LedgerUnavailable."""
        now = self.ledger.clock.time()
        await self.ledger.jobs.finish(finish_request(message, claim_id, Released(), now=now))

    async def until_reached(self, write: Callable[[], Awaitable[T]]) -> T:
        """Call `write` until the ledger can be reached: the work is done, and its result must not
        be lost."""
        delay = MIN_BACKOFF
        while True:
            try:
                return await write()
            except (LedgerUnavailable, SchemaOutdated) as error:
                if self.on_ledger_away is None:
                    raise
                self._log.warning("ledger unreachable", error=str(error), next_try_in=delay)
                self.on_ledger_away()
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_BACKOFF)
