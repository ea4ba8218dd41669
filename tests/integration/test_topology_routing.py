"""Where jobs go on a real broker: to one queue, back to it, or to the dead letters."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import DeliveryError, QueueEmpty

from switchyard.broker.lanes import LANES, Lane, Route
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.topology.build import build
from switchyard.broker.topology.differences import diff
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import MAX_OVERSHOOT

ROUTES = (
    Route("hot", "ingest_document", "ingest"),
    Route("hot", "summarize_content", "llm"),
    Route("backfill", "summarize_content", "llm"),
    Route("hot", "link_content", "link"),
    Route("maintenance", "link_content", "link"),
    Route("vlm_ocr", "ocr_pdf", "ocr"),
    Route("hot", "translate_abstract", "translator"),
)
SHORT_LENGTH = 3
SHORT_LANES = tuple(replace(lane, max_length=SHORT_LENGTH, ttl_seconds=3600) for lane in LANES)
HASTY_LANES = tuple(replace(lane, ttl_seconds=1) for lane in LANES)
RETRY_SECONDS = 0.3


@pytest.fixture
def lanes() -> tuple[Lane, ...]:
    """The lanes that `channel` finds; a test chooses others by `short` or `hasty`."""
    return LANES


short = pytest.mark.parametrize("lanes", [SHORT_LANES], ids=["short"])
hasty = pytest.mark.parametrize("lanes", [HASTY_LANES], ids=["hasty"])


@pytest.fixture
async def channel(broker: TestBroker, lanes: tuple[Lane, ...]) -> AsyncIterator[AbstractChannel]:
    await declare(
        broker, lanes
    )  # first of all: then a vhost that has the topology can be used (vhosts.py)
    async with await aio_pika.connect(broker.amqp_url) as connection:
        yield await connection.channel(publisher_confirms=True)


async def declare(broker: TestBroker, lanes: tuple[Lane, ...] = LANES) -> None:
    topology = build(broker.profile, ROUTES, lanes=lanes, retry_delays=[RETRY_SECONDS])
    await broker.declare(topology)


async def publish(channel: AbstractChannel, exchange: str, key: str, **properties) -> None:
    """Publish a persistent message with a confirm. Raises DeliveryError when it is refused."""
    message = aio_pika.Message(key.encode(), delivery_mode=2, **properties)
    await (await channel.get_exchange(exchange, ensure=False)).publish(message, key)


async def get(channel: AbstractChannel, queue_name: str) -> AbstractIncomingMessage:
    """Return the next message of a queue, as soon as there is one."""
    queue = await channel.get_queue(queue_name, ensure=False)

    async def next_message() -> AbstractIncomingMessage | None:
        with suppress(QueueEmpty):
            return await queue.get()
        return None

    return await eventually(next_message, what=f"a message in {queue_name}")


async def take(channel: AbstractChannel, queue_name: str) -> AbstractIncomingMessage:
    """Acknowledge and return the next message of a queue, as soon as there is one."""
    message = await get(channel, queue_name)
    await message.ack()
    return message


async def take_all(channel: AbstractChannel, queue_name: str) -> list[str]:
    queue = await channel.get_queue(queue_name, ensure=False)
    keys = []
    with suppress(QueueEmpty):
        while True:
            keys.append((await queue.get(no_ack=True)).body.decode())
    return keys


async def fill(channel: AbstractChannel, key: str) -> int:
    """Publish until a message is refused. Returns how many were accepted."""
    for accepted in range(SHORT_LENGTH + MAX_OVERSHOOT):
        try:
            await publish(channel, "jobs.topic", key)
        except DeliveryError:
            return accepted
    raise AssertionError("the lane never refused")


async def test_every_key_lands_in_its_queue_and_only_there(
    broker: TestBroker, channel: AbstractChannel
) -> None:
    for route in ROUTES:
        await publish(channel, "jobs.topic", route.routing_key)
    queues = [queue.name for queue in build(broker.profile, ROUTES).queues]
    lane_queues = [name for name in queues if not name.startswith("jobs.retry.")]
    keys_by_queue = {name: await take_all(channel, name) for name in lane_queues}
    expected: dict[str, list[str]] = {name: [] for name in lane_queues}
    for route in ROUTES:
        expected[route.queue].append(route.routing_key)
    assert keys_by_queue == expected


async def test_an_unknown_key_goes_to_the_dead_letters(channel: AbstractChannel) -> None:
    for key in ("hot.nonsense", "tepid.summarize_content", "hot", ""):
        await publish(channel, "jobs.topic", key)
        for name in ("jobs.dead", "jobs.dead.log"):
            assert (await take(channel, name)).routing_key == key


async def test_a_dead_letter_arrives_in_the_queue_and_in_the_log(
    broker: TestBroker, channel: AbstractChannel
) -> None:
    await publish(channel, "jobs.topic", "hot.summarize_content")
    await (await get(channel, "hot.llm")).reject(requeue=False)
    for name in ("jobs.dead", "jobs.dead.log"):
        message = await take(channel, name)
        assert message.headers["x-first-death-queue"] == "hot.llm"
        assert message.headers["x-first-death-reason"] == "rejected"


@hasty
async def test_a_job_that_nobody_took_in_time_is_a_dead_letter(channel: AbstractChannel) -> None:
    keys = {route.lane: route.routing_key for route in ROUTES}
    assert keys.keys() == {lane.name for lane in LANES}
    for key in keys.values():
        await publish(channel, "jobs.topic", key)
    dead = [await take(channel, "jobs.dead") for _ in keys]
    assert {message.routing_key for message in dead} == set(keys.values())
    assert {message.headers["x-first-death-reason"] for message in dead} == {"expired"}


@short
async def test_a_full_hot_lane_tells_the_publisher_and_dead_letters_where_it_can(
    broker: TestBroker, channel: AbstractChannel
) -> None:
    accepted = await fill(channel, "hot.summarize_content")
    dead_count = 1 if broker.profile == "classic" else 0
    if dead_count:
        assert accepted == SHORT_LENGTH
        message = await take(channel, "jobs.dead")
        assert message.headers["x-first-death-reason"] == "maxlen"
    assert len(await take_all(channel, "hot.llm")) == accepted
    assert len(await take_all(channel, "jobs.dead.log")) == dead_count


@short
async def test_the_other_lanes_refuse_and_keep_nothing(channel: AbstractChannel) -> None:
    for lane in ("backfill", "maintenance", "vlm_ocr"):
        route = next(route for route in ROUTES if route.lane == lane)
        accepted = await fill(channel, route.routing_key)
        assert len(await take_all(channel, route.queue)) == accepted
        assert await take_all(channel, "jobs.dead") == []


async def test_a_retry_returns_to_its_one_queue_as_it_was_after_the_delay(
    broker: TestBroker, channel: AbstractChannel
) -> None:
    loop = asyncio.get_running_loop()
    sent = loop.time()
    await publish(channel, "jobs.retry.300ms", "hot.llm", priority=7, headers={"kept": "as it was"})
    message = await take(channel, "hot.llm")
    assert loop.time() - sent >= RETRY_SECONDS
    assert message.body == b"hot.llm"
    assert message.priority == 7
    assert message.headers["kept"] == "as it was"
    for queue in build(broker.profile, ROUTES).queues:
        if not queue.name.startswith("jobs.retry."):
            assert await take_all(channel, queue.name) == []


@short
async def test_a_retry_into_a_full_lane_waits_until_there_is_room(
    broker: TestBroker, channel: AbstractChannel
) -> None:
    accepted = await fill(channel, "vlm_ocr.ocr_pdf")
    await publish(channel, "jobs.retry.300ms", "vlm_ocr.ocr")
    await broker.management.wait_for("jobs.retry.300ms", messages=1, messages_dlx=1)
    assert await take_all(channel, "vlm_ocr.ocr") == ["vlm_ocr.ocr_pdf"] * accepted
    assert (await take(channel, "vlm_ocr.ocr")).body == b"vlm_ocr.ocr"


@short
async def test_a_retry_into_a_full_hot_lane_is_never_lost(
    broker: TestBroker, channel: AbstractChannel
) -> None:
    """A classic hot queue passes it on to the dead letters; a quorum queue has it wait."""
    accepted = await fill(channel, "hot.summarize_content")
    await take_all(channel, "jobs.dead")
    await publish(channel, "jobs.retry.300ms", "hot.llm")
    if broker.profile == "quorum":
        await broker.management.wait_for("jobs.retry.300ms", messages=1, messages_dlx=1)
        assert len(await take_all(channel, "hot.llm")) == accepted
    arrival = "jobs.dead" if broker.profile == "classic" else "hot.llm"
    assert (await take(channel, arrival)).body == b"hot.llm"


async def test_the_broker_reports_the_limits_of_each_queue(broker: TestBroker) -> None:
    await declare(broker)
    topology = build(broker.profile, ROUTES, retry_delays=[RETRY_SECONDS])
    for queue in topology.queues:
        policy = topology.policy_of(queue.name)
        assert policy is not None
        await broker.management.wait_for(
            queue.name,
            type=queue.type,
            policy=policy.name,
            effective_policy_definition=policy.definition,
        )


async def test_a_job_that_is_returned_often_stays_in_its_lane(
    broker: TestBroker, channel: AbstractChannel
) -> None:
    """From RabbitMQ 4.0 a quorum queue gives up after twenty returns, unless told not to."""
    for exchange, key, name in (
        ("jobs.topic", "hot.summarize_content", "hot.llm"),
        ("jobs.dlx", "hot.summarize_content", "jobs.dead"),
    ):
        await publish(channel, exchange, key)
        for _ in range(30):
            await (await get(channel, name)).nack(requeue=True)
        assert (await take(channel, name)).routing_key == key


async def test_a_catch_all_policy_of_an_operator_does_not_take_ours_out_of_force(
    broker: TestBroker,
) -> None:
    await declare(broker)
    catch_all = {"pattern": ".*", "definition": {"expires": 60_000}, "apply-to": "queues"}
    await broker.management.put("/policies/{vhost}/everything", catch_all)
    topology = build(broker.profile, ROUTES, retry_delays=[RETRY_SECONDS])
    async with ManagementClient(broker.management_url, broker.vhost) as client:
        assert diff(topology, await client.fetch()) == []
