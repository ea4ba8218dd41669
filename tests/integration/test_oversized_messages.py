"""A message that the broker never takes ends its own job, and no other's, whoever publishes it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.errors import MessageTooLarge
from switchyard.broker.message import JobMessage
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.dead.files import import_letters
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import PurgeHandler, start_purge
from switchyard.services.engine.dead.stored import StoredLetter
from switchyard.services.engine.ledger import schedules as ledger_schedules
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.jobs import dead, outbox
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.results import DeadLetter
from switchyard.services.engine.records.schedules import FiringOutcome
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler, TurnCounts
from tests.support.api_server import serving, until_connected
from tests.support.backfills import open_backfills
from tests.support.brokers import SMALL_LIMIT, TestBroker
from tests.support.jobs import journal
from tests.support.redrives import bury, redrive
from tests.support.schedules import Time, add, entry, outcomes, runner
from tests.support.system import System, open_system

LARGE = {"text": "x" * SMALL_LIMIT}
"""A payload that is too large for the brokers of these tests."""


@pytest.fixture
async def system(small_broker: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(small_broker, sqlite_url) as opened_system:
        yield opened_system


@asynccontextmanager
async def open_scheduler(system: System) -> AsyncIterator[Scheduler]:
    """A scheduler that takes its turns when the test says so, and finds just recorded jobs due."""
    intervals = SchedulerIntervals(turn=0.05, pending=0.0)
    scheduler = Scheduler(system.settings, system.registry, system.ledger, intervals=intervals)
    try:
        yield scheduler
    finally:
        await scheduler.close()


async def record_job(system: System, payload: dict[str, Any], **options: Any) -> str:
    """Record a job without publishing it, and return its id."""
    new = prepare(system.registry, JobRequest("hot.noop", payload, **options))
    await system.ledger.jobs.record(new)
    return new.message.job_id


async def read_ledger_letter(system: System, job_id: str) -> DeadLetter:
    """Return the letter of a job, which the ledger alone has."""
    assert job_id not in {letter.id for letter in await system.letters()}
    letter = await system.ledger.dead_letters.get_dead(job_id)
    assert letter is not None
    return letter


async def test_the_outbox_publishes_the_others_and_ends_the_job_that_is_too_large(
    system: System,
) -> None:
    before = [await record_job(system, {"n": n}) for n in range(5)]
    large = await record_job(system, LARGE)
    behind = [await record_job(system, {"n": n}) for n in range(5)]
    async with open_scheduler(system) as scheduler:
        assert await scheduler.turn() == TurnCounts(outbox=10, refused=1)
        assert await scheduler.turn() == TurnCounts()
    states = await system.ledger.job_reads.states([*before, *behind])
    assert set(states.values()) == {State.QUEUED}
    record = await system.record(large)
    assert (record.state, record.reason, record.error_type) == (
        State.DEAD,
        "refused",
        "MessageTooLarge",
    )
    assert "storage" in (record.error_message or "")
    letter = await read_ledger_letter(system, large)
    assert (letter.state, letter.reason, letter.error_type) == (
        "waiting",
        "refused",
        "MessageTooLarge",
    )
    assert JobMessage.decode(letter.body).payload == LARGE


async def test_a_delayed_job_that_is_too_large_is_dead_when_it_is_due(system: System) -> None:
    late = await system.publish("hot.noop", LARGE, delay=0.01)  # the limit is not known yet
    async with open_scheduler(system) as scheduler:
        turn = TurnCounts()
        while not turn.refused:
            turn = await scheduler.turn()
    assert (await system.record(late)).reason == "refused"


async def test_a_publish_is_refused_at_once_and_nothing_is_kept_of_it(system: System) -> None:
    requests = [JobRequest("hot.noop", {"n": 1}), JobRequest("hot.noop", LARGE, job_id="large")]
    fine, large = await system.jobs.publish_many(requests)
    assert isinstance(large, MessageTooLarge)
    assert isinstance(fine, Published)
    assert (fine.state, await system.state("large")) == (State.QUEUED, None)
    # Its neighbour may be there twice, having been sent again alone; it runs once.
    assert await system.ready("hot.llm") in (1, 2)
    # By now the limit is known, and holds for what would be published only later.
    with pytest.raises(MessageTooLarge):
        await system.publish("hot.noop", LARGE, delay=3600, job_id="late")
    assert await system.state("late") is None


async def test_the_setting_refuses_what_is_to_be_published_later(
    small_broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(small_broker, sqlite_url, max_message_size=SMALL_LIMIT) as system:
        with pytest.raises(MessageTooLarge, match="JOBS_MAX_MESSAGE_SIZE"):
            await system.publish("hot.noop", LARGE, delay=3600, job_id="late")
        assert await system.state("late") is None


async def test_a_next_stage_that_is_too_large_ends_its_handler_for_good(system: System) -> None:
    await system.start_worker("llm")
    first = await system.publish("hot.spread", {"text_size": SMALL_LIMIT})
    record = await system.wait_for_state(first, State.DEAD)
    assert (record.reason, record.error_type) == ("permanent", "InvalidOutcome")
    assert "the broker takes at most 65,536" in (record.error_message or "")
    child = await system.record(await system.stage_id(first, "received", 0))
    assert (child.state, child.reason) == (State.DEAD, "refused")
    # The limit is known now: a job that can't be sent is not recorded.
    second = await system.publish("hot.spread", {"text_size": SMALL_LIMIT, "count": 3})
    assert (await system.wait_for_state(second, State.DEAD)).reason == "permanent"
    assert await system.state(await system.stage_id(second, "received", 0)) is None
    assert (journal.runs(first), journal.runs(second)) == (1, 1)
    await system.wait_for_letter(second)


async def test_a_job_that_grows_too_large_for_its_retry_is_dead_and_its_letter_as_it_came(
    system: System,
) -> None:
    """Another program writes messages shorter than this one, which keeps every field."""
    await system.start_worker("llm")
    body = {"job_id": "tight", "job_type": "scripted", "payload": {"steps": ["raise"], "pad": ""}}
    short = json.dumps(body, separators=(",", ":"))
    raw = short.replace('"pad":""', f'"pad":"{"x" * (SMALL_LIMIT - len(short))}"').encode()
    assert len(raw) == SMALL_LIMIT
    await system.publish_raw("hot.scripted", raw)
    record = await system.wait_for_state("tight", State.DEAD)
    assert (record.reason, record.error_type) == ("permanent", "RuntimeError")
    assert "it can't be tried again: the message has" in (record.error_message or "")
    assert journal.runs("tight") == 1
    assert (await system.wait_for_letter("tight")).body == raw


async def test_a_redrive_from_the_ledger_leaves_what_is_still_too_large(system: System) -> None:
    large = await record_job(system, LARGE)
    await bury(system, "small", "hot.noop")
    async with open_scheduler(system) as scheduler:
        await scheduler.turn()
    progress = await redrive(system, LetterFilter(), from_ledger=True)
    assert (progress.redriven, progress.invalid) == (0, 1)
    assert await system.state(large) is State.DEAD
    # Another payload fits.
    progress = await redrive(
        system, LetterFilter(ids=frozenset({large})), Change(payload={"n": 7}), from_ledger=True
    )
    assert (progress.redriven, progress.invalid) == (1, 0)
    assert (await system.record(large)).payload == {"n": 7}
    assert [letter.id for letter in await system.letters()] == ["small"]


async def test_a_redrive_sends_the_letters_beside_one_that_its_change_makes_too_large(
    system: System,
) -> None:
    for number in range(4):
        await bury(system, f"job-{number}", "hot.noop", {"n": number})
    growing_change = 'if .n == 1 then .text = "x" * 65536 else . end'
    progress = await redrive(system, LetterFilter(), Change(jq=growing_change))
    assert (progress.redriven, progress.invalid) == (3, 1)
    assert [letter.id for letter in await system.letters()] == ["job-1"]
    assert await system.state("job-1") is State.DEAD


async def test_an_import_puts_in_all_letters_but_the_one_that_is_too_large(
    system: System,
) -> None:
    info = DeadLetterInfo(Reason.EXHAUSTED, "hot.noop", error_type="E", message="m")
    letters = [
        StoredLetter(
            name,
            JobMessage(job_id=name, job_type="noop", payload=payload).encode(),
            info,
        )
        for name, payload in (("a", {}), ("large", LARGE), ("b", {}))
    ]
    progress = await import_letters(system.ledger, system.wire, letters)
    assert progress.imported == 2
    (refused,) = progress.refused
    assert refused.startswith("large: the message has")
    assert {letter.id for letter in await system.letters()} == {"a", "b"}


async def test_a_schedule_whose_job_is_too_large_is_given_up_at_once(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(ledger_schedules, "db_now", lambda connection: time.now)
    await add(system, entry(payload=LARGE))
    firing = runner(system)
    await firing.turn()
    time.now += 60
    await firing.turn()
    (outcome,) = {outcome for _, outcome, *_ in await outcomes(system)}
    assert outcome == FiringOutcome.REFUSED


async def test_a_backfill_skips_the_item_that_is_too_large(
    small_broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_backfills(small_broker, sqlite_url, tmp_path) as (system, user):
        await system.start_worker("llm")
        items = [{"n": 1}, LARGE, {"n": 3}]
        operation = await user.start("file", await user.store(items), job_type="noop")
        await user.run(operation)
        progress = await user.progress(operation)
        assert progress.jobs == {State.SUCCEEDED: 2}
        assert (progress.published, progress.skipped) == (2, 1)
        (note,) = progress.notes
        assert "the broker takes at most 65,536" in note


async def test_the_api_answers_413_and_serves_others_meanwhile(system: System) -> None:
    async with serving(system.settings) as api:
        await until_connected(api)
        body = {"routing_key": "hot.noop", "payload": LARGE}
        for _ in range(2):  # when the limit is not known, and when it is
            answer = await api.client.post("/jobs", json=body)
            assert answer.status_code == 413, answer.text
            problem = answer.json()
            assert problem["type"] == "/problems/too-large"
            assert "put the large input into storage" in problem["detail"]
        small = await api.client.post("/jobs", json={"routing_key": "hot.noop", "payload": {}})
        assert small.status_code == 202
        assert small.json()["state"] == "queued"
    assert (await system.ledger.job_reads.list_jobs()).items[0].state is State.QUEUED


def make_context(system: System) -> DoctorContext:
    return DoctorContext(system.settings, system.registry, broker={}, ledger=system.ledger)


async def test_doctor_tells_refused_jobs_from_lost_letters_and_a_purge_ends_that(
    system: System,
) -> None:
    await record_job(system, LARGE)
    async with open_scheduler(system) as scheduler:
        await scheduler.turn()
    refused, others = await dead(make_context(system))
    assert refused.finding is Finding.JOBS_REFUSED
    assert "the messages of 1 job" in refused.detail
    assert "max_message_size" in refused.remedy
    assert others.status == "ok"
    assert "kill" not in refused.remedy
    purge = await start_purge(system.ledger, LetterFilter(reason="refused"), created_by="test")
    runner_of_purges = BulkRunner(system.ledger, [PurgeHandler(system.settings, system.ledger)])
    await runner_of_purges.run_one(purge.id)
    assert [check.status for check in await dead(make_context(system))] == ["ok"]


async def test_doctor_names_jobs_that_the_broker_does_not_take_and_blames_no_worker(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [check.status for check in await outbox(make_context(system))] == ["ok"]
    await record_job(system, {"n": 1})
    monkeypatch.setattr("switchyard.services.engine.monitoring.checks.jobs.PENDING_GRACE", 0.0)
    (check,) = await outbox(make_context(system))
    assert check.finding is Finding.JOBS_PENDING
    assert "1 job of hot.noop" in check.detail
    assert "no worker is at fault" in check.remedy
    assert "kill" not in check.remedy


async def test_a_waiting_job_that_is_too_large_is_dead_when_its_turn_comes(system: System) -> None:
    await system.start_worker("llm")
    waited_for = prepare(system.registry, JobRequest("hot.noop", {"n": 1}))
    waiting = prepare(system.registry, JobRequest("hot.noop", LARGE))
    name = waiting.message.job_id
    await system.ledger.joins.record_joined(
        [replace(waited_for, join_id=name), replace(waiting, joins=Joining("wait"))]
    )
    await system.wire.publish(waited_for.message, waited_for.routing_key)
    assert (await system.wait_for_state(name, State.DEAD)).reason == "refused"
