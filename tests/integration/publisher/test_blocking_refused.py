"""What the blocking publisher says of full lanes, of missing queues and of an alarm."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import aio_pika
import pytest

from switchyard.broker.dead.certificate import Reason, read
from switchyard.broker.errors import Blocked, BrokerAway, LaneFull, Unroutable
from switchyard.broker.lanes import DEAD_QUEUE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.outcome import PATIENCE, Accepted, Outgoing
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
    accepted_blocking,
    declare,
    depth,
    job,
    jobs,
    of,
    settings_of,
    take,
)

ANSWERS = (Accepted, LaneFull)


async def test_a_full_lane_refuses_and_nothing_is_kept(full_lanes: TestBroker) -> None:
    before = await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE)
    with BlockingPublisher(of(full_lanes)) as publisher, pytest.raises(LaneFull) as full:
        publisher.publish(job(), MAINTENANCE)
    assert not full.value.dead_lettered
    assert full.value.routing_key == MAINTENANCE
    assert await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE) == before
    assert await depth(full_lanes.amqp_url, DEAD_QUEUE) == 0


async def test_a_full_hot_lane_puts_the_newcomer_into_the_dead_letters(
    full_lanes: TestBroker,
) -> None:
    before = await depth(full_lanes.amqp_url, HOT_QUEUE)
    message = job("newcomer", url="https://example.org")
    with BlockingPublisher(of(full_lanes)) as publisher, pytest.raises(LaneFull) as full:
        publisher.publish(message, HOT)
    assert full.value.dead_lettered
    (letter,) = await take(full_lanes.amqp_url, DEAD_QUEUE, 1)
    assert JobMessage.decode(letter.body) == message
    assert letter.message_id == "newcomer"
    certificate = read(letter.headers, letter.routing_key or "", None)
    assert certificate.reason is Reason.OVERFLOWED
    assert certificate.routing_key == HOT
    assert await depth(full_lanes.amqp_url, HOT_QUEUE) == before


async def test_results_are_in_the_order_of_the_jobs(full_lanes: TestBroker) -> None:
    keys = [HOT, BACKFILL, MAINTENANCE, BACKFILL, HOT, MAINTENANCE, BACKFILL]
    with BlockingPublisher(of(full_lanes, publish_window=4)) as publisher:
        results = publisher.publish_many(Outgoing(job(key), key) for key in keys)
    told = [(type(each), each.routing_key) for each in results if isinstance(each, ANSWERS)]
    outcome = {HOT: LaneFull, BACKFILL: Accepted, MAINTENANCE: LaneFull}
    assert told == [(outcome[key], key) for key in keys]
    assert await depth(full_lanes.amqp_url, BACKFILL_QUEUE) == SHORT
    assert len(await take(full_lanes.amqp_url, DEAD_QUEUE, 2)) == 2


async def test_a_job_that_no_queue_takes_is_unroutable(broker: TestBroker) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        await channel.declare_exchange(JOBS_EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
    with BlockingPublisher(of(broker)) as publisher:
        with pytest.raises(Unroutable, match="jobctl topology apply"):
            publisher.publish(job(), HOT)
        results = publisher.publish_many(Outgoing(job("same"), HOT) for _ in range(20))
    assert {type(result) for result in results} == {Unroutable}


async def test_without_a_topology_the_publisher_says_what_to_do(broker: TestBroker) -> None:
    with BlockingPublisher(of(broker)) as publisher:
        with pytest.raises(Unroutable, match="jobctl topology apply"):
            publisher.publish(job(), HOT)
        await declare(broker)
        assert publisher.publish(job("job-1"), HOT) == Accepted("job-1", HOT)


async def test_a_job_that_does_not_fit_into_amqp_leaves_the_others_alone(
    lanes: TestBroker,
) -> None:
    with BlockingPublisher(of(lanes)) as publisher:
        with pytest.raises(ValueError, match="255 bytes"):
            publisher.publish(job(), "hot." + "x" * 255)
        assert publisher.publish(job("job-1"), HOT) == Accepted("job-1", HOT)


@pytest.mark.long
async def test_a_broker_with_an_alarm_takes_nothing_and_says_so(
    own_node: Callable[..., LocalNode],
) -> None:
    node = own_node()
    await declare(TestBroker("3.10", "classic", "/", node))
    alarm = partial(asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
    with BlockingPublisher(settings_of(node.amqp_url)) as publisher:
        publisher.publish(job("before"), HOT)
        await alarm("0.00000001")

        # The broker tells a connection of the alarm when it publishes, and keeps what it sent.
        began = time.monotonic()
        with pytest.raises(BrokerAway, match="blocks publishers") as held:
            publisher.publish(job("held"), HOT)
        assert held.value.maybe_accepted
        assert time.monotonic() - began < PATIENCE + 1

        began = time.monotonic()
        with pytest.raises(Blocked, match="nothing was sent"):
            publisher.publish(job("never-sent"), HOT)
        results = publisher.publish_many(jobs(100, HOT))
        assert {type(result) for result in results} == {Blocked}
        assert time.monotonic() - began < PATIENCE  # nobody has waited for anything

        await alarm("0.8")
        assert await eventually(
            partial(accepted_blocking, publisher, HOT), what="the end of the alarm"
        )
    arrived = {message.message_id for message in await take(node.amqp_url, HOT_QUEUE, 3)}
    assert {"before", "held"} < arrived
    assert "never-sent" not in arrived
    assert await depth(node.amqp_url, HOT_QUEUE) == 0
