"""What the asyncio publisher accepts is in its queue; no more is under way than its window."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aio_pika
import pytest

from switchyard.broker.lanes import EVENTS_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Accepted, Outgoing, envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.broker.wire.envelope import Envelope
from tests.support.brokers import TestBroker
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    HOT_QUEUE,
    declare,
    depth,
    job,
    jobs,
    of,
    settings_of,
    take,
)
from tests.support.tcp_proxy import TcpProxy


async def test_an_accepted_job_is_in_its_queue_with_all_its_properties(lanes: TestBroker) -> None:
    message = job("job-1", url="https://example.org/ü")
    async with Publisher(of(lanes)) as publisher:
        assert await publisher.publish(message, HOT) == Accepted("job-1", HOT)

    (arrived,) = await take(lanes.amqp_url, HOT_QUEUE, 1)
    assert JobMessage.decode(arrived.body) == message
    assert arrived.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert arrived.message_id == "job-1"
    assert arrived.type == "crawl"
    assert arrived.priority == 3
    assert arrived.content_type == "application/json"
    assert arrived.timestamp == message.metadata.created_at.replace(microsecond=0)
    assert arrived.timestamp <= datetime.now(UTC)
    assert (arrived.exchange, arrived.routing_key) == (JOBS_EXCHANGE, HOT)


async def test_a_body_of_many_frames_arrives_whole(lanes: TestBroker) -> None:
    message = job(text="é" * 400_000)
    async with Publisher(of(lanes)) as publisher:
        await publisher.publish(message, HOT)
        await publisher.publish(job("behind-it"), HOT)
    arrived = await take(lanes.amqp_url, HOT_QUEUE, 2)
    bodies = {each.message_id: each.body for each in arrived}
    assert JobMessage.decode(bodies[message.job_id]) == message
    assert JobMessage.decode(bodies["behind-it"]).payload == {}


async def test_thousands_of_jobs_of_a_generator_are_never_all_in_memory(lanes: TestBroker) -> None:
    count, window = 2_000, 200
    assert await most_held(of(lanes, publish_window=window), count) <= window + 1
    assert await depth(lanes.amqp_url, BACKFILL_QUEUE) == count


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_the_smallest_windows_hold_no_more(broker310: TestBroker, window: int) -> None:
    await declare(broker310)
    assert await most_held(of(broker310, publish_window=window), 50) <= window + 1


async def most_held(settings: BrokerSettings, count: int) -> int:
    """Publish so many generated jobs; how many of them were under way at most."""
    made, yielded, most = 0, 0, 0

    async def generate() -> AsyncIterator[Outgoing]:
        nonlocal made, most
        for number in range(count):
            made += 1
            most = max(most, made - yielded)
            yield Outgoing(job(f"job-{number}"), BACKFILL)

    async with Publisher(settings) as publisher:
        async for result in publisher.publish_stream(generate()):
            assert result == Accepted(f"job-{yielded}", BACKFILL)
            yielded += 1
    assert yielded == count
    return most


@pytest.mark.parametrize("window", [1, 2, 7, 100])
async def test_never_more_than_a_window_is_unconfirmed(
    broker310: TestBroker, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(broker310)
    count = max(30, 2 * window)
    seen: list[int] = []
    publish = PipelinedChannel.publish

    def watched(channel: PipelinedChannel, *args: Any, **options: Any) -> asyncio.Future[None]:
        confirm = publish(channel, *args, **options)
        seen.append(channel.unconfirmed)
        return confirm

    monkeypatch.setattr(PipelinedChannel, "publish", watched)
    async with Publisher(of(broker310, publish_window=window)) as publisher:
        async with asyncio.TaskGroup() as group:
            batch = group.create_task(publisher.publish_many(jobs(count, BACKFILL)))
            for _ in range(count):
                group.create_task(publisher.publish(job(), BACKFILL))
                group.create_task(publisher.send(JOBS_EXCHANGE, BACKFILL, envelope_of(job())))
        for _ in range(count):
            publisher.send_soon(EVENTS_EXCHANGE, "done.hot.crawl", Envelope(b"{}", "event"))
    assert [type(result) for result in batch.result()] == [Accepted] * count
    assert max(seen) == window


async def test_publishes_of_many_coroutines_share_one_connection(broker310: TestBroker) -> None:
    await declare(broker310)
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        async with Publisher(settings_of(proxy.url(broker310.amqp_url))) as publisher:
            await asyncio.gather(*(publisher.publish(job(), BACKFILL) for _ in range(50)))
        assert proxy.connections == 1
