"""A backfill from a file of JSON Lines: how fast it publishes, and in how much memory.

run_backfill write FILE COUNT      make the file
run_backfill publish FILE          publish all of it, and tell how long that took
run_backfill hot COUNT             publish hot jobs at an even pace, once a worker has run the first
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.common import payload, resident_memory
from benchmarks.contenders.with_switchyard import MODULE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.publisher import Publisher
from switchyard.cli.base.long_running import settle_memory
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.counts import Counts
from switchyard.services.engine.backfill.files import store_input
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.backfill.handler import BackfillHandler
from switchyard.services.engine.backfill.spec import parse_spec
from switchyard.services.engine.backfill.starting import Backfills
from switchyard.services.engine.bulk.control import require_bulk
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import MAX_WAITING

LOOK = 0.05
HOT_PACE = 0.01
"""Seconds between two hot jobs."""


def write(file: Path, count: int) -> None:
    with file.open("w") as lines:
        for number in range(count):
            lines.write(json.dumps(payload(number) if count <= 100_000 else {"number": number}))
            lines.write("\n")


async def publish(file: Path) -> dict[str, float]:
    configure("warning")
    settle_memory()  # as `jobctl scheduler` does
    settings = Settings()
    registry = Registry.load([MODULE])
    async with await Ledger.open(settings.ledger_url) as ledger:
        backfills = Backfills.from_settings(settings, registry, ledger)
        key = await store_input(backfills.storage, _parts(file), FileFormat.JSONL)
        options = {"key": key, "format": "jsonl"}
        wanted = {"source": "file", "options": options, "job_type": "noop", "high": MAX_WAITING}
        operation = await backfills.start(parse_spec(wanted), created_by="bench")
        handler = BackfillHandler(settings, registry, ledger, backfills.sources)
        runner = BulkRunner(ledger, [handler])
        started = time.perf_counter()
        running = asyncio.create_task(runner.run_one(operation.id))
        while not running.done():
            counts = Counts.from_json((await require_bulk(ledger, operation.id)).counts)
            if counts.exhausted:
                break
            await asyncio.sleep(LOOK)
        seconds = time.perf_counter() - started
        runner.stop()
        await running
        assert counts.published == counts.total, counts
        peak = resident_memory("VmHWM")
        return {"seconds": seconds, "published": counts.published, "rss_mb": peak}


async def hot(count: int) -> dict[str, float]:
    async with Publisher(Settings()) as publisher:
        await _publish_hot(publisher)
        # How long a worker takes to start says nothing of hot work.
        await asyncio.to_thread(_wait_for, Path(os.environ["BENCH_LATENCIES"]))
        for _ in range(count - 1):
            await asyncio.sleep(HOT_PACE)
            await _publish_hot(publisher)
    return {"hot": count}


async def _publish_hot(publisher: Publisher) -> None:
    message = JobMessage(job_type="hot", priority=10, payload={"sent": time.time()})
    await publisher.publish(message, "hot.hot")


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(HOT_PACE)


async def _parts(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while part := opened.read(1024 * 1024):
            yield part


def main() -> None:
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "publish":
        print(json.dumps(asyncio.run(publish(Path(sys.argv[2])))))
    else:
        print(json.dumps(asyncio.run(hot(int(sys.argv[2])))))


if __name__ == "__main__":
    main()
