"""A consumer goes on after it has lost its connection, its channel or a queue's subscription."""

import asyncio
import time

from structlog.testing import capture_logs

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.lanes import JOBS_EXCHANGE
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.lane_consumers import BACKFILL, HOT, Handler, Lanes, message_ids
from tests.support.tcp_proxy import TcpProxy


async def test_consuming_resumes_after_the_connection_was_cut(
    lanes: Lanes, broker: TestBroker, handler: Handler
) -> None:
    async with TcpProxy("127.0.0.1", broker.node.amqp_port) as proxy:
        await lanes.publish("hot", ["held"])
        await lanes.consume(handler, url=proxy.url(broker.amqp_url))
        await handler.started("held")
        first_delivery = handler.deliveries["held"]
        for round_ in range(3):
            proxy.cut()
            await lanes.publish("hot", message_ids(f"hot-{round_}", 3))
            await lanes.publish("backfill", message_ids(f"backfill-{round_}", 3))
            await handler.started(
                *message_ids(f"hot-{round_}", 3), *message_ids(f"backfill-{round_}", 3)
            )
            handler.release("held")
        assert first_delivery.is_lost
        assert first_delivery.ack() is False  # nobody can settle it any more
        assert len(handler.started_ids("held")) > 1  # but it was delivered again


async def test_after_a_long_outage_the_next_job_starts_within_a_second_and_one_line_was_logged(
    lanes310: Lanes, handler: Handler
) -> None:
    async with TcpProxy("127.0.0.1", lanes310.broker.node.amqp_port) as proxy:
        consumer = await lanes310.consume(handler, url=proxy.url(lanes310.broker.amqp_url))
        await lanes310.consuming(consumer)
        with capture_logs() as logs:
            proxy.refuse()
            proxy.cut()
            await asyncio.sleep(2.5)  # long enough for pauses that double to exceed a second
            await lanes310.publish("hot", ["hot"])
            await proxy.accept()
            back_at = time.monotonic()
            await handler.started("hot")
            start_delay = time.monotonic() - back_at
    assert start_delay < 1
    assert len([line for line in logs if line["event"] == "broker unreachable"]) == 1


async def test_consuming_resumes_after_an_operator_closed_the_connection(
    lanes310: Lanes, handler: Handler
) -> None:
    consumer = await lanes310.consume(handler)
    await eventually(lanes310.broker.management.close_connections, what="closed connections")
    await eventually(lambda: "consuming" not in consumer.states.values())
    await lanes310.consuming(consumer)
    await lanes310.publish("hot", ["hot"])
    await handler.started("hot")


async def test_consuming_resumes_after_the_broker_closed_the_channel(
    lanes: Lanes, handler: Handler
) -> None:
    consumer = await lanes.consume(handler)
    await lanes.publish("hot", ["held-hot"])
    await lanes.publish("backfill", ["held-backfill"])
    await handler.started("held-hot", "held-backfill")
    channel = handler.deliveries["held-backfill"]._channel
    channel.ack(999_999)  # PRECONDITION_FAILED: unknown delivery tag
    await channel.closed
    await handler.until(lambda: handler.started_ids("held-backfill") == ["held-backfill"] * 2)
    await lanes.publish("hot", ["hot"])
    await lanes.publish("backfill", ["backfill"])
    await handler.started("hot", "backfill")
    assert not handler.deliveries["held-hot"].is_lost  # the other queue's channel was left open
    assert consumer.states == {HOT: "consuming", BACKFILL: "consuming"}


async def test_a_forgotten_consumer_subscribes_again_while_its_jobs_run_on(
    lanes: Lanes, handler: Handler
) -> None:
    await lanes.consume(handler, watch_seconds=0.1)
    await lanes.publish("hot", ["held-hot"])
    await handler.started("held-hot")
    with capture_logs() as logs:
        await make_broker_forget(handler.deliveries["held-hot"])
        await lanes.publish("hot", ["hot"])
        await handler.started("hot")
    assert not handler.deliveries["held-hot"].is_lost
    errors = [line for line in logs if "delivers nothing to it" in line["event"]]
    assert [(line["log_level"], line["queue"]) for line in errors] == [("error", HOT)]


