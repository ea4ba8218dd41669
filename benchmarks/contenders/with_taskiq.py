"""taskiq with taskiq-aio-pika: many publishes at once, within the same window."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from taskiq_aio_pika import AioPikaBroker

from benchmarks.common import URL, WINDOW, payload, sample

broker = AioPikaBroker(os.environ.get(URL, "amqp://localhost"), qos=WINDOW)


@broker.task(task_name="noop")
async def noop(job: dict[str, Any]) -> None:
    sample(job["number"])


def worker_command() -> list[str]:
    return [
        sys.executable, "-m", "taskiq", "worker", "benchmarks.contenders.with_taskiq:broker",
        "--workers", "1", "--max-async-tasks", str(WINDOW), "--log-level", "WARNING",
    ]  # fmt: skip


async def publish(count: int) -> float:
    await broker.startup()
    window = asyncio.Semaphore(WINDOW)

    async def one(number: int) -> None:
        async with window:
            await noop.kiq(payload(number))

    await one(0)
    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(1, count)))
    seconds = time.perf_counter() - started
    await broker.shutdown()
    return seconds


if __name__ == "__main__":
    print(json.dumps({"seconds": asyncio.run(publish(int(sys.argv[2])))}))
