"""Job types that run in processes of their own. Each process imports this module, so it imports
little: a module of tests would take 0.6 s of processor time for each process."""

import os
import time

from pydantic import BaseModel

from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome, Retry
from switchyard.services.engine.jobs.registry import job


class Text(BaseModel):
    text: str
    then: str = "done"


class Nothing(BaseModel):
    pass


@job("weigh", worker="llm", lanes=("hot",), timeout=5, isolation="process", memory_limit_mb=1024)
def weigh(payload: Text, ctx: JobContext) -> Outcome:
    match payload.then:
        case "big":
            return Done({"bytes": len(bytearray(2**31))})
        case "exit":
            os._exit(3)
    return Done({"pid": os.getpid()})


@job("linger", worker="llm", lanes=("hot",), timeout=0.5, isolation="process")
def linger(payload: Text, ctx: JobContext) -> Outcome:
    while True:
        time.monotonic()


@job("count_up_alone", worker="llm", lanes=("hot",), isolation="process")
def count_up_alone(payload: Text, ctx: JobContext) -> Outcome:
    return count_on(ctx)


def count_on(ctx: JobContext) -> Outcome:
    """Count three more numbers, from where the last attempt ended."""
    start: int = ctx.last_checkpoint or 0
    for number in range(start + 1, start + 4):
        ctx.progress(number / 10, f"{number} of 10")
        ctx.checkpoint(number)
    return Retry("three at a time") if start < 7 else Done({"began": start})


@job("deadly", worker="llm", lanes=("hot",), timeout=20, isolation="process")
def deadly(payload: Nothing, ctx: JobContext) -> Outcome:
    os._exit(3)
