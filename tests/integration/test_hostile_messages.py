"""Messages whose properties can't be read end as dead letters, and the processes go on."""

import asyncio
import base64
import json
import struct
from collections.abc import Iterator

import pytest

from switchyard.broker.dead.scan import scanning
from switchyard.broker.lanes import (
    CONTROL_EXCHANGE,
    DEAD_EXCHANGE,
    DEAD_LOG_QUEUE,
    DEAD_QUEUE,
    EVENTS_EXCHANGE,
)
from switchyard.broker.message import JobMessage, now
from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.files import export_letters, import_letters, parse_line
from switchyard.services.engine.dead.indexing import DeadLetterIndexer, index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import PurgeHandler, count_letters, start_purge
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_events import EventFeed
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.raw_amqp import BAD_ID, HOSTILE, RawPublisher, short, with_headers
from tests.support.redrives import plan
from tests.support.system import open_system

JOB = JobMessage(job_id="carried", job_type="noop", payload={})
ODD_PROPERTIES = {
    "255 bytes of id": BAD_ID,
    "key as list": with_headers((b"x-death", b"A" + struct.pack(">I", 2) + b"VV")),
    "reason as table": with_headers((b"x-dead-reason", b"F\0\0\0\0")),
    "death at the end of time": with_headers(
        (b"x-dead-reason", b"S\0\0\0\7expired"),
        (b"x-dead-dead-at", b"S\0\0\0\x199999-12-31T23:59:59-12:00"),
    ),
    "numbers without end": with_headers((b"n", b"D\xff\x7f\xff\xff\xff")),
    "other properties": struct.pack(">H", 0b0000_1111_1111_1000)
    + b"\xff"  # priority
    + short(b"\xff" * 255)  # correlation id
    + short(b"\xff\0" * 100)  # reply to
    + short(b"99999999")  # expiration, which the broker checks
    + short(b"\0\x1b[2J")  # message id
    + struct.pack(">Q", 2**64 - 1)
    + short(b"\xff")  # type
    + short(b"USER")  # which the broker checks
    + short(b"\xff"),  # app id
}
"""Properties that are odd and can be read."""


@pytest.fixture
def raw_publisher(broker: TestBroker) -> Iterator[RawPublisher]:
    with RawPublisher(broker.amqp_url) as publisher:
        yield publisher


def make_odd_properties(broker: TestBroker, name: str) -> bytes:
    return ODD_PROPERTIES[name].replace(short(b"USER"), short(broker.node.user.encode()))


async def read_letter_ids(ledger: Ledger) -> set[str]:
    return {letter.id for letter in (await ledger.dead_letters.list_dead()).items}


@pytest.mark.parametrize("body", [b"{", JOB.encode()], ids=["no job", "a job"])
async def test_a_worker_buries_messages_that_it_cannot_read_and_goes_on(
    broker: TestBroker, raw_publisher: RawPublisher, sqlite_url: str, body: bytes
) -> None:
    async with open_system(broker, sqlite_url) as system:
        for properties in HOSTILE.values():
            raw_publisher.publish("jobs.topic", "hot.noop", body, properties)
        raw_publisher.publish("", "hot.llm", b"{", BAD_ID)
        raw_publisher.publish("jobs.dlx", b"\xff" * 255, b"{", BAD_ID)
        await system.start_worker()
        await system.wait_for_state(await system.publish("hot.noop"), State.SUCCEEDED)

        await system.wait_until_ready("hot.llm", 0)
        await system.wait_until_ready(DEAD_QUEUE, 5)
        letters = await system.letters()
        unreadable = [letter for letter in letters if letter.info.properties]
        assert {letter.body for letter in unreadable} == {body}
        assert all(letter.id.startswith("raw-") for letter in letters)
        assert {str(letter.info.reason) for letter in unreadable} == {"malformed"}
        assert {letter.info.routing_key for letter in unreadable} == {"hot.noop"}
        carried = {base64.b64decode(letter.info.properties) for letter in unreadable}
        assert carried == set(HOSTILE.values())
        messages = " ".join(letter.info.message for letter in unreadable)
        assert "name is not UTF-8" in messages
        assert "no calendar" in messages
        assert "nested more than" in messages

        assert await index_waiting(system.settings, system.ledger, system.registry) == 5
        assert await system.ledger.job_reads.get("carried") is None
        distinct = len({letter.id for letter in letters})  # messages of one body are one letter
        tally = await plan(system)
        assert (tally.matched, tally.done, tally.invalid) == (distinct, 0, distinct)


