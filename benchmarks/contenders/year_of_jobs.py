"""What `year` runs beside a worker: its job type, and a scheduler whose day takes seconds.

schedule prune|keep     run the scheduler; `keep`: nothing is old enough
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta

import structlog
from pydantic import BaseModel

from benchmarks.contenders.with_switchyard import MODULE as MODULE_OF_HOT
from switchyard.cli.base.long_running import settle_memory
from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_cleanup import Expiry, clean
from switchyard.services.common.files.storage_keys import extraction_key
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import start_purge
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome, Retry
from switchyard.services.engine.jobs.registry import Registry, job
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.scheduler.duties import SchedulerIntervals, bulk_handlers
from switchyard.services.engine.scheduler.scheduler import Scheduler
from switchyard.services.pipeline.index import lance_table
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.index_rebuild import compact_index
from switchyard.services.pipeline.index.open_index import index_of, open_index
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id

MODULE = "benchmarks.contenders.year_of_jobs"
DAY = "BENCH_DAY"
"""Seconds of a day, which everything is kept for."""
LOOKS_A_DAY = 10
"""Looks of the pruner; in a real day there are 1,440."""
if DAY in os.environ:  # ten minutes, of which there are 144 in a real day
    lance_table._VERSION_RETENTION = timedelta(seconds=float(os.environ[DAY]))
DOCUMENTS = 20
"""In the index, written anew in turn."""
CHUNKS = 5


class Ordinary(BaseModel):
    number: int
    pad: str = ""


@job("ordinary", worker="llm", lanes=("backfill",))
async def ordinary(payload: Ordinary, ctx: JobContext) -> Outcome:
    """Mostly nothing; of a hundred, some leave what has to be removed one day: a file, a further
    attempt, a follower, a dead letter, a document in the index."""
    number = payload.number
    match number % 100:
        case 10 | 60:
            key = extraction_key(ctx.job_id)
            await Storage(ctx.settings.files_url).put_async(key, payload.pad.encode())
        case 20 if ctx.attempt == 1:
            return Retry("once more")
        case 30:
            return Next([Job("noop", {"number": number + 1}, lane="backfill")])
        case 40 if number % 200 == 40:
            raise PermanentError(f"no page {number}")
        case 50 if number % 1000 == 50:
            await _index(ctx, f"document-{number // 1000 % DOCUMENTS}", payload.pad)
    return Done()


async def _index(ctx: JobContext, document: str, text: str) -> None:
    chunks = [
        Chunk(chunk_id(document, index), document, index, 1, f"{index} {text}")
        for index in range(CHUNKS)
    ]

    async def replace(table: ChunkIndex, embedder: Embedder) -> None:
        await table.delete_document(document)
        await table.put("Title", chunks, await embedder.embed([each.text for each in chunks]))

    async with index_of(ctx) as index:
        await index.write(replace)


async def schedule(*, prunes: bool) -> None:
    """Run the scheduler as `jobctl scheduler` does, and once a day what the built-in schedules do
    at night; dead letters are thrown away then, too."""
    configure("info")  # the pruner says how long its transactions took
    settle_memory()
    day = float(os.environ[DAY])
    age = day if prunes else None
    settings = Settings().model_copy(
        update={f"keep_{what}": age for what in ("succeeded", "cancelled", "dead", "operations")}
    )
    registry = Registry.load([MODULE_OF_HOT, MODULE])
    async with await Ledger.open(settings.ledger_url) as ledger:
        intervals = SchedulerIntervals(prune=day / LOOKS_A_DAY)
        scheduler = Scheduler(settings, registry, ledger, intervals=intervals)
        handlers = bulk_handlers(settings, registry, ledger, [MODULE])
        bulk = BulkRunner(ledger, handlers, when_due=scheduler.bulk_due)

        def stop() -> None:
            scheduler.stop()
            bulk.stop()
            nights.cancel()

        async with asyncio.TaskGroup() as group:
            nights = group.create_task(_nights(settings, ledger, day))
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
            group.create_task(scheduler.run())
            group.create_task(bulk.run())


async def _nights(settings: Settings, ledger: Ledger, day: float) -> None:
    expiry = Expiry(by_products=day / 3600, documents=None)
    while True:
        await asyncio.sleep(day)
        await clean(Storage(settings.files_url), ledger.references, expiry)
        await start_purge(ledger, LetterFilter(), created_by="bench")
        async with open_index(settings) as index:
            try:
                await compact_index(index)
            except RetryableError as error:  # a worker would retry; here, the next night does
                structlog.get_logger("nights").warning("index not compacted", error=str(error))


if __name__ == "__main__":
    asyncio.run(schedule(prunes=sys.argv[2] == "prune"))
