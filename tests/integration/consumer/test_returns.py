"""Jobs that a consumer can't start, or fails at, go back and are not lost."""

import pytest

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.lanes import retry_name
from switchyard.broker.wire.envelope import Envelope
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.lane_consumers import (
    BACKFILL,
    HOT,
    RETRY_DELAY,
    Handler,
    Lanes,
    lanes_for,
    lanes_on,
    message_ids,
)


async def test_a_job_that_can_not_start_goes_back_and_another_worker_gets_it(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    await lanes.publish("hot", message_ids("held", 2))
    full_consumer = await lanes.consume(handler, slots=2, reserve=1, max_wait=0.2)
    await handler.started(*message_ids("held", 2))
    await lanes.publish("backfill", ["backfill"])
    await eventually(lambda: full_consumer.states[BACKFILL] == "resting")
    await lanes.wait_until_ready(BACKFILL, 1)
    other_handler = Handler()
    await lanes.consume(other_handler)
    await other_handler.started("backfill")
    assert handler.starts == message_ids("held", 2)


async def test_a_resting_queue_is_consumed_again_when_a_slot_is_free(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    await lanes.publish("hot", message_ids("held", 2))
    consumer = await lanes.consume(handler, slots=2, reserve=1, max_wait=0.05)
    await handler.started(*message_ids("held", 2))
    await lanes.publish("backfill", message_ids("backfill", 5))
    await eventually(lambda: consumer.states[BACKFILL] == "resting")
    await lanes.wait_until_ready(BACKFILL, 5)
    handler.release_all()
    await handler.started(*message_ids("backfill", 5))


@pytest.mark.parametrize("_", range(3))
async def test_hot_jobs_that_went_back_still_come_before_lower_ones(
    lanes310: Lanes, handler: Handler, _: int
) -> None:
    """Resuming their queue takes longer than starting the next backfill job."""
    lanes = lanes310
    await lanes.publish("backfill", message_ids("held", 2), priority=9)
    await lanes.publish("backfill", message_ids("backfill", 5))
    consumer = await lanes.consume(handler, slots=2, reserve=0, max_wait=0.05)
    await handler.started(*message_ids("held", 2))
    await lanes.publish("hot", message_ids("hot", 2))
    await eventually(lambda: consumer.states[HOT] == "resting")
    await lanes.wait_until_ready(HOT, 2)
    handler.release("held-0")
    await handler.started(*message_ids("hot", 2), *message_ids("backfill", 5))
    assert sorted(handler.starts[2:4]) == message_ids("hot", 2)


@pytest.mark.parametrize("lane", ["hot", "backfill"])
async def test_a_return_into_a_full_lane_is_not_lost(
    broker: TestBroker, handler: Handler, lane: str
) -> None:
    async with lanes_on(broker, lanes_for(hot=4, backfill=4)) as lanes:
        held_ids = await lanes.publish(lane, message_ids("held", 2))
        queue = f"{lane}.any"
        consumer = await lanes.consume(handler, queues=(queue,), slots=1, max_wait=60)
        await handler.started("held-0")
        filling_ids = await lanes.fill(lane)
        await lanes.stop(consumer)  # acknowledges held-0
        await lanes.wait_until_ready(queue, len(filling_ids) + 1)
        second_handler = Handler()
        second_handler.release(*held_ids)
        await lanes.consume(second_handler, queues=(queue,))
        await second_handler.started("held-1", *filling_ids)


@pytest.mark.parametrize("lane", ["hot", "backfill"])
async def test_a_retry_that_finds_its_lane_full_is_not_lost(
    broker: TestBroker, handler: Handler, lane: str
) -> None:
    async with lanes_on(broker, lanes_for(hot=2, backfill=2)) as lanes:
        queue = f"{lane}.any"
        filling_ids = await lanes.fill(lane)
        retry = Envelope(b"{}", "retried")
        await lanes.publisher.send(retry_name(RETRY_DELAY), queue, retry)
        if lane == "hot" and broker.profile == "classic":
            # This lane dead-letters its overflow, retries included.
            await lanes.wait_until_ready("jobs.dead", 2)  # the retry, and one of `fill`
            return
        await broker.management.wait_for(retry_name(RETRY_DELAY), messages=1, messages_dlx=1)
        await lanes.consume(handler, queues=(queue,))
        await handler.started("retried", *filling_ids)


async def test_a_handler_that_fails_costs_neither_its_slot_nor_its_job(lanes310: Lanes) -> None:
    class Failing(Handler):
        async def __call__(self, delivery: Delivery) -> None:
            if len(self.started_ids(delivery.message_id)) < 2:
                self.starts.append(delivery.message_id)
                raise RuntimeError("a defect")
            await super().__call__(delivery)

    failing = Failing()
    consumer = await lanes310.consume(failing, slots=1)
    await lanes310.publish("hot", ["hot"])
    await failing.until(lambda: len(failing.started_ids("hot")) == 3)
    await eventually(lambda: consumer.running == 0)
    assert consumer.states == {HOT: "consuming", BACKFILL: "consuming"}
