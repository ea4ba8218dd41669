"""The asyncio publisher alone: streams of an async generator, its shared connection, cancelled
publishes, and events."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.lanes import EVENTS_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.publish.outcome import Accepted, Outgoing, envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.broker.wire.envelope import Envelope
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    broker_settings,
    declare,
    depth,
    job,
    jobs,
    settings_of,
    try_publish,
)
from tests.support.tcp_proxy import TcpProxy


def make_event() -> Envelope:
    return Envelope(b"{}", "event")


async def test_a_stream_takes_no_more_jobs_of_its_generator_than_a_window(
    lanes: TestBroker,
) -> None:
    count, window = 2_000, 200
    assert (
        await count_most_under_way(broker_settings(lanes, publish_window=window), count)
        <= window + 1
    )
    assert await depth(lanes.amqp_url, BACKFILL_QUEUE) == count


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_the_smallest_windows_take_no_more_jobs_either(
    broker310: TestBroker, window: int
) -> None:
    await declare(broker310)
    assert (
        await count_most_under_way(broker_settings(broker310, publish_window=window), 50)
        <= window + 1
    )


async def count_most_under_way(settings: BrokerSettings, count: int) -> int:
    """Publish that many generated jobs; return how many of them were under way at most."""
    generated, yielded, max_under_way = 0, 0, 0

    async def generate() -> AsyncIterator[Outgoing]:
        nonlocal generated, max_under_way
        for number in range(count):
            generated += 1
            max_under_way = max(max_under_way, generated - yielded)
            yield Outgoing(job(f"job-{number}"), BACKFILL)

    async with Publisher(settings) as publisher:
        async for result in publisher.publish_stream(generate()):
            assert result == Accepted(f"job-{yielded}", BACKFILL)
            yielded += 1
    assert yielded == count
    return max_under_way


@pytest.mark.parametrize("window", [1, 2, 7, 100])
async def test_unconfirmed_messages_never_exceed_the_window(
    broker310: TestBroker, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(broker310)
    count = max(30, 2 * window)
    unconfirmed_counts: list[int] = []
    publish = PipelinedChannel.publish

    def count_unconfirmed(
        channel: PipelinedChannel, *args: Any, **options: Any
    ) -> asyncio.Future[None]:
        confirm = publish(channel, *args, **options)
        unconfirmed_counts.append(channel.unconfirmed)
        return confirm

    monkeypatch.setattr(PipelinedChannel, "publish", count_unconfirmed)
    async with Publisher(broker_settings(broker310, publish_window=window)) as publisher:
        async with asyncio.TaskGroup() as group:
            batch = group.create_task(publisher.publish_many(jobs(count, BACKFILL)))
            for _ in range(count):
                group.create_task(publisher.publish(job(), BACKFILL))
                group.create_task(publisher.send(JOBS_EXCHANGE, BACKFILL, envelope_of(job())))
        for _ in range(count):
            publisher.send_soon(EVENTS_EXCHANGE, "done.hot.crawl", make_event)
    assert [type(result) for result in batch.result()] == [Accepted] * count
    assert max(unconfirmed_counts) == window


async def test_publishes_of_many_coroutines_share_one_connection(broker310: TestBroker) -> None:
    await declare(broker310)
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        async with Publisher(settings_of(proxy.url(broker310.amqp_url))) as publisher:
            await asyncio.gather(*(publisher.publish(job(), BACKFILL) for _ in range(50)))
        assert proxy.connections == 1


async def test_closing_fails_the_publishes_that_wait_for_a_confirm(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    publisher = Publisher(settings)
    await publisher.publish(job(), HOT)
    proxy.pause("to_client")
    waiting = asyncio.create_task(publisher.publish(job(), HOT))
    channel = publisher._channel
    assert channel is not None
    await eventually(lambda: channel.unconfirmed)
    await publisher.close()
    with pytest.raises(BrokerUnavailable) as unavailable:
        await waiting
    assert unavailable.value.maybe_accepted


async def test_a_cancelled_publish_does_not_break_the_others(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    async with Publisher(settings) as publisher:
        await publisher.publish(job(), HOT)
        proxy.pause("to_client")
        tasks = [
            asyncio.create_task(publisher.publish(job(f"job-{number}"), HOT)) for number in range(3)
        ]
        channel = publisher._channel
        assert channel is not None
        await eventually(lambda: channel.unconfirmed == 3)
        tasks[1].cancel()
        proxy.resume()
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert first == Accepted("job-0", HOT)
        assert isinstance(second, asyncio.CancelledError)
        assert third == Accepted("job-2", HOT)
        assert channel.unconfirmed == 0
        assert await try_publish(publisher, HOT)
        assert publisher._channel is channel


async def test_a_publish_cancelled_while_connecting_does_not_break_the_others(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    proxy.pause()
    async with Publisher(settings) as publisher:
        first = asyncio.create_task(publisher.publish(job(), HOT))
        second = asyncio.create_task(publisher.publish(job("second"), HOT))
        await eventually(lambda: proxy.connections)
        first.cancel()
        await asyncio.wait((first,))
        proxy.resume()
        assert await second == Accepted("second", HOT)
        assert first.cancelled()
    assert proxy.connections == 1


async def test_an_event_is_dropped_rather_than_waiting_for_a_connection_or_the_window(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    async with Publisher(settings.model_copy(update={"publish_window": 5})) as publisher:
        send = partial(publisher.send_soon, EVENTS_EXCHANGE, "done.hot.crawl", make_event)
        send()
        assert proxy.connections == 0  # an event is no reason to connect
        await publisher.publish(job(), HOT)
        proxy.pause("to_client")
        for _ in range(20):
            send()
        channel = publisher._channel
        assert channel is not None
        assert channel.unconfirmed == 5
        proxy.resume()
        await eventually(lambda: channel.unconfirmed == 0)
        assert await try_publish(publisher, HOT)
