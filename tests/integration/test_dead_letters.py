"""The ledger's index of dead letters: it follows `jobs.dead.log`, whoever gave the jobs up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.dead.scan import scanning
from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import DEAD_EXCHANGE, DEAD_LOG_QUEUE, retry_name
from switchyard.broker.message import JobMessage, now
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import end_tasks
from switchyard.broker.wire.envelope import Envelope
from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.dead.indexing import DeadLetterIndexer, index_waiting
from switchyard.services.engine.ledger.dead_groups import DeadLetterRepository
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.results import DeadLetter
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.system import System, lanes_with, open_system
from tests.support.tcp_proxy import TcpProxy


@asynccontextmanager
async def indexing(system: System, **settings: Any) -> AsyncIterator[None]:
    """Run the indexer, as the scheduler does."""
    indexer_settings = system.settings.model_copy(update=settings)
    task = asyncio.create_task(
        DeadLetterIndexer(indexer_settings, system.ledger, system.registry).run()
    )
    yield
    assert not task.done(), task.result()
    await end_tasks(task)


async def wait_for_entry(system: System, letter_id: str) -> DeadLetter:
    """Return the index's entry, as soon as it is there."""
    dead_letter: DeadLetter = await eventually(
        lambda: system.ledger.dead_letters.get_dead(letter_id), what=f"an entry of {letter_id}"
    )
    return dead_letter


# --- who gave the job up, and why -------------------------------------------------------------


async def test_job_that_the_broker_expires_is_indexed_and_dead(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(ttl_seconds={"hot": 1})
    async with open_system(broker, sqlite_url, lanes=lanes) as system, indexing(system):
        job_id = await system.publish("hot.noop", {"n": 7})
        record = await system.wait_for_state(job_id, State.DEAD)
        assert record.reason == "expired"

        letter = await wait_for_entry(system, job_id)
        assert (letter.reason, letter.lane, letter.job_type) == ("expired", "hot", "noop")
        assert (letter.routing_key, letter.worker) == ("hot.noop", "llm")
        assert (letter.state, letter.copies, letter.redrives) == ("waiting", 1, 0)
        assert JobMessage.decode(letter.body).payload == {"n": 7}
        assert abs(letter.dead_at - now().timestamp()) < 10


async def test_job_that_expires_in_its_lane_after_a_retry_keeps_the_key_of_its_type(
    broker: TestBroker, sqlite_url: str
) -> None:
    """A retry comes back under the name of its queue, which no redrive could be sent to."""
    lanes = lanes_with(ttl_seconds={"hot": 1})
    async with (
        open_system(broker, sqlite_url, lanes=lanes, retry_delays=(0.1,)) as system,
        Publisher(system.settings) as publisher,
        indexing(system),
    ):
        retried = JobMessage(job_type="noop", payload={"n": 7})
        await publisher.send(retry_name(0.1), "hot.llm", envelope_of(retried))
        letter = await wait_for_entry(system, retried.job_id)
        assert (letter.reason, letter.lane, letter.job_type) == ("expired", "hot", "noop")
        assert letter.routing_key == "hot.noop"
        async with scanning(system.settings.require_amqp_url()) as scan:
            routing_keys = [scanned.info.routing_key async for scanned in scan.letters()]
        assert routing_keys == ["hot.noop"]


async def test_the_index_goes_on_with_a_queue_that_was_deleted_and_made_again(
    broker: TestBroker, sqlite_url: str
) -> None:
    """The broker cancels the consumer then, and the channel stays open."""
    lanes = lanes_with(ttl_seconds={"hot": 1})
    management = broker.management
    async with open_system(broker, sqlite_url, lanes=lanes) as system, indexing(system):
        await wait_for_entry(system, await system.publish("hot.noop"))
        declared = await management.queue(DEAD_LOG_QUEUE)
        path = f"/queues/{{vhost}}/{DEAD_LOG_QUEUE}"
        await management.delete(path)
        declaration = {key: declared[key] for key in ("durable", "auto_delete", "arguments")}
        await management.put(path, declaration)
        binding = {"routing_key": "", "arguments": {}}
        bindings = f"/bindings/{{vhost}}/e/{DEAD_EXCHANGE}/q/{DEAD_LOG_QUEUE}"
        await management.post(bindings, binding)
        await wait_for_entry(system, await system.publish("hot.noop"))


async def test_job_that_overflows_a_hot_lane_is_indexed_and_dead(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"hot": 2})
    async with open_system(broker, sqlite_url, lanes=lanes) as system, indexing(system):
        numbers = iter(range(10))  # a quorum queue takes some more than its length

        async def publish_until_refused() -> str | None:
            job_id = f"job-{next(numbers)}"
            request = JobRequest("hot.noop", {}, job_id=job_id)
            [outcome] = await system.jobs.publish_many([request])
            return job_id if isinstance(outcome, LaneFull) and outcome.dead_lettered else None

        job_id = await eventually(publish_until_refused)
        letter = await wait_for_entry(system, job_id)
        assert (letter.reason, letter.routing_key) == ("overflowed", "hot.noop")
        record = await system.record(job_id)
        assert (record.state, record.reason) == (State.DEAD, "overflowed")


