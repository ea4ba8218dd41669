"""One job's life on a real broker: how it ends, when it is tried again, what it leaves behind."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from switchyard.broker.dead.certificate import MESSAGE_LIMIT, TRACEBACK_LIMIT, Reason, letter_id
from switchyard.broker.lanes import EVENTS_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import MAX_BODY_BYTES
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.records import AttemptOutcome, State
from switchyard.services.runtime.execution import Executor
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import MEMORY_LIMIT_MB, journal
from tests.support.system import System, lanes_with, open_system

LONG_AGO = datetime.now(UTC) - timedelta(hours=30)
LEVELS = (0.1, 0.2, 0.4)


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(broker310, sqlite_url, retry_delays=LEVELS) as opened:
        yield opened


async def run_script(system: System, *steps: str, **options: Any) -> str:
    """Publish a job with this script, see it to its end, and return its id."""
    job_id = await system.publish("hot.scripted", {"steps": list(steps)}, **options)
    await system.wait_for_state(job_id, State.SUCCEEDED, State.DEAD)
    return job_id


# --- the ends of an attempt ---------------------------------------------------------------------


async def test_a_jobs_life_from_publish_to_result(broker: TestBroker, database_url: str) -> None:
    async with open_system(broker, database_url) as system:
        job_id = await system.publish("backfill.noop", {"n": 7}, source="test")
        assert await system.state(job_id) is State.QUEUED
        await system.start_worker("llm")
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert record.result == {"n": 7}
        assert (record.attempts, record.crashes, record.timeline) == (0, 0, ())
        assert (record.lane, record.worker, record.source) == ("backfill", "llm", "test")
        times = [record.created_at, record.queued_at, record.started_at, record.finished_at]
        assert None not in times
        assert times == sorted(times, key=float)  # type: ignore[arg-type]
        await system.stop_workers()
        assert await system.ready("backfill.llm") == 0
        assert journal.runs(job_id) == 1


@pytest.mark.parametrize(
    ("steps", "runs", "attempts", "timeline"),
    [
        (["done"], 1, 0, []),
        (["raise", "raise", "done"], 3, 2, ["retry", "retry"]),
        (["retry", "retryable:0.05", "done"], 3, 2, ["retry", "retry"]),
        (["snooze:0"] * 4 + ["done"], 5, 0, ["snooze"] * 4),
        (["cancelled", "exit", "done"], 3, 2, ["retry", "retry"]),
    ],
)
async def test_a_job_that_succeeds_in_the_end(
    system: System, steps: list[str], runs: int, attempts: int, timeline: list[str]
) -> None:
    worker = await system.start_worker("llm")
    record = await system.record(await run_script(system, *steps))
    assert (record.state, record.result) == (State.SUCCEEDED, {"step": "done"})
    assert (journal.runs(record.id), record.attempts) == (runs, attempts)
    assert [line.outcome for line in record.timeline] == timeline
    assert worker.worker.counters.succeeded == 1
    assert worker.worker.counters.retried + worker.worker.counters.snoozed == runs - 1
    assert await system.letters() == []


@pytest.mark.parametrize(
    ("step", "reason", "error_type", "runs"),
    [
        ("raise", "exhausted", "RuntimeError", 3),
        ("retry", "exhausted", "Retry", 3),
        ("permanent", "permanent", "PermanentError", 1),
        ("discard", "permanent", "Discard", 1),
        ("nonsense", "permanent", "InvalidOutcome", 1),
        ("unjsonable", "permanent", "InvalidOutcome", 1),
    ],
)
async def test_a_job_that_is_given_up(
    system: System, step: str, reason: str, error_type: str, runs: int
) -> None:
    worker = await system.start_worker("llm")
    record = await system.record(await run_script(system, step))
    assert (record.state, record.reason, record.error_type) == (State.DEAD, reason, error_type)
    assert (journal.runs(record.id), record.attempts) == (runs, runs)
    assert record.timeline[-1].outcome == AttemptOutcome.DEAD
    letter = await system.wait_for_letter(record.id)
    assert (letter.certificate.reason, letter.certificate.attempts) == (reason, runs)
    assert worker.worker.counters.dead == 1
    assert await system.state(await run_script(system, "done")) is State.SUCCEEDED


async def test_the_third_failure_is_dead_with_all_that_is_known_of_it(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url, retry_delays=LEVELS) as system:
        worker = await system.start_worker("llm")
        payload = {"steps": ["raise"]}
        job_id = await system.publish("backfill.scripted", payload, priority=3)
        await system.wait_for_state(job_id, State.DEAD)
        letter = await system.wait_for_letter(job_id)
        certificate = letter.certificate
        assert certificate.reason is Reason.EXHAUSTED
        assert (certificate.error_type, certificate.message) == ("RuntimeError", "it failed")
        assert "in end_as" in certificate.traceback
        assert (certificate.attempts, certificate.worker) == (3, worker.worker_id)
        assert (certificate.routing_key, certificate.queue) == (
            "backfill.scripted",
            "backfill.llm",
        )
        age = datetime.now(UTC) - datetime.fromisoformat(certificate.dead_at)
        assert timedelta(0) <= age < timedelta(seconds=30)
        assert letter.message is not None
        assert (letter.message.payload, letter.message.priority) == (payload, 3)
        assert letter.message.metadata.attempts == 3
        assert await system.ready("jobs.dead.log") == 1
        assert [start.attempt for start in journal.starts] == [1, 2, 3]


async def test_a_huge_error_does_not_stop_its_job_from_dying(system: System) -> None:
    await system.start_worker("llm")
    letter = await system.wait_for_letter(await run_script(system, "huge error", max_attempts=1))
    assert len(letter.certificate.message) == MESSAGE_LIMIT
    assert len(letter.certificate.traceback) == TRACEBACK_LIMIT


# --- retries ------------------------------------------------------------------------------------


async def test_each_retry_waits_twice_as_long_as_the_one_before(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, retry_delays=(0.2, 0.4, 0.8)) as system:
        await system.start_worker("llm")
        job_id = await run_script(system, "raise", "raise", "raise", "done", max_attempts=9)
        starts = journal.starts_of(job_id)
        entered = [start.message.metadata.queued_at for start in starts]
        for n, level in enumerate((0.2, 0.4, 0.8)):
            assert level <= starts[n + 1].at - starts[n].at < level + 2
            # The message says itself when it was to be back; its age counts from then.
            before, after = entered[n], entered[n + 1]
            assert before is not None
            assert after is not None
            assert timedelta(seconds=level) <= after - before < timedelta(seconds=level + 2)
        assert {start.message.metadata.created_at for start in starts} == {
            starts[0].message.metadata.created_at
        }


@pytest.mark.parametrize("step", ["retryable:0.9", "retry:0.9"])
async def test_a_wish_to_wait_longer_than_the_longest_level_is_honoured(
    system: System, step: str
) -> None:
    await system.start_worker("llm")
    record = await system.record(await run_script(system, step, "done"))
    first, second = journal.starts_of(record.id)
    assert 0.9 <= second.at - first.at < 3
    assert record.attempts == 1
    assert [line.outcome for line in record.timeline] == [AttemptOutcome.RETRY]


# --- age ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        {"queued_at": LONG_AGO},
        {"expires_at": LONG_AGO},
        {"expires_at": datetime.now(UTC)},
    ],
)
async def test_a_job_that_is_too_old_is_dead_and_was_never_run(
    system: System, metadata: dict[str, Any]
) -> None:
    message = await system.publish_foreign("backfill.noop", **metadata)
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.DEAD)
    assert (record.reason, record.attempts) == ("expired", 0)
    letter = await system.wait_for_letter(message.job_id)
    assert letter.certificate.reason is Reason.EXPIRED
    assert letter.certificate.routing_key == "backfill.noop"
    assert journal.starts == []


async def test_the_age_counts_from_when_this_copy_entered_its_lane(system: System) -> None:
    message = await system.publish_foreign(
        "hot.noop", created_at=LONG_AGO, queued_at=datetime.now(UTC)
    )
    await system.start_worker("llm")
    await system.wait_for_state(message.job_id, State.SUCCEEDED)


async def test_the_clock_of_a_foreign_publishers_host_ends_no_job(system: System) -> None:
    message = await system.publish_foreign("hot.noop", created_at=LONG_AGO)
    await system.start_worker("llm")
    await system.wait_for_state(message.job_id, State.SUCCEEDED)


async def test_a_lane_of_another_length_of_life_is_respected(
    broker310: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(ttl_seconds={"backfill": 200_000})
    async with open_system(broker310, sqlite_url, lanes=lanes) as system:
        old = await system.publish_foreign("backfill.noop", queued_at=LONG_AGO)
        hot = await system.publish_foreign("hot.noop", queued_at=LONG_AGO)
        await system.start_worker("llm")
        await system.wait_for_state(old.job_id, State.SUCCEEDED)
        await system.wait_for_state(hot.job_id, State.DEAD)


# --- malformed ----------------------------------------------------------------------------------


def body(**changes: Any) -> bytes:
    return json.dumps({"job_id": "m", "job_type": "noop", "payload": {}, **changes}).encode()


MALFORMED = {
    "not json": b"{not json",
    "not utf-8": b"\xff\xfe",
    "empty": b"",
    "not an object": b"[1, 2]",
    "without anything": b"{}",
    "a bad id": body(job_id="no spaces, please"),
    "a bad priority": body(priority=99),
    "no time": body(metadata={"created_at": "yesterday"}),
    "an invalid payload": body(payload={"n": "three"}),
    "no payload": body(payload=None),
    "over-large": body(payload={"text": "x" * MAX_BODY_BYTES}),
}


async def test_what_is_no_valid_job_is_dead_with_its_bytes_as_they_came(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        worker = await system.start_worker("llm")
        for name, raw in MALFORMED.items():
            await system.publish_raw("hot.noop", raw, message_id=name)
        await eventually(lambda: worker.worker.counters.dead == len(MALFORMED))
        letters = await system.letters()
        assert sorted(letter.delivery.body for letter in letters) == sorted(MALFORMED.values())
        for letter in letters:
            assert letter.certificate.reason is Reason.MALFORMED
            assert letter.certificate.routing_key == "hot.noop"
            assert letter.certificate.message
            assert letter.delivery.body == MALFORMED[letter.delivery.message_id]
        assert journal.starts == []
        job_id = await system.publish("hot.noop")
        await system.wait_for_state(job_id, State.SUCCEEDED)


async def test_a_malformed_message_without_an_id_is_known_by_its_bytes(system: System) -> None:
    await system.start_worker("llm")
    await system.wire.send(JOBS_EXCHANGE, "hot.noop", Envelope(b"nameless", message_id=""))
    letter = await system.wait_for_letter(letter_id(None, b"nameless"))
    assert letter.delivery.message_id == letter.id


async def test_a_number_that_the_ledger_can_not_hold_is_malformed(
    broker310: TestBroker, postgres_url: str
) -> None:
    async with open_system(broker310, postgres_url) as system:
        await system.start_worker("llm")
        raw = body(metadata={"attempts": 10**30})
        await system.publish_raw("hot.noop", raw)
        (letter,) = await eventually(system.letters)
        assert (letter.certificate.reason, letter.delivery.body) == (Reason.MALFORMED, raw)
        job_id = await system.publish("hot.noop")
        await system.wait_for_state(job_id, State.SUCCEEDED)


# --- copies -------------------------------------------------------------------------------------


async def test_a_job_of_a_foreign_publisher_gets_a_record(system: System) -> None:
    message = await system.publish_foreign("backfill.noop", {"n": 3}, source="elsewhere")
    assert await system.state(message.job_id) is None
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert (record.payload, record.result) == ({"n": 3}, {"n": 3})
    assert (record.lane, record.routing_key) == ("backfill", "backfill.noop")
    assert record.source == "elsewhere"


async def test_copies_of_one_job_run_once(system: System) -> None:
    first = await system.start_worker("llm")
    second = await system.start_worker("llm")
    for _ in range(6):
        await system.publish_foreign("hot.gated", job_id="one")
    await journal.started("one")
    for _ in range(6):
        await system.publish_foreign("hot.gated", job_id="one")
    journal.release("one")
    await system.wait_for_state("one", State.SUCCEEDED)
    counters = [running.worker.counters for running in (first, second)]
    await eventually(lambda: sum(each.skipped for each in counters) == 11)
    assert journal.runs("one") == 1
    await system.stop_workers()
    assert await system.ready("hot.llm") == 0


async def test_a_copy_of_a_running_job_does_not_come_round_and_round(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Returned to its queue it would be back at once, for as long as the job runs."""
    worker = await system.start_worker("llm")
    claims = 0
    claim = system.ledger.claim

    async def counted(request: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim(request)

    monkeypatch.setattr(system.ledger, "claim", counted)
    for _ in range(2):
        await system.publish_foreign("hot.gated", job_id="one")
    await eventually(lambda: claims >= 2 and worker.worker.running == 1)
    began, seen = time.monotonic(), claims
    others = [await system.publish("hot.noop") for _ in range(20)]
    await system.wait_until_all(others, State.SUCCEEDED)
    rounds = (time.monotonic() - began) / LEVELS[0]
    assert claims - seen - len(others) <= rounds + 2
    journal.release("one")
    await system.wait_for_state("one", State.SUCCEEDED)


# --- events -------------------------------------------------------------------------------------


async def test_what_happens_to_jobs_is_told_on_the_events_exchange(system: System) -> None:
    await system.start_worker("llm")
    heard: list[tuple[str, str]] = []
    async with system.channel() as channel:
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(EVENTS_EXCHANGE, "#")

        async def note(message: Any) -> None:
            event = json.loads(message.body)
            assert message.routing_key == f"{event['event']}.hot.scripted"
            heard.append((event["job_id"], event["event"]))

        await queue.consume(note, no_ack=True)
        fine = await run_script(system, "raise", "done")
        bad = await run_script(system, "permanent")
        await eventually(lambda: len(heard) >= 6)
    assert [event for job_id, event in heard if job_id == fine] == [
        "started",
        "retrying",
        "started",
        "succeeded",
    ]
    assert [event for job_id, event in heard if job_id == bad] == ["started", "dead"]


# --- limits and processes -----------------------------------------------------------------------


async def test_a_handler_that_takes_too_long_is_stopped(system: System) -> None:
    worker = await system.start_worker("llm", slots=1)
    job_id = await system.publish("hot.slow")
    record = await system.wait_for_state(job_id, State.DEAD)
    assert (record.reason, record.error_type) == ("exhausted", "TimeLimitExceeded")
    assert worker.worker.running == 0
    assert await system.state(await run_script(system, "done")) is State.SUCCEEDED


async def crunch(system: System, do: str, *, key: str = "hot.crunched", **options: Any) -> str:
    job_id = await system.publish(key, {"do": do, "n": 21}, **options)
    await system.wait_for_state(job_id, State.SUCCEEDED, State.DEAD)
    return job_id


async def test_a_cpu_bound_handler_runs_in_a_process_of_its_own(system: System) -> None:
    await system.start_worker("llm", slots=1)
    assert (await system.record(await crunch(system, "double"))).result == {"n": 42}
    pids = [(await system.record(await crunch(system, "pid"))).result for _ in range(2)]
    assert pids[0] == pids[1] != {"pid": os.getpid()}  # kept for the next job
    refused = await system.record(await crunch(system, "permanent"))
    assert (refused.reason, refused.error_type) == ("permanent", "PermanentError")
    assert "in end_as" in (await system.wait_for_letter(refused.id)).certificate.traceback
    retried = await system.record(await crunch(system, "raise", max_attempts=2))
    assert (retried.reason, retried.attempts) == ("exhausted", 2)
    for nonsense in ("nonsense", "unpicklable"):
        assert await system.state(await crunch(system, nonsense, max_attempts=1)) is State.DEAD
    assert (await system.record(await crunch(system, "exit", max_attempts=1))).error_type == (
        "SystemExit"
    )


async def test_a_process_is_killed_at_its_time_limit(system: System) -> None:
    worker = await system.start_worker("llm", slots=1)
    record = await system.record(await crunch(system, "spin", max_attempts=1))
    assert (record.reason, record.error_type) == ("exhausted", "TimeLimitExceeded")
    assert worker.worker.running == 0
    assert (await system.record(await crunch(system, "double"))).result == {"n": 42}


async def test_what_takes_more_processor_time_than_it_may_is_not_tried_again(
    system: System,
) -> None:
    await system.start_worker("llm", slots=1)
    for _ in range(2):  # each job has its own time, in whatever process it runs
        record = await system.record(await crunch(system, "spin", key="hot.frugal"))
        assert (record.reason, record.error_type) == ("permanent", "ProcessorTimeExceeded")
        assert "frugal took more than its 1 s of processor time" in (record.error_message or "")
        assert record.attempts == 1
        assert (await system.record(await crunch(system, "double"))).result == {"n": 42}


async def test_a_process_has_the_memory_limit_of_the_job_that_it_runs(system: System) -> None:
    await system.start_worker("llm", slots=1)
    record = await system.record(await crunch(system, "allocate", max_attempts=1))
    assert (record.reason, record.error_type) == ("exhausted", "MemoryError")
    limited = await system.record(await crunch(system, "limit"))
    assert limited.result == {"limit": MEMORY_LIMIT_MB * 1024 * 1024}
    other = await system.record(await crunch(system, "limit", key="hot.unlimited"))
    assert other.result is not None
    assert other.result["limit"] != MEMORY_LIMIT_MB * 1024 * 1024


async def test_a_job_that_kills_its_process_twice_is_dead_and_the_worker_lives_on(
    system: System,
) -> None:
    worker = await system.start_worker("llm", slots=2)
    other = await system.publish("hot.gated")
    await journal.started(other)
    record = await system.record(await crunch(system, "die"))
    assert (record.reason, record.error_type) == ("crashed", "ProcessCrashed")
    assert record.attempts == 2
    letter = await system.wait_for_letter(record.id)
    assert letter.certificate.reason is Reason.CRASHED
    assert "-9" in letter.certificate.message
    assert (await system.record(await crunch(system, "double"))).result == {"n": 42}
    journal.release(other)
    await system.wait_for_state(other, State.SUCCEEDED)
    assert worker.worker.counters.succeeded == 2


async def test_a_process_that_is_killed_while_it_is_idle_costs_no_later_job(
    system: System,
) -> None:
    await system.start_worker("llm", slots=1)
    result = (await system.record(await crunch(system, "pid"))).result
    assert result is not None
    os.kill(result["pid"], signal.SIGKILL)
    after = [await crunch(system, "double") for _ in range(2)]
    assert [(await system.record(job_id)).state for job_id in after] == [State.SUCCEEDED] * 2


async def test_an_executor_that_was_never_used_has_no_processes_to_end() -> None:
    executor = Executor(processes=4)
    await asyncio.wait_for(executor.close(), 1)
