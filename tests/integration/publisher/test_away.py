"""Both publishers while their broker can't be reached."""

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
    broker_settings,
    depth,
    is_depth,
    job,
    jobs,
    take,
    try_publish,
)
from tests.support.tcp_proxy import TcpProxy


async def test_a_broker_that_refuses_connections_is_unavailable_at_once(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings]
) -> None:
    proxy, settings = proxied
    proxy.refuse()
    async with publisher_type(settings) as publisher, asyncio.timeout(10):
        with pytest.raises(BrokerUnavailable) as unavailable:
            await publisher.publish(job(), HOT)
        assert not unavailable.value.maybe_accepted
        await proxy.accept()
        assert await try_publish(publisher, HOT)


async def test_a_silent_broker_is_unavailable_after_two_seconds(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings]
) -> None:
    proxy, settings = proxied
    proxy.pause()
    async with publisher_type(settings) as publisher:
        async with asyncio.timeout(10):
            with pytest.raises(BrokerUnavailable, match="no answer") as unavailable:
                await publisher.publish(job(), HOT)
        assert not unavailable.value.maybe_accepted
        proxy.resume()
        assert await try_publish(publisher, HOT)


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
            with pytest.raises(BrokerUnavailable) as unavailable:
                await publishing
        assert unavailable.value.maybe_accepted
        # The cut comes before the time-out.
        assert "no confirm within" not in str(unavailable.value)
        assert await publisher.publish(job("after"), HOT) == Accepted("after", HOT)
    arrived_ids = {message.message_id for message in await take(broker310.amqp_url, HOT_QUEUE, 3)}
    assert arrived_ids == {"before", "the-one", "after"}


async def test_a_job_lost_on_its_way_to_the_broker_may_have_been_accepted(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    async with publisher_type(settings) as publisher:
        await publisher.publish(job("before"), HOT)
        cut = proxy.cut_when(lambda seen: b"the-one" in seen)
        async with asyncio.timeout(MAX_WAIT):
            with pytest.raises(BrokerUnavailable) as unavailable:
                await publisher.publish(job("the-one"), HOT)
        assert cut.is_set()
        assert unavailable.value.maybe_accepted
        # The cut comes before the time-out.
        assert "no confirm within" not in str(unavailable.value)
        assert await publisher.publish(job("after"), HOT) == Accepted("after", HOT)
    arrived_ids = {message.message_id for message in await take(broker310.amqp_url, HOT_QUEUE, 2)}
    assert arrived_ids == {"before", "after"}


async def test_a_batch_that_is_cut_in_the_middle_has_a_result_for_every_job(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    job_ids = [f"job-{number:04}" for number in range(400)]
    proxy.cut_when(lambda seen: b"job-0250" in seen)
    async with publisher_type(settings.model_copy(update={"publish_window": 100})) as publisher:
        results = await publisher.publish_many(
            Outgoing(job(job_id), BACKFILL) for job_id in job_ids
        )
    accepted_ids = {result.job_id for result in results if isinstance(result, Accepted)}
    doubtful_ids = {
        job_id
        for job_id, result in zip(job_ids, results, strict=True)
        if isinstance(result, BrokerUnavailable) and result.maybe_accepted
    }
    assert accepted_ids | doubtful_ids == set(job_ids)
    assert 0 < len(doubtful_ids) <= 100
    queue_depth = await depth(broker310.amqp_url, BACKFILL_QUEUE)
    queued_ids = {
        message.message_id
        for message in await take(broker310.amqp_url, BACKFILL_QUEUE, queue_depth)
    }
    assert accepted_ids <= queued_ids <= accepted_ids | doubtful_ids


async def test_a_connection_that_was_closed_between_two_publishes_is_opened_again(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    """A script may pause for longer than heartbeats allow: no job counts as lost for that."""

    async def are_all_closed() -> bool:
        connections = await lanes.management.get("/vhosts/{vhost}/connections")
        return all(connection.get("state") != "running" for connection in connections)

    async with publisher_type(broker_settings(lanes)) as publisher:
        await publisher.publish(job(), HOT)
        assert await eventually(lanes.management.close_connections)
        await eventually(are_all_closed)
        assert await try_publish(publisher, HOT)


async def test_missing_confirms_of_a_batch_time_out_together(
    publisher_type: PublisherType, proxied: tuple[TcpProxy, BrokerSettings]
) -> None:
    proxy, settings = proxied
    settings = settings.model_copy(update={"confirm_timeout": 0.5, "publish_window": 10})
    async with publisher_type(settings) as publisher:
        await publisher.publish(job(), BACKFILL)
        proxy.pause("to_client")
        began = time.monotonic()
        results = await publisher.publish_many(jobs(30, BACKFILL))
        # Each job's time-out counts from its own sending: they do not add up.
        assert time.monotonic() - began < 10
        assert {type(result) for result in results} == {BrokerUnavailable}
        in_doubt = [r.maybe_accepted for r in results if isinstance(r, BrokerUnavailable)]
        assert in_doubt == [True] * 10 + [False] * 20
        with pytest.raises(BrokerUnavailable, match="this was not sent"):
            await publisher.publish(job(), BACKFILL)

        proxy.resume()
        assert await eventually(partial(try_publish, publisher, BACKFILL))
