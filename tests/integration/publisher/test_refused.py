"""What both publishers say of full lanes, of missing queues and of an alarm."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import aio_pika
import pytest

from switchyard.broker.dead.certificate import Reason, read
from switchyard.broker.errors import Blocked, BrokerAway, LaneFull, Unroutable
from switchyard.broker.lanes import DEAD_QUEUE, EVENTS_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import PATIENCE, Accepted, Outgoing
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope
from switchyard.cli.system.node import LocalNode
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    HOT_QUEUE,
    MAINTENANCE,
    MAINTENANCE_QUEUE,
    SHORT,
    InThread,
    PublisherType,
    accepted,
    declare,
    depth,
    job,
    jobs,
    of,
    settings_of,
    take,
)

ANSWERS = (Accepted, LaneFull)


def event() -> Envelope:
    return Envelope(b"{}", "event")


async def test_a_full_lane_refuses_and_nothing_is_kept(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    before = await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE)
    async with publisher_type(of(full_lanes)) as publisher:
        with pytest.raises(LaneFull) as full:
            await publisher.publish(job(), MAINTENANCE)
    assert not full.value.dead_lettered
    assert full.value.routing_key == MAINTENANCE
    assert await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE) == before
    assert await depth(full_lanes.amqp_url, DEAD_QUEUE) == 0


async def test_a_full_hot_lane_puts_the_newcomer_into_the_dead_letters(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    before = await depth(full_lanes.amqp_url, HOT_QUEUE)
    message = job("newcomer", url="https://example.org")
    async with publisher_type(of(full_lanes)) as publisher:
        with pytest.raises(LaneFull) as full:
            await publisher.publish(message, HOT)
    assert full.value.dead_lettered
    (letter,) = await take(full_lanes.amqp_url, DEAD_QUEUE, 1)
    assert JobMessage.decode(letter.body) == message
    assert letter.message_id == "newcomer"
    certificate = read(letter.headers, letter.routing_key or "", None)
    assert certificate.reason is Reason.OVERFLOWED
    assert certificate.routing_key == HOT
    assert await depth(full_lanes.amqp_url, HOT_QUEUE) == before


async def test_results_are_in_the_order_of_the_jobs(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    keys = [HOT, BACKFILL, MAINTENANCE, BACKFILL, HOT, MAINTENANCE, BACKFILL]
    async with publisher_type(of(full_lanes, publish_window=4)) as publisher:
        results = await publisher.publish_many(Outgoing(job(key), key) for key in keys)
    told = [(type(each), each.routing_key) for each in results if isinstance(each, ANSWERS)]
    outcome = {HOT: LaneFull, BACKFILL: Accepted, MAINTENANCE: LaneFull}
    assert told == [(outcome[key], key) for key in keys]
    assert await depth(full_lanes.amqp_url, BACKFILL_QUEUE) == SHORT
    assert len(await take(full_lanes.amqp_url, DEAD_QUEUE, 2)) == 2


async def test_a_lane_takes_jobs_again_when_there_is_room(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    async with publisher_type(of(full_lanes)) as publisher:
        with pytest.raises(LaneFull):
            await publisher.publish(job(), MAINTENANCE)
        await take(full_lanes.amqp_url, MAINTENANCE_QUEUE, SHORT)
        assert await eventually(partial(accepted, publisher, MAINTENANCE))


async def test_a_job_that_no_queue_takes_is_unroutable(
    publisher_type: PublisherType, broker: TestBroker
) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        await channel.declare_exchange(JOBS_EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
    async with publisher_type(of(broker)) as publisher:
        with pytest.raises(Unroutable, match=r"'hot\.crawl': run `jobctl topology apply`"):
            await publisher.publish(job(), HOT)
        results = await publisher.publish_many(Outgoing(job("same"), HOT) for _ in range(20))
    assert {type(result) for result in results} == {Unroutable}


async def test_without_a_topology_the_publisher_says_what_to_do(
    publisher_type: PublisherType, broker: TestBroker
) -> None:
    async with publisher_type(of(broker)) as publisher:
        with pytest.raises(Unroutable, match="jobctl topology apply"):
            await publisher.publish(job(), HOT)
        await declare(broker)
        assert await publisher.publish(job("job-1"), HOT) == Accepted("job-1", HOT)


async def test_a_job_that_does_not_fit_into_amqp_leaves_the_others_alone(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    async with publisher_type(of(lanes)) as publisher:
        with pytest.raises(ValueError, match="255 bytes"):
            await publisher.publish(job(), "hot." + "x" * 255)
        assert await publisher.publish(job("job-1"), HOT) == Accepted("job-1", HOT)


@pytest.mark.parametrize(
    "publisher_type",
    [Publisher, pytest.param(InThread, marks=pytest.mark.long)],
    ids=["asyncio", "blocking"],
)
async def test_a_broker_with_an_alarm_takes_nothing_and_says_so(
    publisher_type: PublisherType, own_node: Callable[..., LocalNode]
) -> None:
    node = own_node()
    await declare(TestBroker("3.10", "classic", "/", node))
    alarm = partial(asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
    async with publisher_type(settings_of(node.amqp_url)) as publisher:
        await publisher.publish(job("before"), HOT)
        await alarm("0.00000001")

        # The broker tells a connection of the alarm when it publishes, and keeps what it sent.
        began = time.monotonic()
        with pytest.raises(BrokerAway, match="blocks publishers") as held:
            await publisher.publish(job("held"), HOT)
        assert held.value.maybe_accepted
        assert time.monotonic() - began < PATIENCE + 1

        began = time.monotonic()
        with pytest.raises(Blocked, match="nothing was sent"):
            await publisher.publish(job("never-sent"), HOT)
        results = await publisher.publish_many(jobs(100, HOT))
        if isinstance(publisher, Publisher):
            publisher.send_soon(EVENTS_EXCHANGE, "done.hot.crawl", event)
        assert {type(result) for result in results} == {Blocked}
        assert time.monotonic() - began < PATIENCE  # nobody has waited for anything

        await alarm("0.8")
        await eventually(partial(accepted, publisher, HOT), what="the end of the alarm")
    arrived = {message.message_id for message in await take(node.amqp_url, HOT_QUEUE, 3)}
    assert {"before", "held"} < arrived
    assert "never-sent" not in arrived
    assert await depth(node.amqp_url, HOT_QUEUE) == 0
