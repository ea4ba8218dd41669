"""The asyncio publisher on real brokers: what it promises, and what it says when it can't."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import aio_pika
import pytest

from switchyard.broker.dead.certificate import Reason, read
from switchyard.broker.errors import Blocked, BrokerAway, LaneFull, Unroutable
from switchyard.broker.lanes import DEAD_QUEUE, EVENTS_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import PATIENCE, Accepted, Outgoing, envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.broker.wire.connection import is_blocked
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
    MOST_OVERSHOOT,
    SHORT,
    declare,
    depth,
    job,
    jobs,
    settings_of,
    short_lanes,
    take,
)
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.timeout(60)
ANSWERS = (Accepted, LaneFull)


def of(broker: TestBroker, **options: Any) -> BrokerSettings:
    return settings_of(broker.amqp_url, broker.profile, **options)


@pytest.fixture
async def lanes(broker: TestBroker) -> TestBroker:
    """A broker with all lanes."""
    await declare(broker)
    return broker


@pytest.fixture
async def full_lanes(broker: TestBroker) -> TestBroker:
    """A broker whose lanes hold three jobs each, and are full."""
    await declare(broker, short_lanes())
    async with Publisher(of(broker)) as publisher:
        for routing_key in (HOT, MAINTENANCE):
            await fill(publisher, routing_key)
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        await (await channel.get_queue(DEAD_QUEUE, ensure=False)).purge()
    return broker


async def fill(publisher: Publisher, routing_key: str) -> None:
    for _ in range(MOST_OVERSHOOT):
        try:
            await publisher.publish(job(), routing_key)
        except LaneFull:
            return
    raise AssertionError(f"{routing_key} was never full")


@pytest.fixture
async def proxied(broker310: TestBroker) -> AsyncIterator[tuple[TcpProxy, BrokerSettings]]:
    """A proxy to a broker with all lanes, and settings that lead through it."""
    await declare(broker310)
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        yield proxy, settings_of(proxy.url(broker310.amqp_url), confirm_timeout=5)


# --- accepted -----------------------------------------------------------------------------------


async def test_an_accepted_job_is_in_its_queue_with_all_its_properties(lanes: TestBroker) -> None:
    message = job("job-1", url="https://example.org/ü")
    async with Publisher(of(lanes)) as publisher:
        assert await publisher.publish(message, HOT) == Accepted("job-1", HOT)

    (arrived,) = await take(lanes.amqp_url, HOT_QUEUE, 1)
    assert JobMessage.decode(arrived.body) == message
    assert arrived.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert arrived.message_id == "job-1"
    assert arrived.type == "crawl"
    assert arrived.priority == 3
    assert arrived.content_type == "application/json"
    assert arrived.timestamp == message.metadata.created_at.replace(microsecond=0)
    assert arrived.timestamp <= datetime.now(UTC)
    assert (arrived.exchange, arrived.routing_key) == (JOBS_EXCHANGE, HOT)


async def test_a_body_of_many_frames_arrives_whole(lanes: TestBroker) -> None:
    message = job(text="é" * 400_000)
    async with Publisher(of(lanes)) as publisher:
        await publisher.publish(message, HOT)
        await publisher.publish(job("behind-it"), HOT)
    arrived = await take(lanes.amqp_url, HOT_QUEUE, 2)
    bodies = {each.message_id: each.body for each in arrived}
    assert JobMessage.decode(bodies[message.job_id]) == message
    assert JobMessage.decode(bodies["behind-it"]).payload == {}


async def test_ten_thousand_jobs_of_a_generator_are_never_all_in_memory(lanes: TestBroker) -> None:
    count, window = 10_000, 200
    assert await most_held(of(lanes, publish_window=window), count) <= window + 1
    assert await depth(lanes.amqp_url, BACKFILL_QUEUE) == count


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_the_smallest_windows_hold_no_more(broker310: TestBroker, window: int) -> None:
    await declare(broker310)
    assert await most_held(of(broker310, publish_window=window), 50) <= window + 1


async def most_held(settings: BrokerSettings, count: int) -> int:
    """Publish so many generated jobs; how many of them were under way at most."""
    made, yielded, most = 0, 0, 0

    async def generate() -> AsyncIterator[Outgoing]:
        nonlocal made, most
        for number in range(count):
            made += 1
            most = max(most, made - yielded)
            yield Outgoing(job(f"job-{number}"), BACKFILL)

    async with Publisher(settings) as publisher:
        async for result in publisher.publish_stream(generate()):
            assert result == Accepted(f"job-{yielded}", BACKFILL)
            yielded += 1
    assert yielded == count
    return most


@pytest.mark.parametrize("window", [1, 2, 7, 100])
async def test_never_more_than_a_window_is_unconfirmed(
    broker310: TestBroker, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(broker310)
    seen: list[int] = []
    publish = PipelinedChannel.publish

    def watched(channel: PipelinedChannel, *args: Any, **options: Any) -> asyncio.Future[None]:
        confirm = publish(channel, *args, **options)
        seen.append(channel.unconfirmed)
        return confirm

    monkeypatch.setattr(PipelinedChannel, "publish", watched)
    async with Publisher(of(broker310, publish_window=window)) as publisher:
        async with asyncio.TaskGroup() as group:
            batch = group.create_task(publisher.publish_many(jobs(200, BACKFILL)))
            for _ in range(200):
                group.create_task(publisher.publish(job(), BACKFILL))
                group.create_task(publisher.send(JOBS_EXCHANGE, BACKFILL, envelope_of(job())))
        for _ in range(200):
            publisher.send_soon(EVENTS_EXCHANGE, "done.hot.crawl", Envelope(b"{}", "event"))
    assert [type(result) for result in batch.result()] == [Accepted] * 200
    assert max(seen) == window


async def test_publishes_of_many_coroutines_share_one_connection(broker310: TestBroker) -> None:
    await declare(broker310)
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        async with Publisher(settings_of(proxy.url(broker310.amqp_url))) as publisher:
            await asyncio.gather(*(publisher.publish(job(), BACKFILL) for _ in range(50)))
        assert proxy.connections == 1


# --- refused ------------------------------------------------------------------------------------


async def test_a_full_lane_refuses_and_nothing_is_kept(full_lanes: TestBroker) -> None:
    before = await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE)
    async with Publisher(of(full_lanes)) as publisher:
        with pytest.raises(LaneFull) as full:
            await publisher.publish(job(), MAINTENANCE)
    assert not full.value.dead_lettered
    assert full.value.routing_key == MAINTENANCE
    assert await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE) == before
    assert await depth(full_lanes.amqp_url, DEAD_QUEUE) == 0


async def test_a_full_hot_lane_puts_the_newcomer_into_the_dead_letters(
    full_lanes: TestBroker,
) -> None:
    before = await depth(full_lanes.amqp_url, HOT_QUEUE)
    message = job("newcomer", url="https://example.org")
    async with Publisher(of(full_lanes)) as publisher:
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


async def test_results_are_in_the_order_of_the_jobs(full_lanes: TestBroker) -> None:
    keys = [HOT, BACKFILL, MAINTENANCE, BACKFILL, HOT, MAINTENANCE, BACKFILL]
    async with Publisher(of(full_lanes, publish_window=4)) as publisher:
        results = await publisher.publish_many(Outgoing(job(key), key) for key in keys)
    told = [(type(each), each.routing_key) for each in results if isinstance(each, ANSWERS)]
    outcome = {HOT: LaneFull, BACKFILL: Accepted, MAINTENANCE: LaneFull}
    assert told == [(outcome[key], key) for key in keys]
    assert await depth(full_lanes.amqp_url, BACKFILL_QUEUE) == SHORT
    assert len(await take(full_lanes.amqp_url, DEAD_QUEUE, 2)) == 2


async def test_a_lane_takes_jobs_again_when_there_is_room(full_lanes: TestBroker) -> None:
    async with Publisher(of(full_lanes)) as publisher:
        with pytest.raises(LaneFull):
            await publisher.publish(job(), MAINTENANCE)
        await take(full_lanes.amqp_url, MAINTENANCE_QUEUE, SHORT)
        assert await eventually(partial(accepted, publisher, MAINTENANCE))


async def accepted(publisher: Publisher, routing_key: str) -> bool:
    (result,) = await publisher.publish_many([Outgoing(job(), routing_key)])
    return isinstance(result, Accepted)


async def test_a_job_that_no_queue_takes_is_unroutable(broker: TestBroker) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        await channel.declare_exchange(JOBS_EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
    async with Publisher(of(broker)) as publisher:
        with pytest.raises(Unroutable, match=r"'hot\.crawl': run `jobctl topology apply`"):
            await publisher.publish(job(), HOT)
        results = await publisher.publish_many(Outgoing(job("same"), HOT) for _ in range(20))
    assert {type(result) for result in results} == {Unroutable}


async def test_without_a_topology_the_publisher_says_what_to_do(broker: TestBroker) -> None:
    async with Publisher(of(broker)) as publisher:
        with pytest.raises(Unroutable, match="jobctl topology apply"):
            await publisher.publish(job(), HOT)
        await declare(broker)
        assert await publisher.publish(job("job-1"), HOT) == Accepted("job-1", HOT)


async def test_a_job_that_does_not_fit_into_amqp_leaves_the_others_alone(
    lanes: TestBroker,
) -> None:
    async with Publisher(of(lanes)) as publisher:
        with pytest.raises(ValueError, match="255 bytes"):
            await publisher.publish(job(), "hot." + "x" * 255)
        assert await publisher.publish(job("job-1"), HOT) == Accepted("job-1", HOT)


# --- blocked ------------------------------------------------------------------------------------


async def test_a_broker_with_an_alarm_takes_nothing_and_says_so(
    own_node: Callable[..., LocalNode],
) -> None:
    node = own_node()
    await declare(TestBroker("3.10", "classic", "/", node))
    alarm = partial(asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
    async with Publisher(settings_of(node.amqp_url)) as publisher:
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
        publisher.send_soon(EVENTS_EXCHANGE, "done.hot.crawl", Envelope(b"{}", "event"))
        assert {type(result) for result in results} == {Blocked}
        assert time.monotonic() - began < PATIENCE  # nobody has waited for anything

        await alarm("0.8")
        channel = publisher._channel
        assert channel is not None
        await eventually(lambda: not is_blocked(channel.connection), what="the end of the alarm")
        assert await publisher.publish(job("after"), HOT) == Accepted("after", HOT)
    arrived = {message.message_id for message in await take(node.amqp_url, HOT_QUEUE, 3)}
    assert arrived == {"before", "held", "after"}
    assert await depth(node.amqp_url, HOT_QUEUE) == 0


# --- away ---------------------------------------------------------------------------------------


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
        await eventually(partial(is_depth, broker310.amqp_url, 2))
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


async def is_depth(url: str, count: int) -> bool:
    return await depth(url, HOT_QUEUE) == count


async def test_a_batch_that_is_cut_in_the_middle_accounts_for_every_job(
    proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    names = [f"job-{number:04}" for number in range(1_000)]
    proxy.cut_when(lambda seen: b"job-0700" in seen)
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


# --- cancelled ----------------------------------------------------------------------------------


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
