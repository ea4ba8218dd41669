"""State of a claimed job until its attempt has ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.message import JobMessage
from switchyard.services.engine.jobs.context import Usage
from switchyard.services.engine.jobs.retry import Delayed, Died
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.requests import ClaimRequest
from switchyard.services.engine.records.results import Claimed
from switchyard.services.engine.runtime.attempt_endings import (
    CancelledWhileRunning,
    end_begun_too_often,
    end_joined_dead,
)


class ClaimLost(Exception):
    """Another worker has taken the job over: this attempt's result is not recorded."""


def is_from_outside(error: BaseException) -> bool:
    """Tell whether an error ends the running task from outside: the task was cancelled, or its
    coroutine is closed. Errors raised by a handler or a library do not."""
    kind = type(error)  # a foreign error may override its own attributes
    if not issubclass(kind, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no event loop any more
        return True
    if issubclass(kind, GeneratorExit):
        return task is None
    return task is None or bool(task.cancelling())


@dataclass(slots=True)
class RunningJob:
    """A running attempt of a job."""

    lane: str
    message: JobMessage
    claim_id: str
    started_at: float
    """Seconds since the epoch."""
    ids: JobIds
    """Makes the ids of the jobs that follow."""
    crashes: int = 0
    """Workers that have died with the job in them."""
    has_checkpoint: bool = False
    """Whether an earlier attempt has stored a checkpoint."""
    join_id: str | None = None
    """Id of the job that waits for this one."""
    verdict: Delayed | Died | CancelledWhileRunning | None = None
    """The ending, where it is decided without the handler's outcome."""
    handler: asyncio.Task[None] | None = None
    """The task in which the handler runs, while it does."""
    usage: Usage = field(default_factory=Usage)
    """Usage that the handler reported."""
    cancel_requested: bool = False
    """Whether cancelling the job was requested."""

    @classmethod
    async def from_claim(
        cls, ledger: Ledger, request: ClaimRequest, claim: Claimed, **fields: Any
    ) -> Self:
        """Return the attempt for a claim. It has a verdict if the job must not run: too many of its
        runs had no end, or jobs that it waited for are dead. `fields` are those of the subclass.
        Raises LedgerError."""
        message = claim.message or request.message
        join = await ledger.joins.join(message.job_id) if claim.joins else None
        crashed = end_begun_too_often(message, claim.crashes, claim.unended)
        return cls(
            lane=request.lane,
            message=message,
            claim_id=request.claim_id,
            started_at=request.now,
            ids=await ledger.system.job_ids(),
            crashes=claim.crashes,
            has_checkpoint=claim.has_checkpoint,
            join_id=claim.join_id,
            verdict=crashed or end_joined_dead(message, join),
            **fields,
        )


@dataclass(slots=True)
class DeliveredJob(RunningJob):
    """A running attempt of a job that the broker has delivered."""

    delivery: Delivery = field(kw_only=True)
    """Delivery to settle at the end; replaced when the broker delivers the job again meanwhile."""
