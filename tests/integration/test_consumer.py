"""Strict priority, reserved slots, returns and recovery of the consumer, on real brokers."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.errors import Refused
from switchyard.broker.lanes import (
    JOBS_EXCHANGE,
    LANES,
    Lane,
    Route,
    retry_name,
)
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.topology.build import build
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.link import Link
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import Signals
from tests.support.tcp_proxy import TcpProxy

HOT, MAINTENANCE, BACKFILL = "hot.any", "maintenance.any", "backfill.any"
QUEUES = (HOT, BACKFILL)
RETRY = 0.2
LOG = structlog.get_logger("test")
# A full quorum queue may take a few more before it refuses.
MOST_OVERSHOOT = 50


class Handler(Signals):
    """Runs "jobs": a message whose id begins with `held` runs until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[str] = []
        """Message ids, in the order in which their handlers began."""
        self.at: dict[str, float] = {}
        """When they began; seconds, on the monotonic clock."""
        self.deliveries: dict[str, Delivery] = {}
        """The last delivery of each message id."""
        self.released: set[str] = set()
        self.seconds = 0.0
        """How long those run that are not held."""

    def __repr__(self) -> str:
        return f"<Handler: {self.starts}>"

    async def __call__(self, delivery: Delivery) -> None:
        name = delivery.message_id
        self.starts.append(name)
        self.at[name] = time.monotonic()
        self.deliveries[name] = delivery
        self.changed()
        if name.startswith("held"):
            await self.until(lambda: name in self.released, timeout=60)
        elif self.seconds:
            await asyncio.sleep(self.seconds)
        delivery.ack()

    def release(self, *names: str) -> None:
        self.released |= set(names)
        self.changed()

    def release_all(self) -> None:
        self.release(*(name for name in self.starts if name.startswith("held")))

    async def started(self, *names: str) -> None:
        await self.until(lambda: set(names) <= set(self.starts))

    def of(self, prefix: str) -> list[str]:
        return [name for name in self.starts if name.startswith(prefix)]


class Lanes:
    """Queues of one kind of worker on a test's broker, and consumers of them."""

    def __init__(self, broker: TestBroker, publisher: Publisher) -> None:
        self.broker = broker
        self.publisher = publisher
        self._running: list[tuple[LaneConsumer, asyncio.Task[None], Link, Handler]] = []

    async def publish(self, lane: str, names: Iterable[str], *, priority: int = 0) -> list[str]:
        """Publish messages of these ids to the lane, all confirmed."""
        ids = list(names)
        await asyncio.gather(
            *(
                self.publisher.send(
                    JOBS_EXCHANGE, f"{lane}.job", Envelope(b"{}", message_id, priority=priority)
                )
                for message_id in ids
            )
        )
        return ids

    async def fill(self, lane: str) -> list[str]:
        """Publish until the lane refuses; the ids of what it took."""
        taken: list[str] = []
        for number in range(MOST_OVERSHOOT):
            try:
                taken += await self.publish(lane, [f"filling-{number}"])
            except Refused:
                return taken
        raise AssertionError("the lane never refused")

    async def consume(
        self,
        handler: Handler,
        *,
        queues: Sequence[str] = QUEUES,
        url: str | None = None,
        wait: bool = True,
        **options: Any,
    ) -> LaneConsumer:
        """Start a consumer; it has its queues when this returns."""
        link = Link(url or self.broker.amqp_url, "test consumer", LOG)
        consumer = LaneConsumer(link, queues, handler, LOG, **{"slots": 4, **options})
        task = asyncio.create_task(consumer.run())
        self._running.append((consumer, task, link, handler))
        if wait:
            await self.consuming(consumer)
        return consumer

    async def consuming(self, consumer: LaneConsumer, *queues: str, timeout: float = 15.0) -> None:
        """Wait until it consumes these queues, or all that it has."""

        def ready() -> bool:
            states = consumer.states
            return all(states[name] == "consuming" for name in queues or states)

        await eventually(ready, timeout, f"consuming {queues or 'all'}")

    async def stop(self, consumer: LaneConsumer) -> None:
        """Stop it and close its connection: what it holds is back on the broker then."""
        for each, task, link, handler in self._running:
            if each is consumer:
                each.stop()
                await asyncio.wait_for(task, 10)
                handler.release_all()
                await each.drain(5)
                await link.close()

    async def close(self) -> None:
        for consumer, *_ in self._running:
            await self.stop(consumer)

    async def ready(self, queue: str) -> int:
        """Messages that no consumer holds, as of now."""
        channel = await self.publisher._open()
        return (await channel.queue_declare(queue, passive=True)).message_count or 0

    async def wait_until_ready(self, queue: str, count: int) -> None:
        async def reached() -> bool:
            return await self.ready(queue) == count

        await eventually(reached, what=f"{count} ready in {queue}")


