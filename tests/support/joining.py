"""Jobs that join others: `fan` makes leaves, or fans of them, and a `gather` that waits for all."""

from collections import Counter
from typing import Any

from pydantic import BaseModel

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.records.joins import WhenDead
from tests.support.chaos import Effects

JOINING_MODULES = ("tests.support.joining",)


class Fan(BaseModel):
    leaves: int = 3
    depth: int = 1
    """Number of nested joins."""
    dead: int = 0
    """Number of leaves that die until they are redriven."""
    follow: int = 0
    """Number of jobs that follow from each leaf, one after the other."""
    when_dead: WhenDead = "wait"
    lane: str | None = None
    """Lane of the leaves."""
    answer: str = ""
    """`nonsense`: the handler returns an invalid `when_dead`."""


class Leaf(BaseModel):
    number: int = 0
    follow: int = 0
    dies: bool = False


class Gather(BaseModel):
    depth: int = 1


@job("fan", worker="llm", lanes=("hot", "backfill"), timeout=60)
async def fan(payload: Fan, ctx: JobContext) -> Outcome:
    """Publish the jobs that are to be joined."""
    Effects(ctx.settings.data_dir).note(ctx, "fanned")
    jobs = [
        Job("fan", payload.model_dump() | {"depth": payload.depth - 1})
        if payload.depth > 1
        else Job(
            "leaf",
            {"number": number, "follow": payload.follow, "dies": number < payload.dead},
            lane=payload.lane,
        )
        for number in range(payload.leaves)
    ]
    then = Job("gather", {"depth": payload.depth})
    when_dead: Any = "perhaps" if payload.answer else payload.when_dead
    return Next(jobs, {"fanned": len(jobs)}, then, when_dead)


@job("leaf", worker="llm", lanes=("hot", "backfill"), timeout=60)
async def leaf(payload: Leaf, ctx: JobContext) -> Outcome:
    """End, or die until somebody redrives it."""
    if payload.dies and not ctx.message.metadata.redrives:
        raise PermanentError("it dies, as it was told to")
    Effects(ctx.settings.data_dir).note(ctx, "leaf")
    if payload.follow:
        return Next([Job("leaf", {"number": payload.number, "follow": payload.follow - 1})])
    return Done({"number": payload.number})


@job("gather", worker="llm", lanes=("hot", "backfill"), timeout=60)
async def gather(payload: Gather, ctx: JobContext) -> Outcome:
    """Return the states of the joined jobs at its start: each must have ended by then."""
    Effects(ctx.settings.data_dir).note(ctx, "gathered")
    joined_jobs = [joined async for joined in ctx.joined()]
    states = Counter(str(joined.state) for joined in joined_jobs)
    numbers = sorted(
        joined.result["number"]
        for joined in joined_jobs
        if joined.result and "number" in joined.result
    )
    return Done({"depth": payload.depth, "states": dict(states), "numbers": numbers})