async def test_recorded_job_that_no_queue_takes_is_indexed_and_goes_back(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system, indexing(system):
        message = JobMessage(job_type="ghost", payload={})
        await system.ledger.jobs.record(NewJob(message, "hot", "llm", "hot.ghost"))
        await system.wire.publish(message, "hot.ghost")

        letter = await wait_for_entry(system, message.job_id)
        assert (letter.reason, letter.routing_key) == ("displaced", "hot.ghost")
        # These are known from its record: the index does not know the type.
        assert (letter.lane, letter.job_type, letter.worker) == ("hot", "ghost", "llm")
        assert await system.state(message.job_id) is State.PENDING


async def test_job_that_a_worker_gave_up_is_indexed_with_all_that_is_known(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system, indexing(system):
        worker = await system.start_worker()
        job_id = await system.publish("hot.scripted", {"steps": ["raise"]}, max_attempts=2)

        letter = await wait_for_entry(system, job_id)
        assert (letter.reason, letter.attempts, letter.redrives) == ("exhausted", 2, 0)
        assert (letter.error_type, letter.error_message) == ("RuntimeError", "it failed")
        assert letter.traceback is not None
        assert "RuntimeError: it failed" in letter.traceback
        assert letter.headers["x-dead-worker"] == worker.worker_id
        assert letter.headers["x-dead-queue"] == "hot.llm"
        assert JobMessage.decode(letter.body).metadata.attempts == 2


@pytest.mark.parametrize(
    ("payload", "options", "reason"),
    [
        ({"steps": ["permanent"]}, {}, "permanent"),
        ({"steps": ["discard"]}, {}, "permanent"),
        ({"steps": ["done"]}, {"expires_at": now() - timedelta(seconds=1)}, "expired"),
    ],
)
async def test_each_reason_of_a_worker_is_kept(
    broker310: TestBroker,
    sqlite_url: str,
    payload: dict[str, Any],
    options: dict[str, Any],
    reason: str,
) -> None:
    async with open_system(broker310, sqlite_url) as system, indexing(system):
        await system.start_worker()
        job_id = await system.publish("hot.scripted", payload, **options)
        assert (await wait_for_entry(system, job_id)).reason == reason
        assert (await system.wait_for_state(job_id, State.DEAD)).reason == reason


@pytest.mark.parametrize(
    "body", [b"\xff\x00not json\xfe", b'{"job_id": "no more"}', b""], ids=["bytes", "json", "empty"]
)
async def test_raw_bytes_of_a_malformed_message_are_kept(
    broker310: TestBroker, database_url: str, body: bytes
) -> None:
    async with open_system(broker310, database_url) as system, indexing(system):
        await system.start_worker()
        await system.publish_raw("hot.noop", body)
        [letter] = await eventually(system.letters)
        assert letter.id.startswith("raw-")
        assert letter.delivery.body == body

        indexed = await wait_for_entry(system, letter.id)
        assert (indexed.body, indexed.reason, indexed.job_id) == (body, "malformed", None)
        assert indexed.error_type == "MalformedMessage"


# --- following the log ------------------------------------------------------------------------


async def test_index_catches_up_with_letters_that_waited(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        ids = [f"job-{number:03}" for number in range(450)]
        await asyncio.gather(*(bury(system, job_id) for job_id in ids))
        assert await index_waiting(system.settings, system.ledger, system.registry) == 450
        assert await system.ready(DEAD_LOG_QUEUE) == 0
        assert await index_waiting(system.settings, system.ledger, system.registry) == 0

        page = await system.ledger.dead_letters.list_dead(limit=1_000)
        assert sorted(letter.id for letter in page.items) == ids
        assert len(await system.letters()) == 450


async def test_index_goes_on_after_a_cut_and_loses_no_letter(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with (
        open_system(broker310, sqlite_url) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
        indexing(system, amqp_url=SecretStr(proxy.url(broker310.amqp_url))),
    ):
        for number in range(5):
            cut = proxy.cut_after(1_000, "to_client")
            await asyncio.gather(*(bury(system, f"job-{number}-{index}") for index in range(20)))
            await asyncio.wait_for(cut.wait(), MAX_WAIT)

        async def are_all_indexed() -> bool:
            return len((await system.ledger.dead_letters.list_dead(limit=1_000)).items) == 100

        await eventually(are_all_indexed)
        await system.wait_until_ready(DEAD_LOG_QUEUE, 0)


async def test_index_goes_on_after_the_ledger_was_away(
    broker310: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_dead, has_failed = DeadLetterRepository.index_dead, asyncio.Event()

    async def fail_once(ledger: DeadLetterRepository, letters: Any, **options: Any) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise LedgerUnavailable("for this once")
        await index_dead(ledger, letters, **options)

    monkeypatch.setattr(DeadLetterRepository, "index_dead", fail_once)
    async with open_system(broker310, sqlite_url) as system, indexing(system):
        await bury(system, "job")
        assert (await wait_for_entry(system, "job")).copies == 1
        assert has_failed.is_set()


async def test_letter_with_nonsense_for_headers_does_not_stop_the_index(
    broker310: TestBroker, database_url: str
) -> None:
    nonsense: list[dict[str, Any]] = [
        {"x-dead-reason": 5, "x-dead-dead-at": 7, "x-dead-attempts": "many"},
        {"x-dead-reason": "exhausted", "x-dead-routing-key": ["hot"], "x-dead-message": None},
        {"x-dead-reason": "exhausted", "x-dead-dead-at": "0001-01-01T00:00:00"},
        {"x-dead-reason": "exhausted", "x-dead-dead-at": "9999-12-31T23:59:59+00:00"},
        {"x-death": "nonsense"},
        {"x-death": [{"reason": 1, "routing-keys": [bytearray(b"\xff")], "time": "late"}]},
        {"x-dead-reason": "exhausted", "other": {"deep": [bytearray(b"\xff"), {"deeper": now()}]}},
    ]
    async with open_system(broker310, database_url) as system, indexing(system):
        for number, headers in enumerate(nonsense):
            body = JobMessage(job_id=f"job-{number}", job_type="noop", payload={}).encode()
            await system.wire.send(
                DEAD_EXCHANGE, "hot.noop", Envelope(body, f"job-{number}", headers=headers)
            )
        huge = b'{"job_id": "huge", "job_type": "noop", "payload": {}, "metadata": %s}'
        body = huge % b'{"attempts": 99999999999999999999999}'
        await system.wire.send(DEAD_EXCHANGE, "hot.noop", Envelope(body, "huge"))
        await bury(system, "after")

        await wait_for_entry(system, "after")
        for number in range(len(nonsense)):
            assert (await wait_for_entry(system, f"job-{number}")).state == "waiting"
        await system.wait_until_ready(DEAD_LOG_QUEUE, 0)
        assert len(await system.letters()) == len(nonsense) + 2


async def test_letters_of_one_job_are_one_entry_with_two_copies(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system, indexing(system):
        await bury(system, "twice")
        await bury(system, "twice")

        async def has_two_copies() -> bool:
            return (await wait_for_entry(system, "twice")).copies == 2

        await eventually(has_two_copies)


async def bury(system: System, job_id: str) -> None:
    """Publish a job's dead letter, as a worker does."""
    message = JobMessage(job_id=job_id, job_type="noop", payload={})
    info = DeadLetterInfo(Reason.EXHAUSTED, "hot.noop", message="no use")
    await system.wire.send(DEAD_EXCHANGE, "hot.noop", envelope_of(message, info.headers()))


@pytest.mark.parametrize(
    ("key", "payload", "reason"),
    [("hot.nobody", {}, "unroutable"), ("hot.noop", {"n": "no number"}, "invalid_payload")],
)
async def test_a_job_past_the_ledger_that_dies_before_its_first_claim_has_a_record(
    broker310: TestBroker, database_url: str, key: str, payload: dict[str, str], reason: str
) -> None:
    async with open_system(broker310, database_url) as system, indexing(system):
        await system.start_worker()
        message = JobMessage(
            job_id="raw", job_type=key.partition(".")[2], payload=payload, priority=3
        )
        await system.publish_raw(key, message.encode())
        record = await system.wait_for_state("raw", State.DEAD)
        assert (record.reason, record.routing_key, record.payload) == (reason, key, payload)
        assert (record.lane, record.priority, record.finished_at) == (
            "hot",
            3,
            (await wait_for_entry(system, "raw")).dead_at,
        )