def small(**max_length: int) -> tuple[Lane, ...]:
    """The lanes without the queues that these tests do not need."""
    return tuple(
        replace(lane, workers=(), max_length=max_length.get(lane.name, lane.max_length))
        for lane in LANES
    )


@asynccontextmanager
async def lanes_on(broker: TestBroker, lanes: tuple[Lane, ...]) -> AsyncIterator[Lanes]:
    routes = [Route(lane, "job", "any") for lane in ("hot", "maintenance", "backfill")]
    topology = build(broker.profile, routes, lanes=lanes, retry_delays=[RETRY])
    await broker.declare(topology)
    settings = BrokerSettings(amqp_url=broker.amqp_url, profile=broker.profile)
    async with Publisher(settings) as publisher:
        made = Lanes(broker, publisher)
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
async def lanes(broker: TestBroker) -> AsyncIterator[Lanes]:
    async with lanes_on(broker, small()) as made:
        yield made


@pytest.fixture
async def lanes310(broker310: TestBroker) -> AsyncIterator[Lanes]:
    async with lanes_on(broker310, small()) as made:
        yield made


@pytest.fixture
def handler() -> Handler:
    return Handler()


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


# --- priority -----------------------------------------------------------------------------------


async def test_every_hot_job_starts_before_any_further_backfill_job(
    lanes: Lanes, handler: Handler
) -> None:
    await lanes.publish("backfill", names("held-backfill", 3), priority=9)
    await lanes.publish("backfill", names("backfill", 500))
    await lanes.consume(handler, slots=4, reserve=1)
    await handler.started(*names("held-backfill", 3))
    await lanes.publish("hot", ["held-hot"])
    await handler.started("held-hot")
    hot = await lanes.publish("hot", names("hot", 60))
    assert handler.of("backfill") == []
    handler.release_all()
    await handler.until(lambda: len(handler.of("backfill")) >= 20)
    first_backfill = handler.starts.index(handler.of("backfill")[0])
    assert sorted(handler.starts[4:first_backfill]) == sorted(hot)


async def test_a_hot_job_starts_within_50_ms_while_all_other_slots_are_busy(
    lanes: Lanes, handler: Handler
) -> None:
    busy = await lanes.publish("backfill", names("held", 20))
    await lanes.consume(handler, slots=8, reserve=1)
    await handler.until(lambda: len(handler.starts) == 7)
    waited = []
    for name in names("hot", 20):
        await lanes.publish("hot", [name])
        confirmed_at = time.monotonic()
        await handler.started(name)
        waited.append(handler.at[name] - confirmed_at)
    assert statistics.median(waited) < 0.05
    assert len(handler.of("held")) == 7 < len(busy)


