"""What a consumer can't start, or fails at, goes back and is not lost."""

import pytest

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.lanes import retry_name
from switchyard.broker.wire.envelope import Envelope
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.lane_consumers import (
    BACKFILL,
    HOT,
    RETRY,
    Handler,
    Lanes,
    lanes_on,
    names,
    small,
)


async def test_what_can_not_be_started_goes_back_and_another_worker_gets_it(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    await lanes.publish("hot", names("held", 2))
    full = await lanes.consume(handler, slots=2, reserve=1, max_wait=0.2)
    await handler.started(*names("held", 2))
    await lanes.publish("backfill", ["backfill"])
    await eventually(lambda: full.states[BACKFILL] == "resting")
    await lanes.wait_until_ready(BACKFILL, 1)
    other = Handler()
    await lanes.consume(other)
    await other.started("backfill")
    assert handler.starts == names("held", 2)


async def test_a_queue_that_rests_is_consumed_again_when_a_slot_is_free(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    await lanes.publish("hot", names("held", 2))
    consumer = await lanes.consume(handler, slots=2, reserve=1, max_wait=0.05)
    await handler.started(*names("held", 2))
    await lanes.publish("backfill", names("backfill", 5))
    await eventually(lambda: consumer.states[BACKFILL] == "resting")
    await lanes.wait_until_ready(BACKFILL, 5)
    handler.release_all()
    await handler.started(*names("backfill", 5))


@pytest.mark.parametrize("_", range(3))
async def test_hot_jobs_that_went_back_still_come_before_lower_ones(
    lanes310: Lanes, handler: Handler, _: int
) -> None:
    """Their queue has to be consumed again first, which takes longer than the next backfill job."""
    lanes = lanes310
    await lanes.publish("backfill", names("held", 2), priority=9)
    await lanes.publish("backfill", names("backfill", 5))
    consumer = await lanes.consume(handler, slots=2, reserve=0, max_wait=0.05)
    await handler.started(*names("held", 2))
    await lanes.publish("hot", names("hot", 2))
    await eventually(lambda: consumer.states[HOT] == "resting")
    await lanes.wait_until_ready(HOT, 2)
    handler.release("held-0")
    await handler.started(*names("hot", 2), *names("backfill", 5))
    assert sorted(handler.starts[2:4]) == names("hot", 2)


@pytest.mark.parametrize("lane", ["hot", "backfill"])
async def test_a_return_into_a_full_lane_is_not_lost(
    broker: TestBroker, handler: Handler, lane: str
) -> None:
    async with lanes_on(broker, small(hot=4, backfill=4)) as lanes:
        held = await lanes.publish(lane, names("held", 2))
        queue = f"{lane}.any"
        consumer = await lanes.consume(handler, queues=(queue,), slots=1, max_wait=60)
        await handler.started("held-0")
        filling = await lanes.fill(lane)
        await lanes.stop(consumer)  # acknowledges held-0
        await lanes.wait_until_ready(queue, len(filling) + 1)
        everything = Handler()
        everything.release(*held)
        await lanes.consume(everything, queues=(queue,))
        await everything.started("held-1", *filling)


@pytest.mark.parametrize("lane", ["hot", "backfill"])
async def test_a_retry_that_finds_its_lane_full_is_not_lost(
    broker: TestBroker, handler: Handler, lane: str
) -> None:
    async with lanes_on(broker, small(hot=2, backfill=2)) as lanes:
        queue = f"{lane}.any"
        filling = await lanes.fill(lane)
        retry = Envelope(b"{}", "retried")
        await lanes.publisher.send(retry_name(RETRY), queue, retry)
        if lane == "hot" and broker.profile == "classic":
            # A lane that dead-letters its overflow does so with retries, too.
            await lanes.wait_until_ready("jobs.dead", 1 + 1)  # what did not fit before is the other
            return
        await broker.management.wait_for(retry_name(RETRY), messages=1, messages_dlx=1)
        await lanes.consume(handler, queues=(queue,))
        await handler.started("retried", *filling)


async def test_a_handler_that_fails_costs_neither_its_slot_nor_its_job(lanes310: Lanes) -> None:
    class Failing(Handler):
        async def __call__(self, delivery: Delivery) -> None:
            if len(self.of(delivery.message_id)) < 2:
                self.starts.append(delivery.message_id)
                raise RuntimeError("a defect")
            await super().__call__(delivery)

    failing = Failing()
    consumer = await lanes310.consume(failing, slots=1)
    await lanes310.publish("hot", ["hot"])
    await failing.until(lambda: len(failing.of("hot")) == 3)
    await eventually(lambda: consumer.running == 0)
    assert consumer.states == {HOT: "consuming", BACKFILL: "consuming"}
