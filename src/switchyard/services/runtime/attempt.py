"""One attempt of a job without a broker and without a record: what a worker would make of it.

The way is the worker's: the payload's model, the Executor with its limits, and
`classify`. Nothing is claimed, published or recorded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from switchyard.broker.message import now
from switchyard.services.jobs.context import JobContext
from switchyard.services.jobs.outcomes import Discard, Done, Next, Outcome, Retry, Snooze
from switchyard.services.jobs.registry import Registry
from switchyard.services.jobs.retry import (
    Decision,
    Delayed,
    Died,
    Failure,
    RetryPolicy,
    Succeeded,
)
from switchyard.services.records import NewJob
from switchyard.services.runtime.endings import classify
from switchyard.services.runtime.execution import Executor


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt ended, and what would follow from it."""

    decision: Decision
    outcome: Outcome | None
    """What the handler answered; None where it raised, or answered something else."""
    following: list[NewJob]
    """Jobs that would be published next."""
    seconds: float

    @property
    def succeeded(self) -> bool:
        return isinstance(self.decision, Succeeded)

    @property
    def result(self) -> dict[str, Any] | None:
        """What the ledger would keep of a success; also where a following job is refused."""
        return dict(self.outcome.result or {}) if isinstance(self.outcome, Done | Next) else None

    @property
    def failure(self) -> Failure | None:
        """Why the job did not succeed."""
        return self.decision.failure if isinstance(self.decision, Delayed | Died) else None


async def attempt(registry: Registry, ctx: JobContext) -> Attempt:
    """Run the handler of the context's job, once. Raises UnknownJobType, InvalidPayload."""
    message = ctx.message
    job_type = registry.get(message.job_type)
    payload = job_type.validate(message.payload)
    executor = Executor(1)
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        ended = await executor.run(job_type, payload, ctx)
        seconds = clock() - began
    finally:
        await executor.close()
    policy = RetryPolicy.over(ctx.settings.retry_delays)
    decision, following = classify(
        registry,
        message,
        ctx.lane,
        ended,
        policy,
        now=now() if ctx.ledger is None else ctx.ledger.clock.now(),
    )
    outcome = ended if isinstance(ended, Done | Next | Retry | Snooze | Discard) else None
    return Attempt(decision, outcome, following, seconds)
