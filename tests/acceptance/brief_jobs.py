"""A job type with a time limit that somebody can raise."""

import asyncio
import os

from pydantic import BaseModel

from switchyard import Done, JobContext, Outcome, job


class Brief(BaseModel):
    seconds: float


@job("brief", worker="tester", lanes=("hot",), timeout=float(os.environ["BRIEF_TIMEOUT"]))
async def brief(payload: Brief, ctx: JobContext) -> Outcome:
    await asyncio.sleep(payload.seconds)
    return Done({})