async def test_lower_lanes_never_hold_more_than_their_slots_and_never_the_reserved_ones(
    lanes: Lanes, handler: Handler
) -> None:
    await lanes.publish("backfill", names("held", 30))
    consumer = await lanes.consume(handler, slots=5, reserve=2)
    await handler.until(lambda: len(handler.starts) == 3)
    await lanes.broker.management.wait_for(
        BACKFILL, messages_unacknowledged=3, messages_ready=27, messages=30
    )
    for round_ in range(5):
        await lanes.publish("hot", names(f"hot-{round_}", 10))
        await handler.started(*names(f"hot-{round_}", 10))
        assert consumer.waiting == 0
    assert len(handler.of("held")) == 3
    assert await lanes.ready(BACKFILL) == 27


async def test_two_lower_lanes_together_hold_no_more_than_their_slots(
    lanes310: Lanes, handler: Handler
) -> None:
    """Each queue's prefetch alone would allow twice as many."""
    lanes, most = lanes310, 0
    await lanes.publish("hot", names("held-hot", 4))
    consumer = await lanes.consume(
        handler, queues=(HOT, MAINTENANCE, BACKFILL), slots=4, reserve=1, patience=60
    )
    await handler.started(*names("held-hot", 4))
    await lanes.publish("maintenance", names("maintenance", 20))
    await lanes.publish("backfill", names("backfill", 20))
    async with asyncio.timeout(10):
        while (waiting := consumer.waiting) < 3 or consumer.states[BACKFILL] != "resting":
            most = max(most, waiting)
            await asyncio.sleep(0)
    assert most <= 3
    assert await lanes.ready(MAINTENANCE) + await lanes.ready(BACKFILL) == 37
    handler.release_all()
    await handler.started(*names("maintenance", 20), *names("backfill", 20))


@pytest.mark.parametrize("_", range(2))
async def test_at_the_start_the_most_urgent_lane_comes_first(
    lanes310: Lanes, handler: Handler, _: int
) -> None:
    lanes = lanes310
    for lane in ("backfill", "maintenance", "hot"):
        await lanes.publish(lane, [f"held-{lane}"])
    await lanes.consume(handler, queues=(HOT, MAINTENANCE, BACKFILL), slots=1, wait=False)
    for lane in ("hot", "maintenance", "backfill"):
        await handler.started(f"held-{lane}")
        handler.release_all()
    assert handler.starts == ["held-hot", "held-maintenance", "held-backfill"]


async def test_within_a_lane_the_higher_priority_comes_first(
    broker: TestBroker, lanes: Lanes, handler: Handler
) -> None:
    if broker.profile == "quorum":
        assert broker.version.startswith("4.3")  # before, quorum queues have no priorities
    for priority in (1, 5, 10, 0, 7, 9):
        ids = [f"{priority}-{number}" for number in range(5)]
        await lanes.publish("backfill", ids, priority=priority)
    await lanes.consume(handler, queues=(BACKFILL,), slots=1)
    await handler.until(lambda: len(handler.starts) == 30)
    order = [int(name.partition("-")[0]) for name in handler.starts]
    assert order == sorted(order, reverse=True)


async def test_a_worker_of_one_lane_gets_its_jobs_before_a_general_one(
    lanes: Lanes, handler: Handler
) -> None:
    special = Handler()
    await lanes.consume(handler, slots=4, reserve=0)
    await lanes.consume(special, queues=(BACKFILL,), slots=20, consumer_priority=10)
    # Held: how soon a broker has an acknowledgement, and gives the room to the next, is its affair.
    for name in names("held", 20):
        await lanes.publish("backfill", [name])
        await special.started(name)
    assert handler.starts == []
    await lanes.publish("backfill", ["further"])  # the special one has no room
    await handler.started("further")


# --- returns ------------------------------------------------------------------------------------


