"""Both publishers while their broker is away."""

import asyncio
import time
from functools import partial

import pytest

from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.publish.outcome import Accepted, Outgoing
from switchyard.broker.settings import BrokerSettings
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    HOT_QUEUE,
    PublisherType,
    accepted,
    broker_settings,
    depth,
    is_depth,
    job,
    jobs,
    take,
)
from tests.support.tcp_proxy import TcpProxy


async def test_a_broker_that_refuses_connections_is_away_at_once(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings]
) -> None:
    proxy, settings = proxied
    proxy.refuse()
    async with publisher_type(settings) as publisher, asyncio.timeout(10):
        with pytest.raises(BrokerUnavailable) as away:
            await publisher.publish(job(), HOT)
        assert not away.value.maybe_accepted
        await proxy.accept()
        assert await accepted(publisher, HOT)


async def test_a_broker_that_is_silent_is_away_after_two_seconds(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings]
) -> None:
    proxy, settings = proxied
    proxy.pause()
    async with publisher_type(settings) as publisher:
        async with asyncio.timeout(10):
            with pytest.raises(BrokerUnavailable, match="no answer") as away:
                await publisher.publish(job(), HOT)
        assert not away.value.maybe_accepted
        proxy.resume()
        assert await accepted(publisher, HOT)


async def test_a_job_whose_confirm_got_lost_may_have_been_accepted(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    async with publisher_type(settings) as publisher:
        await publisher.publish(job("before"), HOT)
        proxy.pause("to_client")
        publishing = asyncio.create_task(publisher.publish(job("the-one"), HOT))
        await eventually(partial(is_depth, broker310.amqp_url, HOT_QUEUE, 2))
        proxy.cut()
        proxy.resume()
        async with asyncio.timeout(MAX_WAIT):
            with pytest.raises(BrokerUnavailable) as away:
                await publishing
        assert away.value.maybe_accepted
        assert "no confirm within" not in str(away.value)  # by the cut, which comes first
        assert await publisher.publish(job("after"), HOT) == Accepted("after", HOT)
    found = {each.message_id for each in await take(broker310.amqp_url, HOT_QUEUE, 3)}
    assert found == {"before", "the-one", "after"}


async def test_a_job_that_got_lost_on_its_way_may_have_been_accepted_too(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    async with publisher_type(settings) as publisher:
        await publisher.publish(job("before"), HOT)
        cut = proxy.cut_when(lambda seen: b"the-one" in seen)
        async with asyncio.timeout(MAX_WAIT):
            with pytest.raises(BrokerUnavailable) as away:
                await publisher.publish(job("the-one"), HOT)
        assert cut.is_set()
        assert away.value.maybe_accepted
        assert "no confirm within" not in str(away.value)  # by the cut, which comes first
        assert await publisher.publish(job("after"), HOT) == Accepted("after", HOT)
    found = {each.message_id for each in await take(broker310.amqp_url, HOT_QUEUE, 2)}
    assert found == {"before", "after"}


async def test_a_batch_that_is_cut_in_the_middle_accounts_for_every_job(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    names = [f"job-{number:04}" for number in range(400)]
    proxy.cut_when(lambda seen: b"job-0250" in seen)
    async with publisher_type(settings.model_copy(update={"publish_window": 100})) as publisher:
        results = await publisher.publish_many(Outgoing(job(name), BACKFILL) for name in names)
    sure = {result.job_id for result in results if isinstance(result, Accepted)}
    unsure = {
        name
        for name, result in zip(names, results, strict=True)
        if isinstance(result, BrokerUnavailable) and result.maybe_accepted
    }
    assert sure | unsure == set(names)
    assert 0 < len(unsure) <= 100
    in_queue = await depth(broker310.amqp_url, BACKFILL_QUEUE)
    there = {each.message_id for each in await take(broker310.amqp_url, BACKFILL_QUEUE, in_queue)}
    assert sure <= there <= sure | unsure


async def test_a_connection_that_was_closed_between_two_publishes_is_opened_again(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    """A script may rest longer than heartbeats allow: nothing is told as lost for that."""

    async def all_closed() -> bool:
        connections = await lanes.management.get("/vhosts/{vhost}/connections")
        return all(connection.get("state") != "running" for connection in connections)

    async with publisher_type(broker_settings(lanes)) as publisher:
        await publisher.publish(job(), HOT)
        assert await eventually(lanes.management.close_connections)
        await eventually(all_closed)
        assert await accepted(publisher, HOT)


async def test_a_confirm_that_does_not_come_is_told_in_time(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings]
) -> None:
    proxy, settings = proxied
    settings = settings.model_copy(update={"confirm_timeout": 0.5, "publish_window": 10})
    async with publisher_type(settings) as publisher:
        await publisher.publish(job(), BACKFILL)
        proxy.pause("to_client")
        began = time.monotonic()
        results = await publisher.publish_many(jobs(30, BACKFILL))
        # Each waits from its own sending on: the time-outs do not add up.
        assert time.monotonic() - began < 10
        assert {type(result) for result in results} == {BrokerUnavailable}
        in_doubt = [r.maybe_accepted for r in results if isinstance(r, BrokerUnavailable)]
        assert in_doubt == [True] * 10 + [False] * 20
        with pytest.raises(BrokerUnavailable, match="this was not sent"):
            await publisher.publish(job(), BACKFILL)

        proxy.resume()
        assert await eventually(partial(accepted, publisher, BACKFILL))
