"""Work the first jobs of a queue in this process; CPU time per job and memory."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from benchmarks.common import resident_memory
from benchmarks.contenders.with_switchyard import MODULE
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.runtime.worker import Worker, plan_for

WARM_UP = 0.2
"""Part of the jobs that is not counted: connecting and first-time imports."""


async def _until(worker: Worker, succeeded: int) -> None:
    while worker.counters.succeeded < succeeded:  # noqa: ASYNC110 - the worker has no such signal
        await asyncio.sleep(0.001)


async def work(count: int) -> dict[str, float]:
    configure("warning")
    registry = Registry.load([MODULE])
    settings = Settings()
    ledger = await Ledger.open(settings.ledger_url)
    share = plan_for(registry, "llm", lanes=["backfill"], slots=50)
    worker = Worker(settings, registry, ledger, [share])
    running = asyncio.create_task(worker.run())
    first = int(count * WARM_UP)
    await _until(worker, first)
    done, cpu = worker.counters.succeeded, time.process_time()
    await _until(worker, count)
    cpu, done = time.process_time() - cpu, worker.counters.succeeded - done
    rss = resident_memory()
    worker.stop()
    await running
    await ledger.close()
    return {"cpu_us": cpu / max(done, 1) * 1e6, "rss_mb": rss}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(int(sys.argv[1])))))
