"""Dead letters by the thousand: making them, going through them, sending them back.

run_redrive bury COUNT      make so many dead letters of 20 causes, indexed
run_redrive scan            go through all of them; group them
run_redrive redrive         send all of them back, unthrottled
run_redrive group           send those of one cause back
run_redrive remove          take those out of the queue that were sent back from the index
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace

from benchmarks.common import payload
from benchmarks.contenders.with_switchyard import MODULE
from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.dead.scan import scanning
from switchyard.broker.lanes import DEAD_EXCHANGE, LANES
from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope
from switchyard.cli.base.long_running import settle_memory
from switchyard.cli.engine.bulk.foreground import give_way
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.indexed import LeftoverRemover
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.redrive.spec import RedriveProgress, RedriveSpec, start_redrive

CAUSES = "ABCDEFGHIJKLMNOPQRST"
TOGETHER = 1_000


def letter(number: int) -> tuple[JobMessage, Envelope]:
    message = JobMessage(
        job_id=f"job-{number:07}",
        job_type="noop",
        payload=payload(number),
        metadata=Metadata(attempts=3),
    )
    info = DeadLetterInfo(
        Reason.EXHAUSTED,
        "backfill.noop",
        error_type=f"Error{CAUSES[number % len(CAUSES)]}",
        message=f"no page {number} of https://example.org/{number}",
        traceback=f'  File "/srv/jobs.py", line {number}, in fetch\n' * 5,
        attempts=3,
    )
    return message, envelope_of(message, info.headers())


async def bury(ledger: Ledger, settings: Settings, registry: Registry, count: int) -> object:
    async with Publisher(settings) as publisher:
        for start in range(0, count, TOGETHER):
            letters = [letter(number) for number in range(start, min(count, start + TOGETHER))]
            await ledger.jobs.record_many(
                [NewJob(message, "backfill", "llm", "backfill.noop") for message, _ in letters]
            )
            await asyncio.gather(
                *(
                    publisher.send(DEAD_EXCHANGE, "backfill.noop", envelope)
                    for _, envelope in letters
                )
            )
    started = time.perf_counter()
    indexed = await index_waiting(settings, ledger, registry)
    return {"indexed": indexed, "seconds": time.perf_counter() - started}


async def scan(ledger: Ledger, settings: Settings) -> object:
    started = time.perf_counter()
    async with scanning(settings.require_amqp_url(), profile=settings.profile) as scanned:
        count = sum([1 async for _ in scanned.letters()])
    scan_seconds = time.perf_counter() - started
    started = time.perf_counter()
    groups = await ledger.dead_letters.dead_groups()
    group_seconds = time.perf_counter() - started
    assert sum(group.count for group in groups) == count
    return {"scan": scan_seconds, "groups": group_seconds}


async def redrive(
    ledger: Ledger, settings: Settings, registry: Registry, which: LetterFilter
) -> object:
    lanes = tuple(replace(lane, max_length=100_000_000) for lane in LANES)
    handler = RedriveHandler(settings, registry, ledger, lanes=lanes)
    operation = await start_redrive(ledger, RedriveSpec(which), created_by="bench")
    started = time.perf_counter()
    ended = await BulkRunner(ledger, [handler]).run_one(operation.id)
    seconds = time.perf_counter() - started
    assert ended.state is BulkState.COMPLETED, ended
    return {"redriven": RedriveProgress.from_operation(ended).redriven, "seconds": seconds}


async def remove(ledger: Ledger, settings: Settings) -> object:
    started = time.perf_counter()
    await LeftoverRemover(settings, ledger).run()
    seconds = time.perf_counter() - started
    assert not await ledger.redrives.count_leftovers()
    return {"seconds": seconds}


async def main() -> None:
    configure("warning")
    settle_memory()  # both as `jobctl dead redrive` does
    give_way()
    settings = Settings()
    registry = Registry.load([MODULE])
    async with await Ledger.open(settings.ledger_url) as ledger:
        match sys.argv[1]:
            case "bury":
                answer = await bury(ledger, settings, registry, int(sys.argv[2]))
            case "scan":
                answer = await scan(ledger, settings)
            case "remove":
                answer = await remove(ledger, settings)
            case "group":
                [first, *_] = await ledger.dead_letters.dead_groups()
                which = LetterFilter(group=first.fingerprint)
                answer = await redrive(ledger, settings, registry, which)
            case _:
                answer = await redrive(ledger, settings, registry, LetterFilter())
    print(json.dumps(answer))


if __name__ == "__main__":
    asyncio.run(main())
