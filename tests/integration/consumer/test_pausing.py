"""Pausing and stopping the consumer: jobs that it holds go back or end."""

import pytest

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.wire.reconnector import Reconnector
from tests.support.eventually import eventually
from tests.support.lane_consumers import BACKFILL, HOT, LOG, Handler, Lanes, message_ids
from tests.support.tcp_proxy import TcpProxy


async def test_a_paused_consumer_takes_nothing_until_it_is_resumed(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    consumer = await lanes.consume(handler, slots=2, reserve=0)
    await lanes.publish("hot", message_ids("held", 2))
    await handler.started(*message_ids("held", 2))
    await lanes.publish("backfill", message_ids("backfill", 2))
    await eventually(lambda: consumer.waiting == 2)
    consumer.pause()
    assert consumer.waiting == 0
    await eventually(lambda: set(consumer.states.values()) == {"resting"})
    handler.release_all()
    await eventually(lambda: consumer.running == 0)
    await lanes.publish("hot", ["hot"])
    await lanes.wait_until_ready(BACKFILL, 2)
    await lanes.wait_until_ready(HOT, 1)
    assert handler.starts == message_ids("held", 2)
    consumer.resume()
    await handler.started("hot", *message_ids("backfill", 2))


async def test_a_pause_outlasts_the_loss_of_the_connection(
    lanes310: Lanes, handler: Handler
) -> None:
    broker = lanes310.broker
    async with TcpProxy("127.0.0.1", broker.node.amqp_port) as proxy:
        consumer = await lanes310.consume(handler, url=proxy.url(broker.amqp_url))
        consumer.pause()
        await eventually(lambda: set(consumer.states.values()) == {"resting"})
        proxy.cut()
        await eventually(lambda: proxy.connections == 2)
        await eventually(lambda: set(consumer.states.values()) == {"resting"})
        await lanes310.publish("hot", ["hot"])
        assert handler.starts == []
        consumer.resume()
        await handler.started("hot")


async def test_stop_returns_jobs_that_have_not_started_and_lets_running_ones_finish(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    await lanes.publish("hot", message_ids("held", 2))
    consumer = await lanes.consume(handler, slots=2, reserve=1, max_wait=60)
    await handler.started(*message_ids("held", 2))
    await lanes.publish("backfill", message_ids("backfill", 3))
    await eventually(lambda: consumer.waiting == 1)
    consumer.stop()
    await lanes.wait_until_ready(BACKFILL, 3)
    assert await consumer.drain(0.01) is False
    handler.release_all()
    assert await consumer.drain(10) is True
    assert handler.starts == message_ids("held", 2)
    await lanes.stop(consumer)
    await lanes.wait_until_ready(HOT, 0)


async def test_abort_cancels_handlers_and_their_jobs_go_back(lanes310: Lanes) -> None:
    handler = Handler()
    await lanes310.publish("hot", message_ids("held", 2))
    consumer = await lanes310.consume(handler)
    await handler.started(*message_ids("held", 2))
    consumer.stop()
    assert await consumer.abort(10) is True
    await lanes310.stop(consumer)
    await lanes310.wait_until_ready(HOT, 2)


async def test_stop_ends_a_consumer_that_can_not_reach_its_broker(
    lanes310: Lanes, handler: Handler
) -> None:
    async with TcpProxy("127.0.0.1", lanes310.broker.node.amqp_port) as proxy:
        url = proxy.url(lanes310.broker.amqp_url)
        consumer = await lanes310.consume(handler, url=url)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: set(consumer.states.values()) == {"away"})
        await lanes310.stop(consumer)


@pytest.mark.parametrize(
    ("queues", "slots", "reserve"), [([], 1, 0), ([HOT], 0, 0), ([HOT], 1, 1), ([HOT], 2, -1)]
)
def test_a_consumer_without_queues_or_with_impossible_slots_is_refused(
    handler: Handler, queues: list[str], slots: int, reserve: int
) -> None:
    with pytest.raises(ValueError, match=r"queue|reserve"):
        LaneConsumer(
            Reconnector("amqp://localhost", "", LOG),
            queues,
            handler,
            LOG,
            slots=slots,
            reserve=reserve,
        )
