"""Run one attempt of a job without a broker, as a worker would.

It uses the worker's steps: the payload's model, the Executor with its limits, and `classify`.
Nothing is claimed, published or recorded; the caller may do that before and after.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from switchyard.broker.message import now
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.limits import LimitRefused, demands_of
from switchyard.services.engine.jobs.outcomes import Discard, Done, Next, Outcome, Retry, Snooze
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.retry import (
    Decision,
    Delayed,
    Died,
    Failure,
    RetryPolicy,
    Succeeded,
)
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.records.limits import PermitDemand
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.runtime.attempt_endings import (
    classify,
    end_limit_refused,
    end_unwritable,
    remove_secrets,
)
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.engine.runtime.running_job import is_from_outside


@dataclass(frozen=True, slots=True)
class Attempt:
    """End of an attempt, and what would follow from it."""

    decision: Decision
    outcome: Outcome | None
    """The handler's outcome; None where it raised, or returned no outcome."""
    following: list[NewJob]
    """Jobs that would be published next."""
    seconds: float
    needs: tuple[PermitDemand, ...] = ()
    """Permits that the job needs."""

    @property
    def succeeded(self) -> bool:
        return isinstance(self.decision, Succeeded)

    @property
    def result(self) -> dict[str, Any] | None:
        """The result that the ledger would store for a success, also where a following job is
        refused."""
        return dict(self.outcome.result or {}) if isinstance(self.outcome, Done | Next) else None

    @property
    def failure(self) -> Failure | None:
        """The failure of the attempt; None for a success."""
        return self.decision.failure if isinstance(self.decision, Delayed | Died) else None


async def run_single_attempt(registry: Registry, ctx: JobContext) -> Attempt:
    """Run the handler of the context's job, once, in an Executor of its own. Raises UnknownJobType,
    NewerPayload, InvalidPayload."""
    executor = Executor(1)
    try:
        return await _attempt(registry, ctx, executor)
    finally:
        await executor.close()


async def _attempt(registry: Registry, ctx: JobContext, executor: Executor) -> Attempt:
    message = ctx.message
    job_type = registry.get(message.job_type)
    payload = job_type.read(message.payload, message.metadata.payload_version)
    try:
        needs = tuple(demands_of(job_type.limits, payload, ctx.settings.limits))
    except LimitRefused as error:
        return Attempt(end_limit_refused(message, error), None, [], 0.0)
    ctx = replace(ctx, compute=executor.compute, in_process=executor.in_process)
    clock = asyncio.get_running_loop().time
    began = clock()
    handler_outcome = await executor.run(job_type, payload, ctx)
    handler_outcome = remove_secrets(registry, message, handler_outcome)
    seconds = clock() - began
    policy = RetryPolicy.from_levels(ctx.settings.retry_delays)
    decision: Decision
    try:
        decision, following = await classify(
            registry,
            message,
            ctx.lane,
            handler_outcome,
            policy,
            now=now() if ctx.ledger is None else ctx.ledger.clock.now(),
            max_result_bytes=ctx.settings.max_result_bytes,
            ids=PUBLIC_IDS,  # the follow-up jobs are not published
        )
    except BaseException as error:
        if is_from_outside(error):
            raise
        # Raised by values in the handler's outcome.
        decision, following = end_unwritable(message, handler_outcome, error), []
    outcome = (
        handler_outcome
        if isinstance(handler_outcome, Done | Next | Retry | Snooze | Discard)
        else None
    )
    return Attempt(decision, outcome, following, seconds, needs)