async def test_letters_that_cannot_be_read_are_indexed_shown_skipped_exported_and_purged(
    broker: TestBroker, raw_publisher: RawPublisher, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        task = asyncio.create_task(
            DeadLetterIndexer(system.settings, system.ledger, system.registry).run()
        )
        for name, properties in HOSTILE.items():
            raw_publisher.publish(DEAD_EXCHANGE, "hot.noop", name.encode(), properties)
        raw_publisher.publish(DEAD_EXCHANGE, "hot.noop", JOB.encode())

        await eventually(
            lambda: system.ledger.dead_letters.get_dead("carried"), what="the last letter"
        )
        assert not task.done()
        await end_tasks(task)
        letters = (
            await system.ledger.dead_letters.list_dead(DeadLetterFilter(reason="malformed"))
        ).items
        assert {letter.body.decode() for letter in letters} == set(HOSTILE)
        for letter in letters:
            assert letter.error_type == "UnreadableProperties"
            assert "the AMQP properties can't be read: " in (letter.error_message or "")
            carried = base64.b64decode(str(letter.headers["x-dead-properties"]))
            assert carried == HOSTILE[letter.body.decode()]

        tally = await plan(system)
        assert (tally.matched, tally.done, tally.invalid) == (4, 1, 3)
        assert len([note for note in tally.notes if "AMQP properties can't be read" in note]) == 3

        lines = [
            line
            async for line in export_letters(system.ledger, DeadLetterFilter(reason="malformed"))
        ]
        parsed = [parse_line(line) for line in lines]
        assert {letter.info.properties for letter in parsed} == {
            base64.b64encode(properties).decode() for properties in HOSTILE.values()
        }
        assert {letter.id for letter in parsed} == {letter.id for letter in letters}
        assert (await import_letters(system.ledger, system.wire, parsed)).skipped == 3

        letter_filter = LetterFilter(reason="malformed")
        assert (
            await count_letters(system.settings, system.ledger, letter_filter, asyncio.sleep)
        ).purged == 3
        purge = await start_purge(system.ledger, letter_filter, created_by="test")
        handler = PurgeHandler(system.settings, system.ledger)
        await BulkRunner(system.ledger, [handler]).run_one(purge.id)
        assert [letter.id for letter in await system.letters()] == ["carried"]


async def test_the_index_goes_on_after_messages_that_it_cannot_read(
    broker: TestBroker, raw_publisher: RawPublisher, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        for properties in (
            *HOSTILE.values(),
            *(make_odd_properties(broker, name) for name in ODD_PROPERTIES),
        ):
            raw_publisher.publish("", DEAD_LOG_QUEUE, b"?", properties)
        raw_publisher.publish("", DEAD_LOG_QUEUE, JOB.encode())
        async with scanning(system.settings.require_amqp_url(), DEAD_LOG_QUEUE) as scan:
            assert len([letter async for letter in scan.letters()]) == scan.total
        assert await index_waiting(system.settings, system.ledger, system.registry) == scan.total
        assert await system.ready(DEAD_LOG_QUEUE) == 0
        assert await read_letter_ids(system.ledger) >= {"carried"}


@pytest.mark.parametrize("name", ODD_PROPERTIES)
async def test_messages_with_odd_properties_are_handled_once(
    broker: TestBroker, raw_publisher: RawPublisher, postgres_url: str, name: str
) -> None:
    properties = make_odd_properties(broker, name)
    async with open_system(broker, postgres_url) as system:
        await system.start_worker()
        raw_publisher.publish("jobs.topic", "hot.noop", b"{", properties)
        letters = await eventually(system.letters, what="a dead letter")
        assert letters[0].info.reason == "malformed"
        raw_publisher.publish(DEAD_EXCHANGE, "hot.noop", b"!", properties)
        raw_publisher.publish("jobs.topic", "hot.noop", JOB.encode(), properties)
        await system.wait_for_state(JOB.job_id, State.SUCCEEDED)
        assert await index_waiting(system.settings, system.ledger, system.registry) == 2
        for indexed in (await system.ledger.dead_letters.list_dead()).items:
            json.dumps(indexed.headers, allow_nan=False)
            assert indexed.dead_at <= now().timestamp()
        assert len([line async for line in export_letters(system.ledger, DeadLetterFilter())]) == 2
        assert (await plan(system)).invalid == 2


async def test_hostile_events_and_commands_end_neither_feed_nor_worker(
    broker: TestBroker, raw_publisher: RawPublisher, sqlite_url: str
) -> None:
    bodies = [
        b"[" * 100_000,
        b'{"event": "x", "job_id": "x", "at": 1e999}',
        b'{"event": "x", "job_id": "x", "at": NaN}',
        b'{"event": "a\\nid: b", "job_id": "x", "at": 1}',
        b'{"event": "x", "job_id": "x", "at": 1' + b"0" * 400 + b"}",
        b'{"command": "cancel", "job_id": ' + b"[" * 100_000,
        b'{"command": "cancel", "job_id": {}}',
        b"\xff",
        b"",
    ]
    async with open_system(broker, sqlite_url) as system:
        feed = EventFeed(system.settings)
        task = asyncio.create_task(feed.run())
        await feed.is_listening.wait()
        await system.start_worker()
        with feed.subscribe(lambda event: event.name == "succeeded") as subscription:
            for exchange in (EVENTS_EXCHANGE, CONTROL_EXCHANGE):
                for body in bodies:
                    raw_publisher.publish(exchange, b"\xff" * 255, body)
                for properties in (*HOSTILE.values(), BAD_ID):
                    raw_publisher.publish(exchange, "x", b"{}", properties)
            job_id = await system.publish("hot.noop")
            await system.wait_for_state(job_id, State.SUCCEEDED)
            event = await subscription.next(5)
            assert event is not None
            assert event.job_id == job_id
        assert len(feed.since("0-x")[0]) <= 3
        assert not task.done()
        await end_tasks(task)
