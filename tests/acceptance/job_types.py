"""Job types of a user's own, which the command line finds through JOBS_MODULES."""

import asyncio
import ctypes
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel

from switchyard import Done, Job, JobContext, LocalOnly, Next, Outcome, PermanentError, job
from tests.support.eventually import eventually


class Work(BaseModel):
    """Payload of `work`, `isolated` and `quitting`."""

    n: int = 0
    fail: bool = False
    text: str = ""
    """Text of the job's result, error or progress."""
    seconds: float = 0
    """Seconds that the job takes."""
    until: Path | None = None
    """The job runs until this file exists."""
    fault: bool = False
    """The job reads a null pointer, which ends its process."""
    spool: Annotated[str | None, LocalOnly()] = None


@job("work", worker="tester", lanes=("hot", "backfill"), timeout=60)
async def work(payload: Work, ctx: JobContext) -> Outcome:
    if payload.fail:
        raise PermanentError(payload.text or "it was told to")
    if payload.fault:
        ctypes.string_at(0)
    if payload.seconds:
        ctx.progress(0.5, f"half of it {payload.text}")
        ctx.checkpoint(payload.n)
    await asyncio.sleep(payload.seconds)
    if payload.until:
        await eventually(payload.until.exists, 60)
    return Done({"n": payload.n} | ({"text": payload.text} if payload.text else {}))


@job("isolated", worker="tester", lanes=("hot",), timeout=60, isolation="process")
def isolated(payload: Work, ctx: JobContext) -> Outcome:
    """Do the same in a process of its own."""
    return asyncio.run(work(payload, ctx))


class Staged(BaseModel):
    fail: bool = False


@job("staged", worker="tester", lanes=("hot",), timeout=60)
async def staged(payload: Staged, ctx: JobContext) -> Outcome:
    """Let `work` follow, which fails if `fail` is set."""
    return Next([Job("work", {"fail": payload.fail})], {})


@job("unlucky", worker="tester", lanes=("hot",), timeout=60)
async def unlucky(payload: Staged, ctx: JobContext) -> Outcome:
    """Fail at the first attempt and succeed at the second."""
    if ctx.attempt == 1:
        raise RuntimeError("\x1b[2Jout of luck" + "!" * 20_000)
    return Done({})


@job("halves", worker="tester", lanes=("hot",), timeout=60)
async def halves(payload: Staged, ctx: JobContext) -> Outcome:
    """Let two `work` jobs follow, one of which may fail, and a third that waits for both."""
    parts = [Job("work", {"n": 1}), Job("work", {"n": 2, "fail": payload.fail})]
    return Next(parts, then=Job("work", {"n": 3}))


@job("quitting", worker="tester", lanes=("hot",), timeout=60, max_attempts=2)
async def quitting(payload: Work, ctx: JobContext) -> Outcome:
    """Try to end its process: directly, or, if `n` is 1, from a task that it has started."""

    async def end_process() -> None:
        raise KeyboardInterrupt(payload.text) if payload.fail else SystemExit(payload.text)

    if payload.n:
        await asyncio.gather(end_process(), asyncio.sleep(0))
    await end_process()
    return Done()
