"""Publishes that the broker refuses: full lanes, missing queues, size, permissions, an alarm."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit
from uuid import uuid4

import aio_pika
import pytest

from switchyard.broker.dead.dead_letter_headers import Reason, read_dead_letter_info
from switchyard.broker.errors import (
    Blocked,
    BrokerUnavailable,
    LaneFull,
    MessageTooLarge,
    NeverTaken,
    NotPermitted,
    Unroutable,
)
from switchyard.broker.lanes import DEAD_QUEUE, EVENTS_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import MAX_BODY_BYTES, JobMessage
from switchyard.broker.publish.outcome import BLOCKED_CONFIRM_TIMEOUT, Accepted, Outgoing
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope, Forwarded
from switchyard.cli.system.rabbitmq_node import LocalNode
from tests.support.brokers import SMALL_LIMIT, TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    HOT_QUEUE,
    MAINTENANCE,
    MAINTENANCE_QUEUE,
    SHORT_LENGTH,
    PublisherType,
    broker_settings,
    declare,
    depth,
    job,
    jobs,
    settings_of,
    take,
    try_publish,
)
from tests.support.vhosts import EVERYTHING

ANSWERS = (Accepted, LaneFull)


def make_event() -> Envelope:
    return Envelope(b"{}", "event")


async def test_a_full_lane_refuses_and_nothing_is_kept(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    before = await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE)
    async with publisher_type(broker_settings(full_lanes)) as publisher:
        with pytest.raises(LaneFull) as refused:
            await publisher.publish(job(), MAINTENANCE)
    assert not refused.value.dead_lettered
    assert refused.value.routing_key == MAINTENANCE
    assert await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE) == before
    assert await depth(full_lanes.amqp_url, DEAD_QUEUE) == 0


async def test_a_full_hot_lane_puts_the_newcomer_into_the_dead_letters(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    before = await depth(full_lanes.amqp_url, HOT_QUEUE)
    message = job("newcomer", url="https://example.org")
    async with publisher_type(broker_settings(full_lanes)) as publisher:
        with pytest.raises(LaneFull) as refused:
            await publisher.publish(message, HOT)
    assert refused.value.dead_lettered
    (letter,) = await take(full_lanes.amqp_url, DEAD_QUEUE, 1)
    assert JobMessage.decode(letter.body) == message
    assert letter.message_id == "newcomer"
    info = read_dead_letter_info(letter.headers, letter.routing_key or "", None)
    assert info.reason is Reason.OVERFLOWED
    assert info.routing_key == HOT
    assert await depth(full_lanes.amqp_url, HOT_QUEUE) == before


async def test_results_are_in_the_order_of_the_jobs(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    keys = [HOT, BACKFILL, MAINTENANCE, BACKFILL, HOT, MAINTENANCE, BACKFILL]
    async with publisher_type(broker_settings(full_lanes, publish_window=4)) as publisher:
        results = await publisher.publish_many(Outgoing(job(key), key) for key in keys)
    outcomes = [
        (type(result), result.routing_key) for result in results if isinstance(result, ANSWERS)
    ]
    expected = {HOT: LaneFull, BACKFILL: Accepted, MAINTENANCE: LaneFull}
    assert outcomes == [(expected[key], key) for key in keys]
    assert await depth(full_lanes.amqp_url, BACKFILL_QUEUE) == SHORT_LENGTH
    assert len(await take(full_lanes.amqp_url, DEAD_QUEUE, 2)) == 2


async def test_a_lane_takes_jobs_again_when_there_is_room(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(full_lanes)) as publisher:
        with pytest.raises(LaneFull):
            await publisher.publish(job(), MAINTENANCE)
        await take(full_lanes.amqp_url, MAINTENANCE_QUEUE, SHORT_LENGTH)
        assert await eventually(partial(try_publish, publisher, MAINTENANCE))


async def test_a_job_that_no_queue_takes_is_unroutable(
    publisher_type: PublisherType, broker: TestBroker
) -> None:
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        await channel.declare_exchange(JOBS_EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
    async with publisher_type(broker_settings(broker)) as publisher:
        with pytest.raises(Unroutable, match=r"'hot\.crawl': run `jobctl topology apply`"):
            await publisher.publish(job(), HOT)
        results = await publisher.publish_many(Outgoing(job("same"), HOT) for _ in range(20))
    assert {type(result) for result in results} == {Unroutable}


async def test_without_a_topology_the_publisher_says_what_to_do(
    publisher_type: PublisherType, broker: TestBroker
) -> None:
    async with publisher_type(broker_settings(broker)) as publisher:
        with pytest.raises(Unroutable, match="jobctl topology apply"):
            await publisher.publish(job(), HOT)
        await declare(broker)
        assert await publisher.publish(job("job-1"), HOT) == Accepted("job-1", HOT)


def _unencodable() -> dict[str, Outgoing]:
    """Jobs that no AMQP frame can carry, by what is wrong with them; none is validated."""
    long = "x" * 256
    return {
        "routing key": Outgoing(job(), f"hot.{long}"),
        "id": Outgoing(job().model_copy(update={"job_id": long}), HOT),
        "type": Outgoing(job().model_copy(update={"job_type": long}), HOT),
        "priority": Outgoing(job().model_copy(update={"priority": 256}), HOT),
        "text": Outgoing(job(text="\ud800"), HOT),
    }


@pytest.mark.parametrize("invalid_field", list(_unencodable()))
async def test_a_job_that_amqp_can_not_encode_does_not_affect_the_others(
    publisher_type: PublisherType, lanes: TestBroker, invalid_field: str
) -> None:
    invalid_job = _unencodable()[invalid_field]
    async with publisher_type(broker_settings(lanes)) as publisher:
        before, refused, after = await publisher.publish_many(
            [Outgoing(job("before"), HOT), invalid_job, Outgoing(job("after"), HOT)]
        )
        with pytest.raises(NeverTaken):
            await publisher.publish(invalid_job.message, invalid_job.routing_key)
    assert (before, after) == (Accepted("before", HOT), Accepted("after", HOT))
    assert isinstance(refused, NeverTaken)
    assert refused.left_nothing


async def test_the_error_about_a_long_routing_key_names_the_limit_of_amqp(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(lanes)) as publisher:
        with pytest.raises(ValueError, match="255 bytes"):
            await publisher.publish(job(), "hot." + "x" * 255)


def _of_size(job_id: str, size: int) -> Outgoing:
    """Return a job whose message has exactly that many bytes."""
    size_without_text = len(job(job_id, text="").encode())
    return Outgoing(job(job_id, text="x" * (size - size_without_text)), HOT)


async def test_a_message_larger_than_the_broker_takes_blocks_no_other_of_its_batch(
    publisher_type: PublisherType, small_broker: TestBroker
) -> None:
    await declare(small_broker)
    sizes = [100, SMALL_LIMIT, SMALL_LIMIT + 1, 200, 2 * SMALL_LIMIT, 300, SMALL_LIMIT + 1] + [
        150
    ] * 40
    batch = [_of_size(f"job-{index}", max(size, 260)) for index, size in enumerate(sizes)]
    large = {index for index, size in enumerate(sizes) if size > SMALL_LIMIT}
    async with publisher_type(broker_settings(small_broker)) as publisher:
        results = await publisher.publish_many(batch)
        for index, result in enumerate(results):
            if index in large:
                assert isinstance(result, MessageTooLarge), result
                assert (result.size, result.limit) == (sizes[index], SMALL_LIMIT)
                assert "storage" in str(result)
            else:
                assert result == Accepted(f"job-{index}", HOT)
        # The limit is known now: refused unsent, so the channel stays open for the others.
        later_results = await publisher.publish_many(
            [_of_size("again", SMALL_LIMIT + 1), *jobs(20, HOT)]
        )
    assert isinstance(later_results[0], MessageTooLarge)
    assert all(isinstance(result, Accepted) for result in later_results[1:])


async def test_jobs_published_together_with_a_too_large_message_are_accepted(
    small_broker: TestBroker,
) -> None:
    await declare(small_broker)
    large = Envelope(b"x" * (SMALL_LIMIT + 1), "large")
    async with Publisher(broker_settings(small_broker)) as publisher:
        results = await asyncio.gather(
            *(publisher.publish(job(f"a-{number}"), HOT) for number in range(20)),
            publisher.send(JOBS_EXCHANGE, HOT, large),
            *(publisher.publish(job(f"b-{number}"), HOT) for number in range(20)),
            return_exceptions=True,
        )
    (refused,) = [result for result in results if not isinstance(result, Accepted)]
    assert isinstance(refused, MessageTooLarge)


async def test_an_event_that_is_too_large_is_dropped_and_disturbs_no_job(
    small_broker: TestBroker,
) -> None:
    await declare(small_broker)
    async with Publisher(broker_settings(small_broker)) as publisher:
        await publisher.publish(job(), HOT)
        for _ in range(3):
            publisher.send_soon(
                EVENTS_EXCHANGE,
                "wrote.hot.crawl",
                lambda: Envelope(b"x" * 2 * SMALL_LIMIT, "event"),
            )
            results = await publisher.publish_many(jobs(10, HOT))
            assert all(isinstance(result, Accepted) for result in results)


async def test_a_job_that_no_worker_could_read_is_refused_by_every_broker(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(lanes)) as publisher:
        await publisher.publish(_of_size("largest", MAX_BODY_BYTES).message, HOT)
        with pytest.raises(MessageTooLarge, match="a worker reads at most 1,048,576"):
            await publisher.publish(_of_size("too-large", MAX_BODY_BYTES + 1).message, HOT)


async def test_the_setting_refuses_before_anything_is_sent(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(lanes, max_message_size=5_000)) as publisher:
        with pytest.raises(MessageTooLarge, match="JOBS_MAX_MESSAGE_SIZE allows at most 5,000"):
            await publisher.publish(_of_size("too-large", 5_001).message, HOT)
        largest = _of_size("largest", 5_000)
        assert await publisher.publish(largest.message, HOT) == Accepted("largest", HOT)
    assert await depth(lanes.amqp_url, HOT_QUEUE) == 1


async def test_a_job_that_the_user_may_not_publish_is_refused_and_others_are_accepted(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    """A broker can allow or forbid each routing key of a topic exchange."""
    url, vhost = await _create_user_without(lanes, MAINTENANCE)
    keys = [HOT, MAINTENANCE, HOT, HOT, MAINTENANCE, HOT]
    async with publisher_type(settings_of(url, lanes.profile)) as publisher:
        results = await publisher.publish_many(Outgoing(job(key), key) for key in keys)
    assert [type(result) for result in results] == [
        Accepted if key == HOT else NotPermitted for key in keys
    ], vhost
    error_text = str(results[1])
    assert "may not publish 'maintenance.crawl'" in error_text
    assert "jobctl topology users" in error_text


async def _create_user_without(broker: TestBroker, routing_key: str) -> tuple[str, str]:
    """Create a user who may publish all keys but this; return its AMQP URL and the vhost."""
    name, vhost = f"limited-{uuid4().hex[:8]}", broker.vhost
    await broker.management.put(f"/users/{name}", {"password": "secret", "tags": ""})
    await broker.management.put(f"/permissions/{{vhost}}/{name}", EVERYTHING)
    allowed = "^(?!" + routing_key.replace(".", "[.]") + ").*"
    topics = {"exchange": JOBS_EXCHANGE, "write": allowed, "read": ".*"}
    await broker.management.put(f"/topic-permissions/{{vhost}}/{name}", topics)
    parts = urlsplit(broker.amqp_url)
    return parts._replace(netloc=f"{name}:secret@{parts.netloc.split('@')[-1]}").geturl(), vhost


async def test_a_message_refused_for_its_properties_is_never_taken(lanes: TestBroker) -> None:
    """The broker says neither which message it was nor which property."""
    async with Publisher(broker_settings(lanes)) as publisher:
        forged = _Forged(b"{}", "forged", _properties_with_user_id("somebody-else"))
        results = await asyncio.gather(
            publisher.publish(job("before"), HOT),
            publisher.send(JOBS_EXCHANGE, HOT, forged),  # type: ignore[arg-type]
            publisher.publish(job("after"), HOT),
            return_exceptions=True,
        )
    assert results[0] == Accepted("before", HOT)
    assert isinstance(results[1], NeverTaken), results[1]
    assert "user_id" in str(results[1])
    assert results[2] == Accepted("after", HOT)


class _Forged(Forwarded):
    """A message whose properties name another user."""

    def properties(self) -> bytes:
        return self.encoded


def _properties_with_user_id(name: str) -> bytes:
    return b"\x00\x10" + bytes((len(name),)) + name.encode()


@pytest.mark.long
async def test_a_broker_with_an_alarm_blocks_publishers_and_they_say_so(
    publisher_type: PublisherType, own_node: Callable[..., LocalNode]
) -> None:
    node = own_node()
    await declare(TestBroker("3.10", "classic", "/", node))
    set_memory_watermark = partial(
        asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark"
    )
    async with publisher_type(settings_of(node.amqp_url)) as publisher:
        await publisher.publish(job("before"), HOT)
        await set_memory_watermark("0.00000001")

        # The broker tells a connection of the alarm once it publishes, and keeps that message.
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="blocks publishers") as blocked:
            await publisher.publish(job("held"), HOT)
        assert blocked.value.maybe_accepted
        assert time.monotonic() - began < BLOCKED_CONFIRM_TIMEOUT + 1

        began = time.monotonic()
        with pytest.raises(Blocked, match="nothing was sent"):
            await publisher.publish(job("never-sent"), HOT)
        results = await publisher.publish_many(jobs(100, HOT))
        if isinstance(publisher, Publisher):
            publisher.send_soon(EVENTS_EXCHANGE, "done.hot.crawl", make_event)
        assert {type(result) for result in results} == {Blocked}
        # None of them waited for a confirm.
        assert time.monotonic() - began < BLOCKED_CONFIRM_TIMEOUT

        await set_memory_watermark("0.8")
        await eventually(partial(try_publish, publisher, HOT), what="the end of the alarm")
    arrived_ids = {message.message_id for message in await take(node.amqp_url, HOT_QUEUE, 3)}
    assert {"before", "held"} < arrived_ids
    assert "never-sent" not in arrived_ids
    assert await depth(node.amqp_url, HOT_QUEUE) == 0
