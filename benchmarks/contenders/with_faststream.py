"""FastStream: many publishes at once, within the same window; persistent and confirmed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from faststream import FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from benchmarks.common import URL, WINDOW, payload, sample

broker = RabbitBroker(
    os.environ.get(URL, "amqp://localhost"),
    default_channel=Channel(prefetch_count=WINDOW),
    logger=None,
)
app = FastStream(broker, logger=None)
QUEUE = RabbitQueue("bench.faststream", durable=True)


@broker.subscriber(QUEUE)
async def noop(job: dict[str, Any]) -> None:
    sample(job["number"])


def worker_command() -> list[str]:
    return [sys.executable, "-m", "benchmarks.contenders.with_faststream", "work"]


async def publish(count: int) -> float:
    await broker.connect()
    await broker.declare_queue(QUEUE)
    window = asyncio.Semaphore(WINDOW)

    async def one(number: int) -> None:
        async with window:
            await broker.publish(payload(number), QUEUE, persist=True, mandatory=True)

    await one(0)
    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(1, count)))
    seconds = time.perf_counter() - started
    await broker.stop()
    return seconds


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(app.run())
    else:
        print(json.dumps({"seconds": asyncio.run(publish(int(sys.argv[2])))}))
