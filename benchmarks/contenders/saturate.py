"""Fill eight slots with jobs of 50 ms, then publish hot jobs at an even pace."""

from __future__ import annotations

import asyncio
import json
import sys
import time

BUSY_SECONDS = 0.05
PACE_SECONDS = 0.03


def hot_count(busy: int) -> int:
    """Hot jobs that fit into three quarters of the time that the busy ones take in 8 slots."""
    return int(busy * BUSY_SECONDS / 8 * 0.75 / PACE_SECONDS)


async def switchyard(busy: int) -> int:
    from switchyard.broker.message import JobMessage
    from switchyard.broker.publish.outcome import Outgoing
    from switchyard.broker.publish.publisher import Publisher
    from switchyard.services.common.settings import Settings

    async with Publisher(Settings()) as publisher:
        await publisher.publish_many(
            Outgoing(
                JobMessage(job_type="busy", priority=1, payload={"seconds": BUSY_SECONDS}),
                "backfill.busy",
            )
            for _ in range(busy)
        )
        await asyncio.sleep(1)
        for _ in range(hot_count(busy)):
            message = JobMessage(job_type="hot", priority=10, payload={"sent": time.time()})
            await publisher.publish(message, "hot.hot")
            await asyncio.sleep(PACE_SECONDS)
    return hot_count(busy)


def celery(busy: int) -> int:
    from benchmarks.contenders import with_celery

    for _ in range(busy):
        with_celery.busy.apply_async(({"seconds": BUSY_SECONDS},), priority=1)
    time.sleep(1)
    for _ in range(hot_count(busy)):
        with_celery.hot.apply_async(({"sent": time.time()},), priority=10)
        time.sleep(PACE_SECONDS)
    return hot_count(busy)


if __name__ == "__main__":
    number = int(sys.argv[2])
    sent = celery(number) if sys.argv[1] == "celery" else asyncio.run(switchyard(number))
    print(json.dumps({"hot": sent}))
