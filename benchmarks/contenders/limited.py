"""Jobs with a named limit and jobs without, in one queue: `publish COUNT LIMITED` of them.

With every LIMITEDth job comes one of an account that may run one at a time, for a tenth of a second
each; the others are no-ops. 0: none is limited.
"""

from __future__ import annotations

import asyncio
import json
import sys

from pydantic import BaseModel

from benchmarks.common import WINDOW, sample
from switchyard import Done, JobContext, JobPublisher, JobRequest, Limit, Outcome, job
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger


class Numbered(BaseModel):
    number: int
    pad: str = "x" * 900


@job("free", worker="llm", lanes=("backfill",), timeout=60)
async def free(payload: Numbered, ctx: JobContext) -> Outcome:
    sample(payload.number)
    return Done()


@job(
    "limited",
    worker="llm",
    lanes=("backfill",),
    timeout=60,
    limits=[Limit("account", concurrency=1)],
)
async def limited(payload: Numbered, ctx: JobContext) -> Outcome:
    await asyncio.sleep(0.1)
    return Done()


async def publish(count: int, every: int) -> None:
    settings = Settings()
    registry = Registry.load(["benchmarks.contenders.limited"])
    async with await Ledger.open(settings.ledger_url) as ledger, Publisher(settings) as publisher:
        jobs = JobPublisher(registry, ledger, publisher)
        requests = []
        for number in range(count):
            payload = Numbered(number=number).model_dump()
            requests.append(JobRequest("backfill.free", payload))
            if every and number % every == 0:
                requests.append(JobRequest("backfill.limited", payload))
        for start in range(0, len(requests), WINDOW):
            await jobs.publish_many(requests[start : start + WINDOW])
    print(json.dumps({"published": len(requests)}))


if __name__ == "__main__":
    asyncio.run(publish(int(sys.argv[2]), int(sys.argv[3])))
