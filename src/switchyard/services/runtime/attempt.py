"""One attempt of a job without a broker and without a record: what a worker would make of it.

The way is the worker's: the payload's model, the Executor with its limits, `decide`, and the checks
of the jobs that follow. Nothing is claimed, published or recorded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from switchyard.broker.message import now
from switchyard.services.jobs.context import JobContext
from switchyard.services.jobs.outcomes import Discard, Done, Next, Outcome, Retry, Snooze
from switchyard.services.jobs.registry import InvalidPayload, Registry, UnknownJobType
from switchyard.services.jobs.retry import (
    Decision,
    Delayed,
    Died,
    Failure,
    Policy,
    Succeeded,
    decide,
)
from switchyard.services.ledger.sql.codec import to_json
from switchyard.services.publishing.publisher import InvalidJob, children_of
from switchyard.services.records import NewJob, RowRejected
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
    decision = _decided(ended, ctx)
    following: list[NewJob] = []
    if isinstance(decision, Succeeded):
        try:
            to_json(decision.result)
            following = children_of(registry, message, ctx.lane, decision.jobs)
        except (RowRejected, InvalidJob, InvalidPayload, UnknownJobType) as error:
            # A defect of the handler, which no attempt can mend.
            decision = _decided(Failure("InvalidOutcome", str(error), permanent=True), ctx)
    outcome = ended if isinstance(ended, Done | Next | Retry | Snooze | Discard) else None
    return Attempt(decision, outcome, following, seconds)


def _decided(ended: Any, ctx: JobContext) -> Decision:
    return decide(
        ended,
        attempts=ctx.message.metadata.attempts,
        max_attempts=ctx.message.metadata.max_attempts,
        policy=Policy.over(ctx.settings.retry_delays),
        now=now(),
    )
