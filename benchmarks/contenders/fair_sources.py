"""A source with many jobs and one with few, in one queue: `run MANY FEW FAIR_FROM` (0: never).

The many are published as fast as the queue takes them; the few come when it is full. It prints how
long these have waited for a worker, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from pydantic import BaseModel

from benchmarks.common import WINDOW
from switchyard import Done, JobContext, JobPublisher, JobRequest, Outcome, job
from switchyard.broker.errors import LaneFull
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.states import FINISHED

TAKES = 0.005
"""Seconds that a job takes."""
BACKLOG = 9_000
"""Jobs of the many that wait when the few come; a queue of the lane holds 10,000."""
PAUSE = 0.05
"""Seconds between looks."""


class Of(BaseModel):
    number: int


@job("short_task", worker="llm", lanes=("backfill",), timeout=60)
async def short_task(payload: Of, ctx: JobContext) -> Outcome:
    await asyncio.sleep(TAKES)
    return Done()


class Run:
    """One run of the comparison."""

    def __init__(self, ledger: Ledger, jobs: JobPublisher) -> None:
        self._ledger = ledger
        self._jobs = jobs

    async def measure(self, many: int, few: int) -> list[float]:
        """Seconds that each of the few has waited."""
        filled = asyncio.Event()
        filling = asyncio.create_task(self._fill(many, filled))
        await filled.wait()
        requests = [self._request("small", number) for number in range(few)]
        prepared = [await self._jobs.prepare(each) for each in requests]
        await self._publish(prepared)
        try:
            return [await self._wait_of(each.message.job_id) for each in prepared]
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    async def _fill(self, many: int, filled: asyncio.Event) -> None:
        for start in range(0, many, WINDOW):
            if start >= min(BACKLOG, many - WINDOW):
                filled.set()
            numbers = range(start, min(many, start + WINDOW))
            requests = [self._request("big", number) for number in numbers]
            await self._publish([await self._jobs.prepare(each) for each in requests])
        filled.set()

    async def _publish(self, prepared: Sequence[NewJob]) -> None:
        """Again for as long as the queue is full."""
        while prepared:
            outcomes = await self._jobs.publish_prepared(prepared)
            pairs = zip(prepared, outcomes, strict=True)
            prepared = [each for each, outcome in pairs if isinstance(outcome, LaneFull)]
            if prepared:
                await asyncio.sleep(PAUSE)

    async def _wait_of(self, job_id: str) -> float:
        while True:
            record = await self._ledger.job_reads.get(job_id)
            if record is not None and record.state in FINISHED and record.started_at is not None:
                return record.started_at - record.created_at
            await asyncio.sleep(PAUSE)

    def _request(self, source: str, number: int) -> JobRequest:
        return JobRequest("backfill.short_task", {"number": number}, source=source)


async def main(many: int, few: int, fair_from: int) -> None:
    settings = Settings()
    registry = Registry.load([f"benchmarks.contenders.{__spec__.name.rpartition('.')[2]}"])
    async with await Ledger.open(settings.ledger_url) as ledger, Publisher(settings) as publisher:
        jobs = JobPublisher(registry, ledger, publisher, fair_from=fair_from or None)
        waits = await Run(ledger, jobs).measure(many, few)
    print(json.dumps({"waits": waits}))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[2:5])))
