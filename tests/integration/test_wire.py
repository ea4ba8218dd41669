"""PipelinedChannel on real brokers, and each part of aiormq that it uses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aio_pika
import pytest
from aiormq.connection import Connection
from aiormq.exceptions import ChannelInvalidStateError, ChannelNotFoundEntity
from pamqp import commands as spec

from switchyard.broker.errors import BrokerUnavailable, PublishError, Unroutable
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.confirms import UnconfirmedPublishes
from switchyard.broker.wire.connection import connect, is_blocked, underlying
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.failures import CHANNEL_ERRORS
from switchyard.broker.wire.incoming import Incoming
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.publishing import depth
from tests.support.tcp_proxy import TcpProxy

QUEUE = "jobs.test"
BIG_BODY = bytes(range(256)) * 2_000
"""A body of four frames."""
HEADERS = {
    "text": "é",
    "number": -(2**40),
    "flag": True,
    "nothing": None,
    "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "nested": {"list": [1, "two", {"three": 3.0}]},
}


@asynccontextmanager
async def open_channel_to(url: str, *, confirms: bool = True) -> AsyncIterator[PipelinedChannel]:
    connection = await connect(url, "test")
    try:
        yield await open_channel(underlying(connection), confirms=confirms)
    finally:
        await connection.close()


@pytest.fixture
async def channel(broker: TestBroker) -> AsyncIterator[PipelinedChannel]:
    """A channel with confirms on a broker with one lane queue of its profile."""
    async with open_channel_to(broker.amqp_url) as channel:
        await declare(channel, broker.profile)
        yield channel


async def declare(channel: PipelinedChannel, profile: str) -> None:
    priorities = {"x-max-priority": 10} if profile == "classic" else {}
    await channel.queue_declare(
        QUEUE, durable=True, arguments={"x-queue-type": profile, **priorities}
    )


class Consumer:
    """A consumer that collects deliveries."""

    def __init__(self, channel: PipelinedChannel) -> None:
        self.channel = channel
        self.cancelled = asyncio.Event()
        self._arrived: asyncio.Queue[Incoming] = asyncio.Queue()
        channel.on_consumer_cancel_callbacks.add(self._on_cancel)

    async def start(self, prefetch: int = 100) -> None:
        await self.channel.basic_qos(prefetch_count=prefetch)
        await self.channel.consume(QUEUE, "test", self._arrived.put_nowait)

    async def next(self) -> Incoming:
        return await asyncio.wait_for(self._arrived.get(), MAX_WAIT)

    def _on_cancel(self, _: spec.Basic.Cancel) -> None:
        self.cancelled.set()


# --- deliveries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{}", BIG_BODY], ids=["empty", "small", "many frames"])
@pytest.mark.parametrize("headers", [None, HEADERS], ids=["bare", "with headers"])
async def test_a_delivery_is_what_was_published(
    channel: PipelinedChannel, body: bytes, headers: dict[str, Any] | None
) -> None:
    envelope = Envelope(
        body, "job-1", type="crawl", priority=7, timestamp=1_700_000_000, headers=headers
    )
    await channel.publish("", QUEUE, envelope)
    await channel.publish("", QUEUE, Envelope(b"behind it", "job-2", priority=1))

    consumer = Consumer(channel)
    await consumer.start()
    first, second = await consumer.next(), await consumer.next()
    assert first.body == body
    assert first.headers == (headers or {})
    assert (first.message_id, first.priority, first.redelivered) == ("job-1", 7, False)
    assert (first.exchange, first.routing_key) == ("", QUEUE)
    assert (second.body, second.message_id) == (b"behind it", "job-2")


async def test_every_property_of_a_foreign_publisher_can_be_read_past(
    broker: TestBroker, channel: PipelinedChannel
) -> None:
    message = aio_pika.Message(
        BIG_BODY,
        content_type="application/json; charset=utf-8",
        content_encoding="identity",
        headers={"x-note": "kept"},
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        reply_to="somebody",
        expiration=60,
        message_id="job-1",
        timestamp=1_700_000_000,
        type="crawl",
        app_id="another program",
    )
    async with await aio_pika.connect(broker.amqp_url) as connection:
        foreign = await connection.channel()
        await foreign.default_exchange.publish(message, QUEUE)
        await foreign.default_exchange.publish(aio_pika.Message(b"no properties"), QUEUE)
    consumer = Consumer(channel)
    await consumer.start()
    arrived = {
        delivery.message_id: delivery for delivery in (await consumer.next(), await consumer.next())
    }
    assert arrived["job-1"].body == BIG_BODY
    assert arrived["job-1"].headers["x-note"] == "kept"
    assert arrived["job-1"].priority == 4
    without_properties = next(
        delivery for delivery in arrived.values() if delivery.body == b"no properties"
    )
    assert without_properties.priority == 0


async def test_a_consumer_that_fails_with_a_delivery_keeps_its_channel(
    channel: PipelinedChannel,
) -> None:
    arrived: asyncio.Queue[Incoming] = asyncio.Queue()

    def fail_or_receive(message: Incoming) -> None:
        if message.body == b"bad":
            raise RecursionError("a defect")
        arrived.put_nowait(message)

    await channel.consume(QUEUE, "test", fail_or_receive)
    for body in (b"bad", b"good"):
        await channel.publish("", QUEUE, Envelope(body, "id"))
    message = await asyncio.wait_for(arrived.get(), MAX_WAIT)
    assert message.body == b"good"
    assert channel.ack(message.delivery_tag)
    assert not channel.closed.done()


async def test_an_acknowledged_delivery_is_gone_and_a_requeued_one_comes_again(
    broker: TestBroker, channel: PipelinedChannel
) -> None:
    for name in ("done", "again"):
        await channel.publish("", QUEUE, Envelope(b"", name))
    consumer = Consumer(channel)
    await consumer.start()
    for _ in range(2):
        delivery = await consumer.next()
        settle = channel.ack if delivery.message_id == "done" else channel.requeue
        assert settle(delivery.delivery_tag)
    delivery = await consumer.next()
    assert (delivery.message_id, delivery.redelivered) == ("again", True)
    assert channel.ack(delivery.delivery_tag)
    await channel.basic_cancel("test")
    await broker.management.wait_until_depth(QUEUE, 0)


async def test_a_channel_never_holds_more_than_its_prefetch(channel: PipelinedChannel) -> None:
    for number in range(5):
        await channel.publish("", QUEUE, Envelope(b"", f"job-{number}"))
    consumer = Consumer(channel)
    await consumer.start(prefetch=2)
    deliveries = [await consumer.next(), await consumer.next()]
    declared = await channel.queue_declare(QUEUE, passive=True)  # answered after what was sent
    assert declared.message_count == 3
    channel.ack(deliveries[0].delivery_tag)
    assert (await consumer.next()).delivery_tag == 3


async def test_a_cancelled_consumer_gets_nothing_more(channel: PipelinedChannel) -> None:
    consumer = Consumer(channel)
    await consumer.start()
    await channel.cancel("test")
    await channel.publish("", QUEUE, Envelope(b"", "job-1"))
    declared = await channel.queue_declare(QUEUE, passive=True)
    assert declared.message_count == 1
    assert not consumer.cancelled.is_set()


async def test_the_end_of_a_queue_is_noticed_by_its_consumer(
    broker: TestBroker, channel: PipelinedChannel
) -> None:
    consumer = Consumer(channel)
    await consumer.start()
    await broker.management.delete(f"/queues/{{vhost}}/{QUEUE}")
    await asyncio.wait_for(consumer.cancelled.wait(), MAX_WAIT)
    assert not channel.closed.done()


# --- confirms -----------------------------------------------------------------------------------


async def test_thousands_of_confirms_find_their_publishes(
    channel: PipelinedChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some confirms are for many publishes (`multiple`); none goes to the wrong one."""
    multiple_confirms = 0
    pop_confirmed = UnconfirmedPublishes.pop_confirmed

    def count_and_pop(
        self: UnconfirmedPublishes[Any], tag: int, *, multiple: bool, accepted: bool
    ) -> list[tuple[Any, PublishError | None]]:
        nonlocal multiple_confirms
        multiple_confirms += multiple
        return pop_confirmed(self, tag, multiple=multiple, accepted=accepted)

    monkeypatch.setattr(UnconfirmedPublishes, "pop_confirmed", count_and_pop)
    confirms = []
    for number in range(3_000):
        is_lost = number % 7 == 0
        key = "no.such.queue" if is_lost else QUEUE
        confirms.append(channel.publish("", key, Envelope(b"", f"job-{number}")))
    results = await asyncio.gather(*confirms, return_exceptions=True)
    mismatched = [
        number
        for number, result in enumerate(results)
        if isinstance(result, Unroutable) != (number % 7 == 0)
    ]
    assert mismatched == []
    assert multiple_confirms
    assert channel.unconfirmed == 0


