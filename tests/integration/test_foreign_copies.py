"""A foreign message with a copied job id never changes a record, whichever way it comes in."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest

from switchyard.broker.message import JobMessage, Metadata
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import count_letters
from switchyard.services.engine.dead.scan import wait_at_most
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.plan import plan_redrive
from switchyard.services.engine.redrive.spec import RedriveSpec
from tests.support.brokers import TestBroker
from tests.support.system import System, open_system

SAME_KEY = {"x-dead-routing-key": "hot.noop"}
LANE_DEATH = {"queue": "backfill.llm", "routing-keys": ["hot.noop"]}


@pytest.fixture
async def system(
    broker310: TestBroker, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """A system on each kind of database."""
    data_dir = tmp_path_factory.mktemp("data")
    async with open_system(broker310, database_url, data_dir=data_dir) as opened:
        yield opened


async def read_foreign_ids(ledger: Ledger) -> list[str]:
    page = await ledger.dead_letters.list_dead(DeadLetterFilter(error_type="ForeignCopy"))
    assert all(letter.reason == "malformed" and letter.job_id is None for letter in page.items)
    return [letter.id for letter in page.items]


def copies_of(job_id: str) -> list[tuple[str, JobMessage]]:
    """Messages with the id of a job whose payload is {"n": 1}, and where to send them."""
    return [
        ("hot.noop", JobMessage(job_id=job_id, job_type="noop", payload={"n": 2})),
        (
            "hot.noop",
            JobMessage(
                job_id=job_id,
                job_type="noop",
                payload={"n": 3},
                metadata=Metadata(redrives=7, attempts=1),
            ),
        ),
        ("hot.scripted", JobMessage(job_id=job_id, job_type="scripted", payload={"n": 1})),
        # Never seen by a worker: without a queue, and with a payload of no job.
        ("hot.nobody", JobMessage(job_id=job_id, job_type="nobody", payload={})),
        ("hot.noop", JobMessage(job_id=job_id, job_type="noop", payload={"n": "x"})),
    ]


@pytest.mark.parametrize("state", [State.SCHEDULED, State.SUCCEEDED, State.DEAD])
async def test_a_message_with_a_copied_id_is_a_letter_of_its_own_and_the_record_stays(
    system: System, state: State
) -> None:
    await system.start_worker("llm")
    if state is State.DEAD:
        script = {"steps": ["permanent"]}
        job_id = await system.publish("hot.scripted", script)
    else:
        delay = 3600 if state is State.SCHEDULED else 0
        job_id = await system.publish("hot.noop", {"n": 1}, delay=delay)
    before = await system.wait_for_state(job_id, state)
    copies = copies_of(job_id)
    for key, message in copies:
        await system.publish_raw(key, message.encode(), message_id=job_id)
    async with system.channel() as channel:
        dead = await channel.get_exchange("jobs.dlx", ensure=False)
        body = JobMessage(job_id=job_id, job_type="noop", payload={"n": 9}).encode()
        letter = aio_pika.Message(body, delivery_mode=2, headers={"x-dead-reason": "exhausted"})
        await dead.publish(letter, "hot.noop")
    await system.wait_until_ready("jobs.dead", len(copies) + 1 + (state is State.DEAD))
    await index_waiting(system.settings, system.ledger, system.registry)

    after = await system.record(job_id)
    for name in ("state", "job_type", "payload", "lane", "redrives", "attempts", "result"):
        assert getattr(after, name) == getattr(before, name), name
    assert len(await read_foreign_ids(system.ledger)) == len(copies) + 1
    indexed = await system.ledger.dead_letters.get_dead(job_id)
    if state is State.DEAD:
        assert indexed is not None
        assert (indexed.job_type, indexed.error_type) == ("scripted", before.error_type)
        assert json.loads(indexed.body)["payload"] == script
    else:
        assert indexed is None


async def test_no_redrive_sends_a_foreign_copy_and_no_purge_by_the_jobs_id_takes_it(
    system: System,
) -> None:
    job_id = await system.publish("hot.noop", {"n": 1}, delay=3600)
    await system.publish_raw("hot.nobody", copies_of(job_id)[0][1].encode())
    await system.wait_until_ready("jobs.dead", 1)
    spec = RedriveSpec(LetterFilter())
    tally = await plan_redrive(system.settings, system.registry, system.ledger, spec)
    assert (tally.matched, tally.done, tally.invalid) == (1, 0, 1)
    assert "another job has the id" in tally.notes[0]
    letter_filter = LetterFilter(ids=frozenset({job_id}))
    progress = await count_letters(system.settings, system.ledger, letter_filter, wait_at_most(5))
    assert (progress.scanned, progress.purged) == (1, 0)


@pytest.mark.parametrize(
    ("key", "metadata", "properties"),
    [
        ("hot.nobody", {}, {}),
        ("hot.nobody", {}, {"headers": {"x-dead-reason": "exhausted", **SAME_KEY}}),
        ("hot.nobody", {}, {"headers": {"x-dead-reason": "unroutable", **SAME_KEY}}),
        ("hot.nobody", {"redrives": 7}, {"headers": {"x-dead-reason": "displaced"}}),
        ("hot.nobody", {}, {"headers": {"x-death": [{"reason": "maxlen", **LANE_DEATH}]}}),
        (
            "hot.nobody",
            {"attempts": 9},
            {"headers": {"x-death": [{"reason": "expired", **LANE_DEATH}]}},
        ),
        ("hot.noop", {}, {"expiration": 0.001, "priority": 10}),
        (
            "hot.noop",
            {"redrives": 7},
            {"expiration": 0.001, "priority": 10, "headers": {"x-dead-reason": "exhausted"}},
        ),
    ],
)
async def test_no_letter_that_a_publisher_can_cause_ends_a_waiting_job(
    system: System, key: str, metadata: dict[str, int], properties: dict[str, Any]
) -> None:
    job_id = await system.publish("hot.noop", {"n": 1})
    before = await system.record(job_id)
    copy = JobMessage(
        job_id=job_id, job_type="noop", payload={"n": 1}, metadata=Metadata(**metadata)
    )
    async with system.channel() as channel:
        # The job itself is delivered, so that its copy is at the head of the queue.
        await (await channel.get_queue("hot.llm", ensure=False)).get()
        await system.publish_raw(key, copy.encode(), message_id=job_id, **properties)
        await system.wait_until_ready("jobs.dead", 1)
    await index_waiting(system.settings, system.ledger, system.registry)

    assert await system.record(job_id) == before
    assert len(await read_foreign_ids(system.ledger)) == 1
    await system.start_worker("llm")
    assert (await system.wait_for_state(job_id, State.SUCCEEDED)).attempts == 0


async def test_only_a_redrive_runs_a_dead_job_again(system: System) -> None:
    await system.start_worker("llm")
    script = {"steps": ["permanent", "done"]}
    job_id = await system.publish("hot.scripted", script)
    before = await system.wait_for_state(job_id, State.DEAD)
    for redrives, attempts in ((0, 0), (0, 900), (1, 0), (2, 5)):
        metadata = Metadata(redrives=redrives, attempts=attempts, max_attempts=1000)
        copy = JobMessage(job_id=job_id, job_type="scripted", payload=script, metadata=metadata)
        await system.publish_raw("hot.scripted", copy.encode(), message_id=job_id)
    await system.wait_until_ready("jobs.dead", 3)  # its own, and those that claim to be redriven
    await index_waiting(system.settings, system.ledger, system.registry)
    assert await system.record(job_id) == before
    assert len(await read_foreign_ids(system.ledger)) == 2


async def test_a_plain_copy_runs_once_and_a_retry_goes_on(system: System) -> None:
    await system.start_worker("llm")
    message = JobMessage(job_id="plain", job_type="scripted", payload={"steps": ["raise", "done"]})
    for _ in range(2):
        await system.publish_raw("hot.scripted", message.encode())
    record = await system.wait_for_state("plain", State.SUCCEEDED)
    assert record.payload == message.payload
    await index_waiting(system.settings, system.ledger, system.registry)
    assert await read_foreign_ids(system.ledger) == []
