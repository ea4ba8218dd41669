"""The jobs of a fault run: each leaves a trace when it begins and when it ends in any way."""

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
"""Seconds: far more than any fault delays a job."""


class FaultTask(BaseModel):
    """Payload of a job: what it does and how it ends. The account of the run reads it, too."""

    seconds: float = 0.05
    fail_attempts: int = 0
    """Number of first attempts that fail."""
    dies: Literal["", "permanent", "exhausted"] = ""
    children: int = 0
    """Number of `fault_step` jobs that follow."""
    number: int = 0


@contextmanager
def traced(ctx: JobContext) -> Iterator[None]:
    """Note the begin and the end of a job; the end is missing if its process was killed."""
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


def finish(task: FaultTask, ctx: JobContext) -> Outcome:
    """Return or raise what the payload asks for."""
    if task.dies == "permanent":
        raise PermanentError("it dies, as its payload asks")
    if task.dies == "exhausted" or ctx.attempt <= task.fail_attempts:
        raise RuntimeError("it fails, as its payload asks")
    if task.children:
        return Next([Job(STEP, {"number": number}) for number in range(task.children)])
    return Done({"number": task.number})


@job("fault_task", worker="llm", lanes=("hot", "backfill"), timeout=TIMEOUT)
async def fault_task(payload: FaultTask, ctx: JobContext) -> Outcome:
    """Run a task in the worker's event loop."""
    with traced(ctx):
        await asyncio.sleep(payload.seconds)
        return finish(payload, ctx)


@job(STEP, worker="embed", lanes=("hot", "backfill"), timeout=TIMEOUT)
async def fault_step(payload: FaultTask, ctx: JobContext) -> Outcome:
    """Run a step that follows a task."""
    with traced(ctx):
        await asyncio.sleep(payload.seconds)
        return finish(payload, ctx)


@job("fault_page", worker="ocr", lanes=("vlm_ocr",), timeout=TIMEOUT)
async def fault_page(payload: FaultTask, ctx: JobContext) -> Outcome:
    """Run a task in the lane `vlm_ocr`, which is soon full."""
    with traced(ctx):
        await asyncio.sleep(payload.seconds)
        return finish(payload, ctx)


@job(
    "fault_crunch",
    worker="ingest",
    lanes=("hot", "backfill"),
    timeout=TIMEOUT,
    isolation="process",
    memory_limit_mb=2048,
)
def fault_crunch(payload: FaultTask, ctx: JobContext) -> Outcome:
    """Run a task in a process of its own, using its processor."""
    with traced(ctx):
        ends_at = time.monotonic() + payload.seconds
        while time.monotonic() < ends_at:
            pass
        return finish(payload, ctx)
