"""A job type whose time limit the environment sets."""

import asyncio
import os

from pydantic import BaseModel

from switchyard import Done, JobContext, Outcome, job


class BriefTask(BaseModel):
    seconds: float


@job("brief", worker="tester", lanes=("hot",), timeout=float(os.environ["BRIEF_TIMEOUT"]))
async def brief(payload: BriefTask, ctx: JobContext) -> Outcome:
    await asyncio.sleep(payload.seconds)
    return Done({})
