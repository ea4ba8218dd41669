"""Lanes on a test's broker, jobs to publish to them, and reads of their queues."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import QueueEmpty
from pydantic import SecretStr

from switchyard.broker.closeable import AsyncCloseable
from switchyard.broker.lanes import LANES, Lane, Route
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.outcome import Accepted, Outgoing, Result
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings, Profile
from switchyard.broker.topology.build import build
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually

ROUTES = tuple(
    Route(lane, "crawl", worker)
    for lane, worker in (("hot", "ingest"), ("maintenance", "link"), ("backfill", "ingest"))
)
HOT, MAINTENANCE, BACKFILL = "hot.crawl", "maintenance.crawl", "backfill.crawl"
HOT_QUEUE, MAINTENANCE_QUEUE, BACKFILL_QUEUE = (route.queue for route in ROUTES)
SHORT_LENGTH = 3
MAX_OVERSHOOT = 50
"""Messages that a full quorum queue may take before it refuses."""


def short_lanes() -> tuple[Lane, ...]:
    """Return lanes that are soon full."""
    return tuple(replace(lane, max_length=SHORT_LENGTH) for lane in LANES)


async def declare(broker: TestBroker, lanes: Sequence[Lane] = LANES) -> None:
    """Declare everything that the system needs on a broker."""
    await broker.declare(build(broker.profile, ROUTES, lanes=lanes))


def settings_of(url: str, profile: Profile = "classic", **options: Any) -> BrokerSettings:
    return BrokerSettings(amqp_url=SecretStr(url), profile=profile, **options)


def broker_settings(broker: TestBroker, **options: Any) -> BrokerSettings:
    """Return settings that lead to a broker."""
    return settings_of(broker.amqp_url, broker.profile, **options)


def job(job_id: str | None = None, **payload: Any) -> JobMessage:
    id_field = {} if job_id is None else {"job_id": job_id}
    return JobMessage(job_type="crawl", priority=3, payload=payload, **id_field)


def jobs(count: int, routing_key: str) -> list[Outgoing]:
    return [Outgoing(job(), routing_key) for _ in range(count)]


class ThreadedPublisher(AsyncCloseable):
    """A blocking publisher with the methods of the asyncio one, so that a test can run with either.
    It runs in a thread, because the proxies of tests need their loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._publisher = BlockingPublisher(settings)

    async def publish(self, message: JobMessage, routing_key: str) -> Accepted:
        return await asyncio.to_thread(self._publisher.publish, message, routing_key)

    async def publish_many(self, outgoing: Iterable[Outgoing]) -> list[Result]:
        return await asyncio.to_thread(self._publisher.publish_many, outgoing)

    async def close(self) -> None:
        await asyncio.to_thread(self._publisher.close)


PublisherType = type[Publisher] | type[ThreadedPublisher]


async def try_publish(publisher: Publisher | ThreadedPublisher, routing_key: str) -> bool:
    """Publish a job, and return whether it is accepted; a refusal is not raised."""
    (result,) = await publisher.publish_many([Outgoing(job(), routing_key)])
    return isinstance(result, Accepted)


def try_publish_blocking(publisher: BlockingPublisher, routing_key: str) -> bool:
    """Publish a job with the blocking publisher, and return whether it is accepted."""
    (result,) = publisher.publish_many([Outgoing(job(), routing_key)])
    return isinstance(result, Accepted)


async def fill(publisher: Publisher, routing_key: str) -> None:
    """Publish until the lane refuses."""
    for _ in range(MAX_OVERSHOOT):
        if not await try_publish(publisher, routing_key):
            return
    raise AssertionError(f"{routing_key} was never full")


async def take(url: str, queue_name: str, count: int) -> list[AbstractIncomingMessage]:
    """Wait for so many messages of a queue, acknowledge and return them."""
    taken: list[AbstractIncomingMessage] = []

    async def all_taken() -> bool:
        with suppress(QueueEmpty):
            while len(taken) < count:
                taken.append(await queue.get(no_ack=True))
        return len(taken) == count

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue(queue_name, ensure=False)
        await eventually(all_taken, what=f"{count} messages in {queue_name}")
    return taken


async def depth(url: str, queue_name: str) -> int:
    """Count the messages that wait in a queue now, as the queue itself does."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue_name, passive=True)
        return declared.declaration_result.message_count or 0


async def is_depth(url: str, queue_name: str, count: int) -> bool:
    """Return whether so many messages wait in a queue now."""
    return await depth(url, queue_name) == count


@dataclass
class SlowPublisher(Publisher):
    """Passes jobs to the real publisher at once, and returns its results after `go_on`."""

    behind: Publisher
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish_many(self, jobs: Iterable[Outgoing]) -> list[Result]:
        results = await self.behind.publish_many(jobs)
        self.answered.set()
        await self.go_on.wait()
        return results
