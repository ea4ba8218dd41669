"""Other programs publish messages under ids of future jobs. Those are published all the same."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.engine.publishing.preparing import THEN, JobRequest, job_id_of, prepare
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.joining import JOINING_MODULES
from tests.support.system import System, open_system

SPREAD = {"count": 1}


@pytest.fixture
async def system(broker: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(broker, sqlite_url) as opened:
        await opened.start_worker("llm", "embed")
        yield opened


@pytest.mark.parametrize("payload", [{"n": 0}, {"n": 7}])
async def test_a_message_under_the_id_that_a_next_stage_might_have_takes_nothing_from_it(
    system: System, payload: dict[str, int]
) -> None:
    """Whoever made the job, or listens to its events, knows its id and the next stage's name."""
    guessed = job_id_of(PUBLIC_IDS, "parent", "received", 0)
    foreign = await system.publish_foreign(
        "hot.received", payload, job_id=guessed, parent_id="parent", source="user"
    )
    await system.wait_for_state(guessed, State.SUCCEEDED)
    await system.publish("hot.spread", SPREAD, job_id="parent")
    stage = await system.stage_id("parent", "received", 0)
    await system.wait_for_state(stage, State.SUCCEEDED)
    assert stage != guessed
    assert (journal.runs(guessed), journal.runs(stage)) == (1, 1)
    assert (await system.record(guessed)).payload == foreign.payload
    assert (await system.record(stage)).parent_id == "parent"
    assert await system.letters() == []


async def test_a_message_under_the_id_of_a_stage_that_is_there_becomes_a_dead_letter(
    system: System,
) -> None:
    parent = await system.publish("hot.spread", SPREAD)
    stage = await system.stage_id(parent, "received", 0)
    record = await system.wait_for_state(stage, State.SUCCEEDED)
    await system.publish_foreign("hot.received", {"n": 7}, job_id=stage)
    (letter,) = await eventually(system.letters, what="a dead letter")
    assert (letter.info.reason, letter.info.error_type) == (
        Reason.MALFORMED,
        "ForeignCopy",
    )
    assert await system.record(stage) == record
    assert journal.runs(stage) == 1


async def test_a_job_that_waits_for_others_can_not_be_taken_in_advance(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_system(
        broker310, sqlite_url, modules=JOINING_MODULES, data_dir=tmp_path
    ) as system:
        await system.start_worker("llm")
        guessed = job_id_of(PUBLIC_IDS, "fan", "gather", THEN)
        await system.publish_foreign("hot.gather", {}, job_id=guessed)
        await system.wait_for_state(guessed, State.SUCCEEDED, State.DEAD)
        await system.publish("hot.fan", {"leaves": 3}, job_id="fan")
        waiting_id = await system.stage_id("fan", "gather", THEN)
        record = await system.wait_for_state(waiting_id, State.SUCCEEDED)
        assert (record.result or {})["states"] == {"succeeded": 3}


async def test_an_idempotency_key_can_not_be_taken_in_advance(system: System) -> None:
    request = JobRequest("hot.noop", {"n": 1}, idempotency_key="nightly")
    guessed = prepare(system.registry, request).message.job_id
    await system.publish_foreign("hot.noop", {"n": 1}, job_id=guessed)
    await system.wait_for_state(guessed, State.SUCCEEDED)
    published = await system.jobs.publish(request)
    assert not published.duplicate
    await system.wait_for_state(published.job_id, State.SUCCEEDED)
    repeated = await system.jobs.publish(request)
    assert (repeated.job_id, repeated.duplicate) == (published.job_id, True)
