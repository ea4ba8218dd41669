"""The jobs of a fault run: each leaves its trace when it begins and however it ends."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import BaseModel

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from tests.support.chaos import Effects

STEP = "fault_step"
TIMEOUT = 120
"""Seconds: far beyond what any fault holds a job up."""


class Task(BaseModel):
    """What a job of the fault run does; the account reads it, too."""

    seconds: float = 0.05
    fail_attempts: int = 0
    """So many first attempts fail."""
    dies: Literal["", "permanent", "exhausted"] = ""
    children: int = 0
    """So many `fault_step` come next."""
    number: int = 0


@contextmanager
def traced(ctx: JobContext) -> Iterator[None]:
    """Note begin and end; an end that is missing is that of a process that was killed."""
    effects = Effects(ctx.settings.data_dir)
    effects.note(ctx, "started")
    try:
        yield
    except asyncio.CancelledError:
        effects.note(ctx, "cancelled")
        raise
    except Exception:
        effects.note(ctx, "failed")
        raise
    effects.note(ctx, "done")


def end(task: Task, ctx: JobContext) -> Outcome:
    """End as the task says."""
    if task.dies == "permanent":
        raise PermanentError("it dies, as it was told to")
    if task.dies == "exhausted" or ctx.attempt <= task.fail_attempts:
        raise RuntimeError("it fails, as it was told to")
    if task.children:
        return Next([Job(STEP, {"number": number}) for number in range(task.children)])
    return Done({"number": task.number})


@job("fault_task", worker="llm", lanes=("hot", "backfill"), timeout=TIMEOUT)
async def fault_task(payload: Task, ctx: JobContext) -> Outcome:
    """Do the usual task."""
    with traced(ctx):
        await asyncio.sleep(payload.seconds)
        return end(payload, ctx)


@job(STEP, worker="embed", lanes=("hot", "backfill"), timeout=TIMEOUT)
async def fault_step(payload: Task, ctx: JobContext) -> Outcome:
    """Do the next step of a task."""
    with traced(ctx):
        await asyncio.sleep(payload.seconds)
        return end(payload, ctx)


@job("fault_page", worker="ocr", lanes=("vlm_ocr",), timeout=TIMEOUT)
async def fault_page(payload: Task, ctx: JobContext) -> Outcome:
    """Do a task of the lane that is soon full."""
    with traced(ctx):
        await asyncio.sleep(payload.seconds)
        return end(payload, ctx)


@job(
    "fault_crunch",
    worker="ingest",
    lanes=("hot", "backfill"),
    timeout=TIMEOUT,
    isolation="process",
    memory_limit_mb=2048,
)
def fault_crunch(payload: Task, ctx: JobContext) -> Outcome:
    """Do a task in a process of its own."""
    with traced(ctx):
        until = time.monotonic() + payload.seconds
        while time.monotonic() < until:
            pass
        return end(payload, ctx)