async def test_a_forgotten_consumer_beside_a_busy_one_subscribes_again(
    lanes310: Lanes, handler: Handler
) -> None:
    busy_handler = Handler()
    await lanes310.consume(busy_handler, slots=1, queues=[HOT])
    await lanes310.publish("hot", ["held-other"])
    await busy_handler.started("held-other")
    await lanes310.consume(handler, watch_seconds=0.1)
    await lanes310.publish("hot", ["held-hot"])
    await handler.started("held-hot")
    await make_broker_forget(handler.deliveries["held-hot"])
    await lanes310.publish("hot", ["hot"])
    await handler.started("hot")
    assert busy_handler.starts == ["held-other"]


async def test_a_consumer_that_is_full_or_has_nothing_to_do_is_left_alone(
    lanes310: Lanes, handler: Handler
) -> None:
    await lanes310.publish("backfill", message_ids("held", 5))
    with capture_logs() as logs:
        await lanes310.consume(handler, slots=2, reserve=1, watch_seconds=0.001)
        for name in message_ids("hot", 100):  # the consumer is checked meanwhile
            await lanes310.publish("hot", [name])
            await handler.started(name)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []
    assert handler.started_ids("held") == ["held-0"]


async def make_broker_forget(delivery: Delivery) -> None:
    """Cancel the subscription that the delivery came from, unnoticed by its consumer."""
    channel = delivery._channel
    (tag,) = channel._callbacks
    await channel.basic_cancel(tag)


async def test_consuming_resumes_after_basic_cancel_and_other_queues_are_left_alone(
    lanes: Lanes, broker: TestBroker, handler: Handler
) -> None:
    consumer = await lanes.consume(handler)
    await lanes.publish("hot", ["held-hot"])
    await handler.started("held-hot")
    path = f"/queues/{{vhost}}/{BACKFILL}"
    declared = await broker.management.queue(BACKFILL)
    await broker.management.delete(path)
    await eventually(lambda: consumer.states[BACKFILL] == "away")
    await lanes.publish("hot", message_ids("hot", 10))
    await handler.started(*message_ids("hot", 10))
    assert consumer.states[HOT] == "consuming"
    queue_options = {key: declared[key] for key in ("durable", "auto_delete", "arguments")}
    await broker.management.put(path, queue_options)
    binding = {"routing_key": "backfill.job"}
    await broker.management.post(f"/bindings/{{vhost}}/e/{JOBS_EXCHANGE}/q/{BACKFILL}", binding)
    await lanes.publish("backfill", ["backfill"])
    await handler.started("backfill")
    assert not handler.deliveries["held-hot"].is_lost


async def test_consuming_resumes_after_the_connection_became_silent(
    lanes310: Lanes, handler: Handler
) -> None:
    """Only missing heartbeats reveal it: no reset comes, and a call gets no answer."""
    broker = lanes310.broker
    async with TcpProxy("127.0.0.1", broker.node.amqp_port) as proxy:
        url = f"{proxy.url(broker.amqp_url)}?heartbeat=1"
        consumer = await lanes310.consume(handler, url=url)
        await lanes310.publish("hot", ["hot-0"])
        await handler.started("hot-0")
        proxy.pause()
        consumer.pause()  # asks the broker to cancel, and waits for its answer
        await asyncio.sleep(0)
        consumer.resume()
        await eventually(lambda: set(consumer.states.values()) == {"away"})
        proxy.resume()
        await lanes310.consuming(consumer)
        await lanes310.publish("hot", ["hot-1"])
        await lanes310.publish("backfill", ["backfill"])
        await handler.started("hot-1", "backfill")
