"""Job types that harm their worker at their first run: one blocks its event loop, one ends it."""

import asyncio
import os
import signal
from pathlib import Path
from threading import Event

from pydantic import BaseModel

from switchyard import Done, JobContext, Outcome, job


class Harmful(BaseModel):
    mark: str
    """A file that says that it has run before."""
    seconds: float = 600.0


@job("blocking", worker="tester", lanes=("hot",), timeout=20)
async def blocking(payload: Harmful, ctx: JobContext) -> Outcome:
    # As users write it: in a task of its own.
    await asyncio.gather(_block(payload))
    return Done({})


async def _block(payload: Harmful) -> None:
    mark = Path(payload.mark)
    if not mark.exists():
        mark.touch()
        Event().wait(payload.seconds)


@job("leaky", worker="tester", lanes=("hot",), timeout=20)
async def leaky(payload: Harmful, ctx: JobContext) -> Outcome:
    mark = Path(payload.mark)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does for want of memory
    return Done({})