async def test_two_publishes_of_one_job_have_confirms_of_their_own(
    channel: PipelinedChannel,
) -> None:
    envelope = Envelope(b"", "job-1")
    unroutable, routable = (
        channel.publish("", "nowhere", envelope),
        channel.publish("", QUEUE, envelope),
    )
    with pytest.raises(Unroutable, match="nowhere"):
        await unroutable
    await routable


async def test_each_of_many_publishes_that_come_back_is_unroutable(
    channel: PipelinedChannel,
) -> None:
    confirms = [channel.publish("", "nowhere", Envelope(b"", "job-1")) for _ in range(50)]
    results = await asyncio.gather(*confirms, return_exceptions=True)
    assert [type(result) for result in results] == [Unroutable] * 50


async def test_a_publish_that_is_not_mandatory_may_get_lost(channel: PipelinedChannel) -> None:
    await channel.publish("", "nowhere", Envelope(b"", "job-1"), mandatory=False)


async def test_publishes_leave_in_order_although_the_writer_is_behind(
    channel: PipelinedChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, refusals = channel.write_queue.put_nowait, 0

    def refuse_at_first(frame: Any) -> None:
        nonlocal refusals
        if refusals < 3:
            refusals += 1
            raise asyncio.QueueFull
        put(frame)

    monkeypatch.setattr(channel.write_queue, "put_nowait", refuse_at_first)
    first = channel.publish("", QUEUE, Envelope(b"", "0"))
    await asyncio.sleep(0)  # the first flush has found no room
    assert refusals == 1
    await asyncio.gather(
        first, *(channel.publish("", QUEUE, Envelope(b"", str(number))) for number in range(1, 9))
    )
    assert refusals == 3
    consumer = Consumer(channel)
    await consumer.start()
    assert [(await consumer.next()).message_id for _ in range(9)] == [str(n) for n in range(9)]


async def test_confirms_can_be_waited_for_in_any_order(channel: PipelinedChannel) -> None:
    confirms = [channel.publish("", QUEUE, Envelope(b"", str(number))) for number in range(100)]
    for confirm in reversed(confirms):
        await asyncio.wait_for(confirm, MAX_WAIT)


# --- the end ------------------------------------------------------------------------------------


async def test_a_channel_that_the_broker_closes_ends_waiting_publishes(
    channel: PipelinedChannel, broker: TestBroker
) -> None:
    await channel.publish("", QUEUE, Envelope(b"", "job-1"))
    channel.ack(4711)  # unknown: PRECONDITION_FAILED
    waiting = channel.publish("", QUEUE, Envelope(b"", "job-2"))

    await asyncio.wait_for(channel.closed, MAX_WAIT)
    with pytest.raises(
        BrokerUnavailable, match="PRECONDITION_FAILED - unknown delivery tag"
    ) as error:
        await waiting
    assert error.value.maybe_accepted
    with pytest.raises(BrokerUnavailable, match="the channel is closed") as error:
        channel.publish("", QUEUE, Envelope(b"", "job-3"))
    assert not error.value.maybe_accepted
    assert not channel.ack(1)
    assert not channel.requeue(1)
    with pytest.raises(CHANNEL_ERRORS):
        await channel.consume(QUEUE, "late", lambda _: None)
    await asyncio.wait_for(channel.wait_for_window(0), MAX_WAIT)
    assert await depth(broker.amqp_url, QUEUE) == 1


async def test_a_new_channel_works_where_the_broker_closed_another(
    channel: PipelinedChannel,
) -> None:
    connection = channel.connection
    channel.ack(4711)
    await asyncio.wait_for(channel.closed, MAX_WAIT)
    another = await open_channel(connection, confirms=True)  # type: ignore[arg-type]
    await another.publish("", QUEUE, Envelope(b"", "job-1"))
    consumer = Consumer(another)
    await consumer.start()
    assert (await consumer.next()).message_id == "job-1"


async def test_channels_of_one_connection_do_not_mix(channel: PipelinedChannel) -> None:
    another = await open_channel(channel.connection, confirms=True)  # type: ignore[arg-type]
    consumer = Consumer(another)
    await consumer.start()
    unroutable = another.publish("", "nowhere", Envelope(BIG_BODY, "job-1"))
    await channel.publish("", QUEUE, Envelope(BIG_BODY, "job-1"))
    with pytest.raises(Unroutable):
        await unroutable
    assert (await consumer.next()).body == BIG_BODY
    assert not is_blocked(channel.connection)


async def test_publishing_to_a_missing_exchange_says_what_to_do(channel: PipelinedChannel) -> None:
    unroutable = channel.publish("jobs.topic", "hot.crawl", Envelope(b"", "job-1"))
    later_publish = channel.publish("", QUEUE, Envelope(b"", "job-2"))
    with pytest.raises(Unroutable, match="jobctl topology apply"):
        await unroutable
    with pytest.raises(BrokerUnavailable, match=r"no exchange 'jobs\.topic'") as error:
        await later_publish
    assert error.value.maybe_accepted


async def test_consuming_from_a_missing_queue_is_an_error(channel: PipelinedChannel) -> None:
    with pytest.raises(ChannelNotFoundEntity, match=r"no queue 'no\.such\.queue'"):
        await channel.consume("no.such.queue", "test", lambda _: None)
    await asyncio.wait_for(channel.closed, MAX_WAIT)


async def test_a_connection_that_is_cut_closes_its_channels(broker310: TestBroker) -> None:
    async with (
        TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy,
        open_channel_to(proxy.url(broker310.amqp_url)) as channel,
    ):
        await declare(channel, "classic")
        proxy.pause("to_client")
        waiting = channel.publish("", QUEUE, Envelope(b"", "job-1"))
        await eventually(lambda: len(channel._outgoing) == 0)
        proxy.cut()
        with pytest.raises(BrokerUnavailable) as error:
            await asyncio.wait_for(waiting, MAX_WAIT)
        assert error.value.maybe_accepted
        assert channel.closed.done()


async def test_a_call_on_a_connection_that_fell_silent_fails_and_is_not_cancelled(
    broker310: TestBroker,
) -> None:
    """A task that nobody has cancelled must not end as cancelled."""
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        url = proxy.url(broker310.amqp_url) + "?heartbeat=1"
        async with open_channel_to(url) as channel, asyncio.timeout(20):
            proxy.pause()
            with pytest.raises(ChannelInvalidStateError, match="silent"):
                await channel.basic_qos(prefetch_count=1)
            assert channel.closed.done()


async def test_a_channel_that_does_not_open_in_time_costs_nobody_else_the_connection(
    broker310: TestBroker,
) -> None:
    async with (
        TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy,
        open_channel_to(proxy.url(broker310.amqp_url)) as channel,
    ):
        connection = channel.connection
        assert isinstance(connection, Connection)
        proxy.pause("to_client")
        with pytest.raises(TimeoutError, match="no answer"):
            await open_channel(connection, confirms=False, limit=0.2)
        proxy.resume()
        await channel.basic_qos(prefetch_count=1)
        assert not channel.closed.done()


async def test_a_call_that_is_cancelled_is_cancelled(broker310: TestBroker) -> None:
    async with (
        TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy,
        open_channel_to(proxy.url(broker310.amqp_url)) as channel,
    ):
        proxy.pause("to_client")
        call = asyncio.create_task(channel.basic_qos(prefetch_count=1))
        await asyncio.wait((call,), timeout=0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        proxy.resume()
