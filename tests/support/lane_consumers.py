"""Queues of one worker kind on a test's broker, their consumers, and a handler that records."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.errors import Refused
from switchyard.broker.lanes import JOBS_EXCHANGE, LANES, Lane, Route
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.topology.build import build
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.reconnector import Reconnector
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.jobs import Signals
from tests.support.publishing import MAX_OVERSHOOT

HOT, MAINTENANCE, BACKFILL = "hot.any", "maintenance.any", "backfill.any"
QUEUES = (HOT, BACKFILL)
RETRY_DELAY = 0.2
"""Seconds for which the only retry queue holds a message."""
LOG = structlog.get_logger("test")


class Handler(Signals):
    """Handler of messages: one whose id begins with `held` runs until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[str] = []
        """Message ids, in the order in which their handlers began."""
        self.started_at: dict[str, float] = {}
        """When the handler of each message id began; seconds, on the monotonic clock."""
        self.deliveries: dict[str, Delivery] = {}
        """The last delivery of each message id."""
        self.released: set[str] = set()
        """Ids of held messages whose handlers may end."""
        self.duration = 0.0
        """Seconds for which a message runs that is not held."""

    def __repr__(self) -> str:
        return f"<Handler: {self.starts}>"

    async def __call__(self, delivery: Delivery) -> None:
        name = delivery.message_id
        self.starts.append(name)
        self.started_at[name] = time.monotonic()
        self.deliveries[name] = delivery
        self.changed()
        if name.startswith("held"):
            await self.until(lambda: name in self.released, timeout=60)
        elif self.duration:
            await asyncio.sleep(self.duration)
        delivery.ack()

    def release(self, *names: str) -> None:
        self.released |= set(names)
        self.changed()

    def release_all(self) -> None:
        self.release(*(name for name in self.starts if name.startswith("held")))

    async def started(self, *names: str) -> None:
        """Wait until the handlers of these messages have started."""
        await self.until(lambda: set(names) <= set(self.starts))

    def started_ids(self, prefix: str) -> list[str]:
        """Return the started messages whose ids begin so, in the order of their starts."""
        return [name for name in self.starts if name.startswith(prefix)]


class Lanes:
    """Queues of one kind of worker on a test's broker, and consumers of them."""

    def __init__(self, broker: TestBroker, publisher: Publisher) -> None:
        self.broker = broker
        self.publisher = publisher
        self._running: list[tuple[LaneConsumer, asyncio.Task[None], Reconnector, Handler]] = []

    async def publish(self, lane: str, names: Iterable[str], *, priority: int = 0) -> list[str]:
        """Publish messages of these ids to the lane, all confirmed."""
        ids = list(names)
        await asyncio.gather(
            *(
                self.publisher.send(
                    JOBS_EXCHANGE, f"{lane}.job", Envelope(b"{}", message_id, priority=priority)
                )
                for message_id in ids
            )
        )
        return ids

    async def fill(self, lane: str) -> list[str]:
        """Publish until the lane refuses a message; return the ids of those it took."""
        taken_ids: list[str] = []
        for number in range(MAX_OVERSHOOT):
            try:
                taken_ids += await self.publish(lane, [f"filling-{number}"])
            except Refused:
                return taken_ids
        raise AssertionError("the lane never refused")

    async def consume(
        self,
        handler: Handler,
        *,
        queues: Sequence[str] = QUEUES,
        url: str | None = None,
        wait: bool = True,
        **options: Any,
    ) -> LaneConsumer:
        """Start a consumer and, with `wait`, wait until it consumes its queues."""
        reconnector = Reconnector(url or self.broker.amqp_url, "test consumer", LOG)
        consumer = LaneConsumer(reconnector, queues, handler, LOG, **{"slots": 4, **options})
        task = asyncio.create_task(consumer.run())
        self._running.append((consumer, task, reconnector, handler))
        if wait:
            await self.consuming(consumer)
        return consumer

    async def consuming(
        self, consumer: LaneConsumer, *queues: str, timeout: float = MAX_WAIT
    ) -> None:
        """Wait until the consumer consumes these of its queues, or all if none is named."""

        def is_consuming() -> bool:
            states = consumer.states
            return all(states[name] == "consuming" for name in queues or states)

        await eventually(is_consuming, timeout, f"consuming {queues or 'all'}")

    async def stop(self, consumer: LaneConsumer) -> None:
        """Stop the consumer and close its connection: the broker has back what it held."""
        for running, task, reconnector, handler in self._running:
            if running is consumer:
                running.stop()
                await asyncio.wait_for(task, 10)
                handler.release_all()
                await running.drain(5)
                await reconnector.close()

    async def close(self) -> None:
        for consumer, *_ in self._running:
            await self.stop(consumer)

    async def ready(self, queue: str) -> int:
        """Return the number of messages in the queue that no consumer holds."""
        channel = await self.publisher._get_channel()
        return (await channel.queue_declare(queue, passive=True)).message_count or 0

    async def wait_until_ready(self, queue: str, count: int) -> None:
        async def is_count() -> bool:
            return await self.ready(queue) == count

        await eventually(is_count, what=f"{count} ready in {queue}")


def lanes_for(**max_length: int) -> tuple[Lane, ...]:
    """Return the lanes without worker queues, some with another maximum length."""
    return tuple(
        replace(lane, workers=(), max_length=max_length.get(lane.name, lane.max_length))
        for lane in LANES
    )


@asynccontextmanager
async def lanes_on(broker: TestBroker, lanes: tuple[Lane, ...]) -> AsyncIterator[Lanes]:
    """Declare these lanes for one job type, and publish to and consume from them."""
    routes = [Route(lane, "job", "any") for lane in ("hot", "maintenance", "backfill")]
    topology = build(broker.profile, routes, lanes=lanes, retry_delays=[RETRY_DELAY])
    await broker.declare(topology)
    settings = BrokerSettings(amqp_url=broker.amqp_url, profile=broker.profile)
    async with Publisher(settings) as publisher:
        opened = Lanes(broker, publisher)
        try:
            yield opened
        finally:
            await opened.close()


def message_ids(prefix: str, count: int) -> list[str]:
    """Return that many ids: `prefix-0`, `prefix-1` …"""
    return [f"{prefix}-{number}" for number in range(count)]
