"""A plain aio-pika loop: what one would write without a job system."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import aio_pika

from benchmarks.common import URL, WINDOW, payload

QUEUE = "bench.plain"


async def publish(count: int) -> float:
    connection = await aio_pika.connect(os.environ[URL])
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue(QUEUE, durable=True, arguments={"x-max-priority": 10})
        exchange = channel.default_exchange
        window = asyncio.Semaphore(WINDOW)

        async def one(number: int) -> None:
            async with window:
                message = aio_pika.Message(
                    json.dumps(payload(number)).encode(),
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=str(number),
                    priority=1,
                    content_type="application/json",
                )
                await exchange.publish(message, QUEUE, mandatory=True)

        started = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        seconds = time.perf_counter() - started
        await channel.queue_delete(QUEUE)
    return seconds


if __name__ == "__main__":
    print(json.dumps({"seconds": asyncio.run(publish(int(sys.argv[2])))}))
