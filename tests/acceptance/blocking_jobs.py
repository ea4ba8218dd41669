"""Job types that harm their worker at their first run: one blocks its event loop, one kills it."""

import asyncio
import os
import signal
from pathlib import Path
from threading import Event

from pydantic import BaseModel

from switchyard import Done, JobContext, Outcome, job


class HarmfulTask(BaseModel):
    mark: str
    """Path of a file that exists once the job has run."""
    seconds: float = 600.0
    """How long it blocks the event loop."""


@job("blocking", worker="tester", lanes=("hot",), timeout=20)
async def blocking(payload: HarmfulTask, ctx: JobContext) -> Outcome:
    # In a task of its own, as users write it.
    await asyncio.gather(_block(payload))
    return Done({})


async def _block(payload: HarmfulTask) -> None:
    mark = Path(payload.mark)
    if not mark.exists():
        mark.touch()
        Event().wait(payload.seconds)


@job("leaky", worker="tester", lanes=("hot",), timeout=20)
async def leaky(payload: HarmfulTask, ctx: JobContext) -> Outcome:
    mark = Path(payload.mark)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return Done({})
