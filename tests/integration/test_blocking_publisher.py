"""The blocking publisher on real brokers: the promises of the asyncio one, without a loop.

The proxy of a test needs the test's own loop, so what goes through it runs in a thread.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import aio_pika
import pytest

from switchyard.broker.dead.certificate import Reason, read
from switchyard.broker.errors import Blocked, BrokerAway, LaneFull, Unroutable
from switchyard.broker.lanes import DEAD_QUEUE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.outcome import PATIENCE, Accepted, Outgoing
from switchyard.broker.publish.session import Session
from switchyard.broker.settings import BrokerSettings
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
in_thread = asyncio.to_thread


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
    with BlockingPublisher(of(broker)) as publisher:
        for routing_key in (HOT, MAINTENANCE):
            for _ in range(MOST_OVERSHOOT):
                if not accepted(publisher, routing_key):
                    break
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        await (await channel.get_queue(DEAD_QUEUE, ensure=False)).purge()
    return broker


@pytest.fixture
async def proxied(broker310: TestBroker) -> AsyncIterator[tuple[TcpProxy, BrokerSettings]]:
    """A proxy to a broker with all lanes, and settings that lead through it."""
    await declare(broker310)
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        yield proxy, settings_of(proxy.url(broker310.amqp_url), confirm_timeout=5)


def accepted(publisher: BlockingPublisher, routing_key: str) -> bool:
    (result,) = publisher.publish_many([Outgoing(job(), routing_key)])
    return isinstance(result, Accepted)


# --- accepted -----------------------------------------------------------------------------------


async def test_an_accepted_job_is_in_its_queue_with_all_its_properties(lanes: TestBroker) -> None:
    message = job("job-1", url="https://example.org/ü")
    with BlockingPublisher(of(lanes)) as publisher:
        assert publisher.publish(message, HOT) == Accepted("job-1", HOT)

    (arrived,) = await take(lanes.amqp_url, HOT_QUEUE, 1)
    assert JobMessage.decode(arrived.body) == message
    assert arrived.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert arrived.message_id == "job-1"
    assert arrived.type == "crawl"
    assert arrived.priority == 3
    assert arrived.content_type == "application/json"
    assert arrived.timestamp == message.metadata.created_at.replace(microsecond=0)
    assert (arrived.exchange, arrived.routing_key) == (JOBS_EXCHANGE, HOT)


async def test_a_body_of_many_frames_arrives_whole(lanes: TestBroker) -> None:
    message = job(text="é" * 400_000)
    with BlockingPublisher(of(lanes)) as publisher:
        publisher.publish(message, HOT)
    (arrived,) = await take(lanes.amqp_url, HOT_QUEUE, 1)
    assert JobMessage.decode(arrived.body) == message


async def test_thousands_of_jobs_of_a_generator_are_never_all_in_memory(lanes: TestBroker) -> None:
    count, window = 5_000, 200
    assert most_held(of(lanes, publish_window=window), count) <= window + 1
    assert await depth(lanes.amqp_url, BACKFILL_QUEUE) == count


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_the_smallest_windows_hold_no_more(broker310: TestBroker, window: int) -> None:
    await declare(broker310)
    assert most_held(of(broker310, publish_window=window), 50) <= window + 1


def most_held(settings: BrokerSettings, count: int) -> int:
    """Publish so many generated jobs; how many of them were under way at most."""
    made, yielded, most = 0, 0, 0

    def generate() -> Iterator[Outgoing]:
        nonlocal made, most
        for number in range(count):
            made += 1
            most = max(most, made - yielded)
            yield Outgoing(job(f"job-{number}"), BACKFILL)

    with BlockingPublisher(settings) as publisher:
        for result in publisher.publish_stream(generate()):
            assert result == Accepted(f"job-{yielded}", BACKFILL)
            yielded += 1
    assert yielded == count
    return most


@pytest.mark.parametrize("window", [1, 2, 7, 100])
async def test_never_more_than_a_window_is_unconfirmed(
    proxied: tuple[TcpProxy, BrokerSettings], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, settings = proxied
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    publish = Session.publish

    def watched(session: Session, *args: Any) -> Any:
        sent = publish(session, *args)
        seen.append(session.unconfirmed)
        if session.unconfirmed == window:
            loop.call_soon_threadsafe(proxy.resume)
        return sent

    async def hold_confirms() -> None:
        proxy.pause("to_client")

    def work() -> list[Any]:
        update = {"publish_window": window}
        with BlockingPublisher(settings.model_copy(update=update)) as publisher:
            assert accepted(publisher, BACKFILL)
            monkeypatch.setattr(Session, "publish", watched)
            asyncio.run_coroutine_threadsafe(hold_confirms(), loop).result()
            abandoned = publisher.publish_stream(jobs(300, BACKFILL))
            next(abandoned)  # what this stream has sent still counts
            return publisher.publish_many(jobs(300, BACKFILL))

    results = await in_thread(work)
    assert [type(result) for result in results] == [Accepted] * 300
    assert max(seen) == window


async def test_a_job_leaves_although_the_next_one_takes_its_time(lanes: TestBroker) -> None:
    """What a slow iterable has given is not held back until the window is full."""
    waited_for = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> Iterator[Outgoing]:
        for number in range(3):
            time.sleep(0.02)
            yield Outgoing(job(f"job-{number}"), HOT)
        asyncio.run_coroutine_threadsafe(waited_for.wait(), loop).result()
        yield Outgoing(job("last"), HOT)

    def publish() -> list[Any]:
        with BlockingPublisher(of(lanes)) as publisher:
            return publisher.publish_many(slow())

    publishing = asyncio.create_task(in_thread(publish))
    try:
        early = await take(lanes.amqp_url, HOT_QUEUE, 3)
        assert not publishing.done()
    finally:
        waited_for.set()
    assert {message.message_id for message in early} == {"job-0", "job-1", "job-2"}
    assert [type(result) for result in await publishing] == [Accepted] * 4


async def test_an_error_of_the_iterable_is_the_callers(lanes: TestBroker) -> None:
    def breaks() -> Iterator[Outgoing]:
        yield Outgoing(job(), HOT)
        raise ArithmeticError("of the caller")

    with BlockingPublisher(of(lanes)) as publisher:
        with pytest.raises(ArithmeticError, match="of the caller"):
            publisher.publish_many(breaks())
        assert accepted(publisher, HOT)


# --- refused ------------------------------------------------------------------------------------


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


# --- blocked ------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_broker_with_an_alarm_takes_nothing_and_says_so(
    own_node: Callable[..., LocalNode],
) -> None:
    node = own_node()
    await declare(TestBroker("3.10", "classic", "/", node))
    alarm = partial(in_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
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
        assert await eventually(partial(accepted, publisher, HOT), what="the end of the alarm")
    arrived = {message.message_id for message in await take(node.amqp_url, HOT_QUEUE, 3)}
    assert {"before", "held"} < arrived
    assert "never-sent" not in arrived
    assert await depth(node.amqp_url, HOT_QUEUE) == 0


# --- away ---------------------------------------------------------------------------------------


async def test_a_broker_that_refuses_connections_is_away_at_once(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    proxy.refuse()
    with BlockingPublisher(settings) as publisher:
        async with asyncio.timeout(2.5):
            with pytest.raises(BrokerAway) as away:
                await in_thread(publisher.publish, job(), HOT)
        assert not away.value.maybe_accepted
        await proxy.accept()
        assert await in_thread(accepted, publisher, HOT)
        await in_thread(publisher.close)


async def test_a_broker_that_is_silent_is_away_after_two_seconds(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    proxy.pause()
    with BlockingPublisher(settings) as publisher:
        async with asyncio.timeout(2.5):
            with pytest.raises(BrokerAway, match="no answer") as away:
                await in_thread(publisher.publish, job(), HOT)
        assert not away.value.maybe_accepted
        proxy.resume()
        assert await in_thread(accepted, publisher, HOT)
        await in_thread(publisher.close)


async def test_a_job_whose_confirm_got_lost_may_have_been_accepted(
    proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    with BlockingPublisher(settings) as publisher:
        await in_thread(publisher.publish, job("before"), HOT)
        proxy.pause("to_client")
        publishing = asyncio.create_task(in_thread(publisher.publish, job("the-one"), HOT))
        await eventually(partial(is_depth, broker310.amqp_url, 2))
        proxy.cut()
        proxy.resume()
        async with asyncio.timeout(5):
            with pytest.raises(BrokerAway) as away:
                await publishing
        assert away.value.maybe_accepted
        after = await in_thread(publisher.publish, job("after"), HOT)
        assert after == Accepted("after", HOT)
        await in_thread(publisher.close)
    found = {each.message_id for each in await take(broker310.amqp_url, HOT_QUEUE, 3)}
    assert found == {"before", "the-one", "after"}


async def test_a_job_that_got_lost_on_its_way_may_have_been_accepted_too(
    proxied: tuple[TcpProxy, BrokerSettings], broker310: TestBroker
) -> None:
    proxy, settings = proxied
    with BlockingPublisher(settings) as publisher:
        await in_thread(publisher.publish, job("before"), HOT)
        cut = proxy.cut_when(lambda seen: b"the-one" in seen)
        async with asyncio.timeout(5):
            with pytest.raises(BrokerAway) as away:
                await in_thread(publisher.publish, job("the-one"), HOT)
        assert cut.is_set()
        assert away.value.maybe_accepted
        after = await in_thread(publisher.publish, job("after"), HOT)
        assert after == Accepted("after", HOT)
        await in_thread(publisher.close)
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
    with BlockingPublisher(settings.model_copy(update={"publish_window": 100})) as publisher:
        batch = [Outgoing(job(name), BACKFILL) for name in names]
        results = await in_thread(publisher.publish_many, batch)
        await in_thread(publisher.close)
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
    """A script may rest longer than heartbeats allow: nothing is told as lost for that."""

    async def all_closed() -> bool:
        connections = await lanes.management.get("/vhosts/{vhost}/connections")
        return all(connection.get("state") != "running" for connection in connections)

    with BlockingPublisher(of(lanes)) as publisher:
        publisher.publish(job(), HOT)
        assert await eventually(lanes.management.close_connections)
        await eventually(all_closed)
        publisher.publish(job(), HOT)


async def test_a_confirm_that_does_not_come_is_told_in_time(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    settings = settings.model_copy(update={"confirm_timeout": 0.5, "publish_window": 10})
    with BlockingPublisher(settings) as publisher:
        await in_thread(publisher.publish, job(), BACKFILL)
        proxy.pause("to_client")
        began = time.monotonic()
        results = await in_thread(publisher.publish_many, jobs(30, BACKFILL))
        # Each waits from its own sending on: the time-outs do not add up.
        assert time.monotonic() - began < 3
        assert {type(result) for result in results} == {BrokerAway}
        in_doubt = [r.maybe_accepted for r in results if isinstance(r, BrokerAway)]
        assert in_doubt == [True] * 10 + [False] * 20
        with pytest.raises(BrokerAway, match="this was not sent"):
            await in_thread(publisher.publish, job(), BACKFILL)

        proxy.resume()

        async def works() -> bool:
            return await in_thread(accepted, publisher, BACKFILL)

        assert await eventually(works)
        await in_thread(publisher.close)


async def test_closing_a_connection_that_is_silent_takes_a_second(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    publisher = BlockingPublisher(settings)
    await in_thread(publisher.publish, job(), HOT)
    proxy.pause()
    async with asyncio.timeout(2):
        await in_thread(publisher.close)
    publisher.close()  # a second time is fine


async def test_a_publisher_leaves_no_open_files_behind(broker310: TestBroker) -> None:
    await declare(broker310)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with BlockingPublisher(of(broker310)) as publisher:
            publisher.publish(job(), HOT)
    assert len(os.listdir("/proc/self/fd")) == before
