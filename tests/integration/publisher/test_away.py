"""The asyncio publisher while its broker is away, and what a cancelled publish leaves alone."""

import asyncio
import time
from functools import partial

import pytest

from switchyard.broker.errors import BrokerAway
from switchyard.broker.lanes import EVENTS_EXCHANGE
from switchyard.broker.publish.outcome import Accepted, Outgoing
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.envelope import Envelope
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    HOT_QUEUE,
    accepted,
    depth,
    is_depth,
    job,
    jobs,
    of,
    take,
)
from tests.support.tcp_proxy import TcpProxy


async def test_a_broker_that_refuses_connections_is_away_at_once(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    proxy.refuse()
    async with Publisher(settings) as publisher, asyncio.timeout(2.5):
        with pytest.raises(BrokerAway) as away:
            await publisher.publish(job(), HOT)
        assert not away.value.maybe_accepted
        await proxy.accept()
        assert await accepted(publisher, HOT)


async def test_a_broker_that_is_silent_is_away_after_two_seconds(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    proxy.pause()
    async with Publisher(settings) as publisher:
        async with asyncio.timeout(2.5):
            with pytest.raises(BrokerAway, match="no answer") as away:
                await publisher.publish(job(), HOT)
        assert not away.value.maybe_accepted
        proxy.resume()
        assert await accepted(publisher, HOT)


async def test_a_job_whose_confirm_got_lost_may_have_been_accepted(
    proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    async with Publisher(settings) as publisher:
        await publisher.publish(job("before"), HOT)
        proxy.pause("to_client")
        publishing = asyncio.create_task(publisher.publish(job("the-one"), HOT))
        await eventually(partial(is_depth, broker310.amqp_url, HOT_QUEUE, 2))
        proxy.cut()
        proxy.resume()
        async with asyncio.timeout(5):
            with pytest.raises(BrokerAway) as away:
                await publishing
        assert away.value.maybe_accepted
        assert await publisher.publish(job("after"), HOT) == Accepted("after", HOT)
    found = {each.message_id for each in await take(broker310.amqp_url, HOT_QUEUE, 3)}
    assert found == {"before", "the-one", "after"}


async def test_a_job_that_got_lost_on_its_way_may_have_been_accepted_too(
    proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    async with Publisher(settings) as publisher:
        await publisher.publish(job("before"), HOT)
        cut = proxy.cut_when(lambda seen: b"the-one" in seen)
        async with asyncio.timeout(5):
            with pytest.raises(BrokerAway) as away:
                await publisher.publish(job("the-one"), HOT)
        assert cut.is_set()
        assert away.value.maybe_accepted
        assert await publisher.publish(job("after"), HOT) == Accepted("after", HOT)
    found = {each.message_id for each in await take(broker310.amqp_url, HOT_QUEUE, 2)}
    assert found == {"before", "after"}


async def test_a_batch_that_is_cut_in_the_middle_accounts_for_every_job(
    proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    names = [f"job-{number:04}" for number in range(400)]
    proxy.cut_when(lambda seen: b"job-0250" in seen)
    async with Publisher(settings.model_copy(update={"publish_window": 100})) as publisher:
        results = await publisher.publish_many(Outgoing(job(name), BACKFILL) for name in names)
    sure = {result.job_id for result in results if isinstance(result, Accepted)}
    unsure = {
        name
        for name, result in zip(names, results, strict=True)
        if isinstance(result, BrokerAway) and result.maybe_accepted
    }
    assert sure | unsure == set(names)
    assert 0 < len(unsure) <= 100
    in_queue = await depth(broker310.amqp_url, BACKFILL_QUEUE)
    there = {each.message_id for each in await take(broker310.amqp_url, BACKFILL_QUEUE, in_queue)}
    assert sure <= there <= sure | unsure


async def test_a_connection_that_was_closed_between_two_publishes_is_opened_again(
    lanes: TestBroker,
) -> None:
    async with Publisher(of(lanes)) as publisher:
        await publisher.publish(job(), HOT)
        channel = publisher._channel
        assert channel is not None
        assert await eventually(lanes.management.close_connections)
        await channel.closed
        assert await accepted(publisher, HOT)


async def test_a_confirm_that_does_not_come_is_told_in_time(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    settings = settings.model_copy(update={"confirm_timeout": 0.5, "publish_window": 10})
    async with Publisher(settings) as publisher:
        await publisher.publish(job(), BACKFILL)
        proxy.pause("to_client")
        began = time.monotonic()
        results = await publisher.publish_many(jobs(30, BACKFILL))
        # Each waits from its own sending on: the time-outs do not add up.
        assert time.monotonic() - began < 3
        assert {type(result) for result in results} == {BrokerAway}
        in_doubt = [r.maybe_accepted for r in results if isinstance(r, BrokerAway)]
        assert in_doubt == [True] * 10 + [False] * 20
        with pytest.raises(BrokerAway, match="this was not sent"):
            await publisher.publish(job(), BACKFILL)

        proxy.resume()
        assert await eventually(partial(accepted, publisher, BACKFILL))


async def test_closing_ends_the_publishes_that_wait(
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
    with pytest.raises(BrokerAway) as away:
        await waiting
    assert away.value.maybe_accepted


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
        assert await accepted(publisher, HOT)
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


async def test_an_event_is_sent_only_where_nobody_has_to_wait(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    async with Publisher(settings.model_copy(update={"publish_window": 5})) as publisher:
        event = partial(
            publisher.send_soon, EVENTS_EXCHANGE, "done.hot.crawl", Envelope(b"{}", "event")
        )
        event()
        assert proxy.connections == 0  # an event is no reason to connect
        await publisher.publish(job(), HOT)
        proxy.pause("to_client")
        for _ in range(20):
            event()
        channel = publisher._channel
        assert channel is not None
        assert channel.unconfirmed == 5
        proxy.resume()
        await eventually(lambda: channel.unconfirmed == 0)
        assert await accepted(publisher, HOT)
