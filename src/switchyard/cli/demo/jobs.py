"""Two job types that fail on purpose, for `jobctl demo`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import job


class DemoFlaky(BaseModel):
    """Payload of `demo_flaky`."""

    model_config = ConfigDict(extra="forbid")

    failures: int = Field(default=2, ge=0, le=100)
    """Attempts that fail before one succeeds."""


class DemoStrict(BaseModel):
    """Payload of `demo_strict`."""

    model_config = ConfigDict(extra="forbid")

    parts: int
    """Into how many parts to divide; 0 can't be done, now or later."""


@job("demo_flaky", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def demo_flaky(payload: DemoFlaky, ctx: JobContext) -> Outcome:
    """Fail the first attempts, as a server does that is restarting."""
    if ctx.attempt <= payload.failures:
        raise RetryableError(f"planned failure {ctx.attempt} of {payload.failures}")
    return Done({"attempt": ctx.attempt})


@job("demo_strict", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def demo_strict(payload: DemoStrict, ctx: JobContext) -> Outcome:
    """Refuse for good what can't be done: only another payload helps."""
    if payload.parts == 0:
        raise PermanentError("nothing can be divided into 0 parts")
    return Done({"part": 1 / payload.parts})