async def test_what_can_not_be_started_goes_back_and_another_worker_gets_it(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    await lanes.publish("hot", names("held", 2))
    full = await lanes.consume(handler, slots=2, reserve=1, patience=0.2)
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
    consumer = await lanes.consume(handler, slots=2, reserve=1, patience=0.05)
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
    consumer = await lanes.consume(handler, slots=2, reserve=0, patience=0.05)
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
        consumer = await lanes.consume(handler, queues=(queue,), slots=1, patience=60)
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


# --- recovery -----------------------------------------------------------------------------------


async def test_consuming_resumes_after_the_connection_was_cut(
    lanes: Lanes, broker: TestBroker, handler: Handler
) -> None:
    async with TcpProxy("127.0.0.1", broker.node.amqp_port) as proxy:
        await lanes.publish("hot", ["held"])
        await lanes.consume(handler, url=proxy.url(broker.amqp_url))
        await handler.started("held")
        lost = handler.deliveries["held"]
        for round_ in range(3):
            proxy.cut()
            await lanes.publish("hot", names(f"hot-{round_}", 3))
            await lanes.publish("backfill", names(f"backfill-{round_}", 3))
            await handler.started(*names(f"hot-{round_}", 3), *names(f"backfill-{round_}", 3))
            handler.release("held")
        assert lost.is_lost
        assert lost.ack() is False  # nobody can settle it any more
        assert len(handler.of("held")) > 1  # but it came again


async def test_after_a_long_outage_the_next_job_starts_within_a_second_and_few_lines_were_said(
    lanes310: Lanes, handler: Handler
) -> None:
    async with TcpProxy("127.0.0.1", lanes310.broker.node.amqp_port) as proxy:
        consumer = await lanes310.consume(handler, url=proxy.url(lanes310.broker.amqp_url))
        await lanes310.consuming(consumer)
        with capture_logs() as said:
            proxy.refuse()
            proxy.cut()
            await asyncio.sleep(4)  # so long, that a pause that is doubled would have grown
            await lanes310.publish("hot", ["hot"])
            await proxy.accept()
            back_at = time.monotonic()
            await handler.started("hot")
            took = time.monotonic() - back_at
    assert took < 1
    assert len([each for each in said if each["event"] == "broker away"]) == 1


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
    broken = handler.deliveries["held-backfill"]._channel
    broken.ack(999_999)  # PRECONDITION_FAILED: unknown delivery tag
    await broken.closed
    await handler.until(lambda: handler.of("held-backfill") == ["held-backfill"] * 2)
    await lanes.publish("hot", ["hot"])
    await lanes.publish("backfill", ["backfill"])
    await handler.started("hot", "backfill")
    assert not handler.deliveries["held-hot"].is_lost  # the other queue was left alone
    assert consumer.states == {HOT: "consuming", BACKFILL: "consuming"}


async def test_a_consumer_that_the_broker_forgot_is_made_anew_and_its_jobs_run_on(
    lanes: Lanes, handler: Handler
) -> None:
    await lanes.consume(handler, watch_seconds=0.1)
    await lanes.publish("hot", ["held-hot"])
    await handler.started("held-hot")
    with capture_logs() as logs:
        await forget(handler.deliveries["held-hot"])
        await lanes.publish("hot", ["hot"])
        await handler.started("hot")
    assert not handler.deliveries["held-hot"].is_lost
    lost = [line for line in logs if "delivers nothing to this consumer" in line["event"]]
    assert [(line["log_level"], line["queue"]) for line in lost] == [("error", HOT)]


async def test_a_consumer_that_the_broker_forgot_beside_a_busy_one_is_made_anew(
    lanes310: Lanes, handler: Handler
) -> None:
    other = Handler()
    await lanes310.consume(other, slots=1, queues=[HOT])
    await lanes310.publish("hot", ["held-other"])
    await other.started("held-other")
    await lanes310.consume(handler, watch_seconds=0.1)
    await lanes310.publish("hot", ["held-hot"])
    await handler.started("held-hot")
    await forget(handler.deliveries["held-hot"])
    await lanes310.publish("hot", ["hot"])
    await handler.started("hot")
    assert other.starts == ["held-other"]


async def test_a_consumer_that_is_full_or_has_nothing_to_do_is_left_alone(
    lanes310: Lanes, handler: Handler
) -> None:
    await lanes310.publish("backfill", names("held", 5))
    with capture_logs() as logs:
        await lanes310.consume(handler, slots=2, reserve=1, watch_seconds=0.001)
        for name in names("hot", 100):  # looks go on meanwhile
            await lanes310.publish("hot", [name])
            await handler.started(name)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []
    assert handler.of("held") == ["held-0"]


async def forget(delivery: Delivery) -> None:
    """End the consumer that it came from, behind its owner's back."""
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
    await lanes.publish("hot", names("hot", 10))
    await handler.started(*names("hot", 10))
    assert consumer.states[HOT] == "consuming"
    again = {key: declared[key] for key in ("durable", "auto_delete", "arguments")}
    await broker.management.put(path, again)
    binding = {"routing_key": "backfill.job"}
    await broker.management.post(f"/bindings/{{vhost}}/e/{JOBS_EXCHANGE}/q/{BACKFILL}", binding)
    await lanes.publish("backfill", ["backfill"])
    await handler.started("backfill")
    assert not handler.deliveries["held-hot"].is_lost


async def test_consuming_resumes_after_the_connection_fell_silent(
    lanes310: Lanes, handler: Handler
) -> None:
    """No reset, no answer: only the missing heartbeats tell, even amid a call to the broker."""
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
        await eventually(lambda: set(consumer.states.values()) == {"away"}, timeout=20)
        proxy.resume()
        await lanes310.consuming(consumer)
        await lanes310.publish("hot", ["hot-1"])
        await lanes310.publish("backfill", ["backfill"])
        await handler.started("hot-1", "backfill")


# --- pause and stop -----------------------------------------------------------------------------


async def test_a_paused_consumer_takes_nothing_until_it_is_resumed(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    consumer = await lanes.consume(handler, slots=2, reserve=0)
    await lanes.publish("hot", names("held", 2))
    await handler.started(*names("held", 2))
    await lanes.publish("backfill", names("backfill", 2))
    await eventually(lambda: consumer.waiting == 2)
    consumer.pause()
    assert consumer.waiting == 0
    await eventually(lambda: set(consumer.states.values()) == {"resting"})
    handler.release_all()
    await eventually(lambda: consumer.running == 0)
    await lanes.publish("hot", ["hot"])
    await lanes.wait_until_ready(BACKFILL, 2)
    await lanes.wait_until_ready(HOT, 1)
    assert handler.starts == names("held", 2)
    consumer.resume()
    await handler.started("hot", *names("backfill", 2))


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


async def test_stop_returns_what_was_not_started_and_lets_the_rest_finish(
    lanes310: Lanes, handler: Handler
) -> None:
    lanes = lanes310
    await lanes.publish("hot", names("held", 2))
    consumer = await lanes.consume(handler, slots=2, reserve=1, patience=60)
    await handler.started(*names("held", 2))
    await lanes.publish("backfill", names("backfill", 3))
    await eventually(lambda: consumer.waiting == 1)
    consumer.stop()
    await lanes.wait_until_ready(BACKFILL, 3)
    assert await consumer.drain(0.01) is False
    handler.release_all()
    assert await consumer.drain(10) is True
    assert handler.starts == names("held", 2)
    await lanes.stop(consumer)
    await lanes.wait_until_ready(HOT, 0)


async def test_abort_cancels_handlers_and_their_jobs_go_back(lanes310: Lanes) -> None:
    handler = Handler()
    await lanes310.publish("hot", names("held", 2))
    consumer = await lanes310.consume(handler)
    await handler.started(*names("held", 2))
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
def test_slots_that_make_no_sense_are_refused(
    handler: Handler, queues: list[str], slots: int, reserve: int
) -> None:
    with pytest.raises(ValueError, match=r"queue|reserve"):
        LaneConsumer(
            Link("amqp://localhost", "", LOG), queues, handler, LOG, slots=slots, reserve=reserve
        )
