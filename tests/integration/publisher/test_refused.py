"""What both publishers say of full lanes, of missing queues and of an alarm."""

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
from tests.support.brokers import SMALL, TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    HOT_QUEUE,
    MAINTENANCE,
    MAINTENANCE_QUEUE,
    SHORT,
    PublisherType,
    accepted,
    broker_settings,
    declare,
    depth,
    job,
    jobs,
    settings_of,
    take,
)
from tests.support.vhosts import EVERYTHING

ANSWERS = (Accepted, LaneFull)


def event() -> Envelope:
    return Envelope(b"{}", "event")


async def test_a_full_lane_refuses_and_nothing_is_kept(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    before = await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE)
    async with publisher_type(broker_settings(full_lanes)) as publisher:
        with pytest.raises(LaneFull) as full:
            await publisher.publish(job(), MAINTENANCE)
    assert not full.value.dead_lettered
    assert full.value.routing_key == MAINTENANCE
    assert await depth(full_lanes.amqp_url, MAINTENANCE_QUEUE) == before
    assert await depth(full_lanes.amqp_url, DEAD_QUEUE) == 0


async def test_a_full_hot_lane_puts_the_newcomer_into_the_dead_letters(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    before = await depth(full_lanes.amqp_url, HOT_QUEUE)
    message = job("newcomer", url="https://example.org")
    async with publisher_type(broker_settings(full_lanes)) as publisher:
        with pytest.raises(LaneFull) as full:
            await publisher.publish(message, HOT)
    assert full.value.dead_lettered
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
    told = [(type(each), each.routing_key) for each in results if isinstance(each, ANSWERS)]
    outcome = {HOT: LaneFull, BACKFILL: Accepted, MAINTENANCE: LaneFull}
    assert told == [(outcome[key], key) for key in keys]
    assert await depth(full_lanes.amqp_url, BACKFILL_QUEUE) == SHORT
    assert len(await take(full_lanes.amqp_url, DEAD_QUEUE, 2)) == 2


async def test_a_lane_takes_jobs_again_when_there_is_room(
    publisher_type: PublisherType, full_lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(full_lanes)) as publisher:
        with pytest.raises(LaneFull):
            await publisher.publish(job(), MAINTENANCE)
        await take(full_lanes.amqp_url, MAINTENANCE_QUEUE, SHORT)
        assert await eventually(partial(accepted, publisher, MAINTENANCE))


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


@pytest.mark.parametrize("wrong", list(_unencodable()))
async def test_a_job_that_does_not_fit_into_amqp_leaves_the_others_alone(
    publisher_type: PublisherType, lanes: TestBroker, wrong: str
) -> None:
    bad = _unencodable()[wrong]
    async with publisher_type(broker_settings(lanes)) as publisher:
        before, refused, behind = await publisher.publish_many(
            [Outgoing(job("before"), HOT), bad, Outgoing(job("behind"), HOT)]
        )
        with pytest.raises(NeverTaken):
            await publisher.publish(bad.message, bad.routing_key)
    assert (before, behind) == (Accepted("before", HOT), Accepted("behind", HOT))
    assert isinstance(refused, NeverTaken)
    assert refused.left_nothing


async def test_a_name_that_is_too_long_is_told_with_what_amqp_allows(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(lanes)) as publisher:
        with pytest.raises(ValueError, match="255 bytes"):
            await publisher.publish(job(), "hot." + "x" * 255)


def _of_size(job_id: str, size: int) -> Outgoing:
    """A job whose message has so many bytes."""
    without = len(job(job_id, text="").encode())
    return Outgoing(job(job_id, text="x" * (size - without)), HOT)


async def test_a_message_larger_than_the_broker_takes_blocks_no_other_of_its_batch(
    publisher_type: PublisherType, small_broker: TestBroker
) -> None:
    await declare(small_broker)
    sizes = [100, SMALL, SMALL + 1, 200, 2 * SMALL, 300, SMALL + 1] + [150] * 40
    batch = [_of_size(f"job-{place}", max(size, 260)) for place, size in enumerate(sizes)]
    large = {place for place, size in enumerate(sizes) if size > SMALL}
    async with publisher_type(broker_settings(small_broker)) as publisher:
        results = await publisher.publish_many(batch)
        for place, result in enumerate(results):
            if place in large:
                assert isinstance(result, MessageTooLarge), result
                assert (result.size, result.limit) == (sizes[place], SMALL)
                assert "storage" in str(result)
            else:
                assert result == Accepted(f"job-{place}", HOT)
        # Known by now: refused without a closed channel, and nobody else notices.
        again = await publisher.publish_many([_of_size("again", SMALL + 1), *jobs(20, HOT)])
    assert isinstance(again[0], MessageTooLarge)
    assert all(isinstance(each, Accepted) for each in again[1:])


async def test_what_publishes_at_the_same_time_as_a_large_message_is_accepted(
    small_broker: TestBroker,
) -> None:
    await declare(small_broker)
    large = Envelope(b"x" * (SMALL + 1), "large")
    async with Publisher(broker_settings(small_broker)) as publisher:
        several = await asyncio.gather(
            *(publisher.publish(job(f"a-{each}"), HOT) for each in range(20)),
            publisher.send(JOBS_EXCHANGE, HOT, large),
            *(publisher.publish(job(f"b-{each}"), HOT) for each in range(20)),
            return_exceptions=True,
        )
    (refused,) = [each for each in several if not isinstance(each, Accepted)]
    assert isinstance(refused, MessageTooLarge)


async def test_an_event_that_is_too_large_is_dropped_and_disturbs_no_job(
    small_broker: TestBroker,
) -> None:
    await declare(small_broker)
    async with Publisher(broker_settings(small_broker)) as publisher:
        await publisher.publish(job(), HOT)
        for _ in range(3):
            publisher.send_soon(
                EVENTS_EXCHANGE, "wrote.hot.crawl", lambda: Envelope(b"x" * 2 * SMALL, "event")
            )
            results = await publisher.publish_many(jobs(10, HOT))
            assert all(isinstance(each, Accepted) for each in results)


async def test_a_job_that_no_worker_could_read_is_refused_by_every_broker(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(lanes)) as publisher:
        await publisher.publish(_of_size("most", MAX_BODY_BYTES).message, HOT)
        with pytest.raises(MessageTooLarge, match="a worker reads at most 1,048,576"):
            await publisher.publish(_of_size("more", MAX_BODY_BYTES + 1).message, HOT)


async def test_the_setting_refuses_before_anything_is_sent(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    async with publisher_type(broker_settings(lanes, max_message_size=5_000)) as publisher:
        with pytest.raises(MessageTooLarge, match="JOBS_MAX_MESSAGE_SIZE allows at most 5,000"):
            await publisher.publish(_of_size("more", 5_001).message, HOT)
        most = _of_size("most", 5_000)
        assert await publisher.publish(most.message, HOT) == Accepted("most", HOT)
    assert await depth(lanes.amqp_url, HOT_QUEUE) == 1


async def test_a_user_who_may_not_publish_is_told_so_and_others_are_accepted(
    publisher_type: PublisherType, lanes: TestBroker
) -> None:
    """A broker can allow or forbid each routing key of a topic exchange."""
    url, vhost = await _user_without(lanes, MAINTENANCE)
    keys = [HOT, MAINTENANCE, HOT, HOT, MAINTENANCE, HOT]
    async with publisher_type(settings_of(url, lanes.profile)) as publisher:
        results = await publisher.publish_many(Outgoing(job(key), key) for key in keys)
    assert [type(each) for each in results] == [
        Accepted if key == HOT else NotPermitted for key in keys
    ], vhost
    told = str(results[1])
    assert "may not publish 'maintenance.crawl'" in told
    assert "jobctl topology users" in told


async def _user_without(broker: TestBroker, routing_key: str) -> tuple[str, str]:
    """The address of a user who may publish all jobs but those of that key, and the vhost."""
    name, vhost = f"limited-{uuid4().hex[:8]}", broker.vhost
    await broker.management.put(f"/users/{name}", {"password": "secret", "tags": ""})
    await broker.management.put(f"/permissions/{{vhost}}/{name}", EVERYTHING)
    allowed = "^(?!" + routing_key.replace(".", "[.]") + ").*"
    topics = {"exchange": JOBS_EXCHANGE, "write": allowed, "read": ".*"}
    await broker.management.put(f"/topic-permissions/{{vhost}}/{name}", topics)
    parts = urlsplit(broker.amqp_url)
    return parts._replace(netloc=f"{name}:secret@{parts.netloc.split('@')[-1]}").geturl(), vhost


async def test_what_the_broker_refuses_for_its_properties_is_not_away(lanes: TestBroker) -> None:
    """The broker says neither which message it was nor which property."""
    async with Publisher(broker_settings(lanes)) as publisher:
        forged = _Forged(b"{}", "forged", _with_user_id("somebody-else"))
        results = await asyncio.gather(
            publisher.publish(job("before"), HOT),
            publisher.send(JOBS_EXCHANGE, HOT, forged),  # type: ignore[arg-type]
            publisher.publish(job("behind"), HOT),
            return_exceptions=True,
        )
    assert results[0] == Accepted("before", HOT)
    assert isinstance(results[1], NeverTaken), results[1]
    assert "user_id" in str(results[1])
    assert results[2] == Accepted("behind", HOT)


class _Forged(Forwarded):
    """A message that names its user."""

    def properties(self) -> bytes:
        return self.encoded


def _with_user_id(name: str) -> bytes:
    return b"\x00\x10" + bytes((len(name),)) + name.encode()


@pytest.mark.long
async def test_a_broker_with_an_alarm_takes_nothing_and_says_so(
    publisher_type: PublisherType, own_node: Callable[..., LocalNode]
) -> None:
    node = own_node()
    await declare(TestBroker("3.10", "classic", "/", node))
    alarm = partial(asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
    async with publisher_type(settings_of(node.amqp_url)) as publisher:
        await publisher.publish(job("before"), HOT)
        await alarm("0.00000001")

        # The broker tells a connection of the alarm when it publishes, and keeps what it sent.
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="blocks publishers") as held:
            await publisher.publish(job("held"), HOT)
        assert held.value.maybe_accepted
        assert time.monotonic() - began < BLOCKED_CONFIRM_TIMEOUT + 1

        began = time.monotonic()
        with pytest.raises(Blocked, match="nothing was sent"):
            await publisher.publish(job("never-sent"), HOT)
        results = await publisher.publish_many(jobs(100, HOT))
        if isinstance(publisher, Publisher):
            publisher.send_soon(EVENTS_EXCHANGE, "done.hot.crawl", event)
        assert {type(result) for result in results} == {Blocked}
        assert time.monotonic() - began < BLOCKED_CONFIRM_TIMEOUT  # nobody has waited for anything

        await alarm("0.8")
        await eventually(partial(accepted, publisher, HOT), what="the end of the alarm")
    arrived = {message.message_id for message in await take(node.amqp_url, HOT_QUEUE, 3)}
    assert {"before", "held"} < arrived
    assert "never-sent" not in arrived
    assert await depth(node.amqp_url, HOT_QUEUE) == 0
