"""One job's life on a real broker: how it ends, when it is tried again, what it leaves behind."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from switchyard.broker.dead.dead_letter_headers import MESSAGE_LIMIT, TRACEBACK_LIMIT, Reason
from switchyard.broker.lanes import EVENTS_EXCHANGE
from switchyard.services.engine.records.states import AttemptOutcome, State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, lanes_with, open_system

LONG_AGO = datetime.now(UTC) - timedelta(hours=30)
RETRY_LEVELS = (0.1, 0.2, 0.4)


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(broker310, sqlite_url, retry_delays=RETRY_LEVELS) as opened:
        yield opened


async def run_script(system: System, *steps: str, **options: Any) -> str:
    """Publish a job with this script, see it to its end, and return its id."""
    job_id = await system.publish("hot.scripted", {"steps": list(steps)}, **options)
    await system.wait_for_state(job_id, State.SUCCEEDED, State.DEAD)
    return job_id


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
    ("steps", "run_count", "attempts", "timeline"),
    [
        (["done"], 1, 0, []),
        (["raise", "raise", "done"], 3, 2, ["retry", "retry"]),
        (["retry", "retryable:0.05", "done"], 3, 2, ["retry", "retry"]),
        (["snooze:0"] * 4 + ["done"], 5, 0, ["snooze"] * 4),
        (["cancelled", "exit", "done"], 3, 2, ["retry", "retry"]),
    ],
)
async def test_a_job_that_succeeds_in_the_end(
    system: System, steps: list[str], run_count: int, attempts: int, timeline: list[str]
) -> None:
    worker = await system.start_worker("llm")
    record = await system.record(await run_script(system, *steps))
    assert (record.state, record.result) == (State.SUCCEEDED, {"step": "done"})
    assert (journal.runs(record.id), record.attempts) == (run_count, attempts)
    assert [attempt.outcome for attempt in record.timeline] == timeline
    await eventually(lambda: worker.worker.counters.succeeded == 1, what="the worker's counters")
    assert worker.worker.counters.retried + worker.worker.counters.snoozed == run_count - 1
    assert await system.letters() == []


@pytest.mark.parametrize(
    ("step", "reason", "error_type", "run_count"),
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
    system: System, step: str, reason: str, error_type: str, run_count: int
) -> None:
    worker = await system.start_worker("llm")
    record = await system.record(await run_script(system, step))
    assert (record.state, record.reason, record.error_type) == (State.DEAD, reason, error_type)
    assert (journal.runs(record.id), record.attempts) == (run_count, run_count)
    assert record.timeline[-1].outcome == AttemptOutcome.DEAD
    letter = await system.wait_for_letter(record.id)
    assert (letter.info.reason, letter.info.attempts) == (reason, run_count)
    await eventually(lambda: worker.worker.counters.dead == 1, what="the worker's counters")
    assert await system.state(await run_script(system, "done")) is State.SUCCEEDED


async def test_the_third_failure_is_dead_with_all_that_is_known_of_it(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url, retry_delays=RETRY_LEVELS) as system:
        worker = await system.start_worker("llm")
        payload = {"steps": ["raise"]}
        job_id = await system.publish("backfill.scripted", payload, priority=3)
        await system.wait_for_state(job_id, State.DEAD)
        letter = await system.wait_for_letter(job_id)
        info = letter.info
        assert info.reason is Reason.EXHAUSTED
        assert (info.error_type, info.message) == ("RuntimeError", "it failed")
        assert "in end_as" in info.traceback
        assert (info.attempts, info.worker) == (3, worker.worker_id)
        assert (info.routing_key, info.queue) == (
            "backfill.scripted",
            "backfill.llm",
        )
        age = datetime.now(UTC) - datetime.fromisoformat(info.dead_at)
        assert timedelta(0) <= age < timedelta(seconds=30)
        assert letter.message is not None
        assert (letter.message.payload, letter.message.priority) == (payload, 3)
        assert letter.message.metadata.attempts == 3
        assert await system.ready("jobs.dead.log") == 1
        assert [start.attempt for start in journal.starts] == [1, 2, 3]


async def test_a_huge_error_does_not_stop_its_job_from_dying(system: System) -> None:
    await system.start_worker("llm")
    letter = await system.wait_for_letter(await run_script(system, "huge error", max_attempts=1))
    assert len(letter.info.message) == MESSAGE_LIMIT
    assert len(letter.info.traceback) == TRACEBACK_LIMIT


async def test_a_handler_that_takes_too_long_is_stopped(system: System) -> None:
    worker = await system.start_worker("llm", slots=1)
    job_id = await system.publish("hot.slow")
    record = await system.wait_for_state(job_id, State.DEAD)
    assert (record.reason, record.error_type) == ("exhausted", "TimeLimitExceeded")
    await eventually(lambda: worker.worker.running == 0)
    assert await system.state(await run_script(system, "done")) is State.SUCCEEDED


async def test_each_retry_waits_twice_as_long_as_the_one_before(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, retry_delays=(0.2, 0.4, 0.8)) as system:
        await system.start_worker("llm")
        job_id = await run_script(system, "raise", "raise", "raise", "done", max_attempts=9)
        starts = journal.starts_of(job_id)
        queued_times = [start.message.metadata.queued_at for start in starts]
        for n, level in enumerate((0.2, 0.4, 0.8)):
            assert level <= starts[n + 1].at - starts[n].at < level + 2
            # `queued_at` of a retry is when it was due; its age counts from then.
            before, after = queued_times[n], queued_times[n + 1]
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
    assert [attempt.outcome for attempt in record.timeline] == [AttemptOutcome.RETRY]


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
    assert letter.info.reason is Reason.EXPIRED
    assert letter.info.routing_key == "backfill.noop"
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


async def test_the_maximum_age_of_a_lane_is_respected(
    broker310: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(ttl_seconds={"backfill": 200_000})
    async with open_system(broker310, sqlite_url, lanes=lanes) as system:
        old = await system.publish_foreign("backfill.noop", queued_at=LONG_AGO)
        hot = await system.publish_foreign("hot.noop", queued_at=LONG_AGO)
        await system.start_worker("llm")
        await system.wait_for_state(old.job_id, State.SUCCEEDED)
        await system.wait_for_state(hot.job_id, State.DEAD)


async def test_the_events_of_a_job_are_published_on_the_events_exchange(system: System) -> None:
    await system.start_worker("llm")
    events: list[tuple[str, str]] = []
    async with system.channel() as channel:
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(EVENTS_EXCHANGE, "#")

        async def record_event(message: Any) -> None:
            event = json.loads(message.body)
            assert message.routing_key == f"{event['event']}.hot.scripted"
            events.append((event["job_id"], event["event"]))

        await queue.consume(record_event, no_ack=True)
        # Long enough for the event `retrying` to be out before the second start.
        fine = await run_script(system, "retry:0.4", "done")
        bad = await run_script(system, "permanent")
        await eventually(lambda: len(events) >= 6)
    assert [name for job_id, name in events if job_id == fine] == [
        "started",
        "retrying",
        "started",
        "succeeded",
    ]
    assert [name for job_id, name in events if job_id == bad] == ["started", "dead"]


@pytest.mark.parametrize(("step", "counts_as_age"), [("away:0.7", True), ("snooze:0.7", False)])
async def test_a_wait_between_two_levels_ends_soon_and_ages_the_job_only_if_it_was_no_snooze(
    broker310: TestBroker, database_url: str, step: str, counts_as_age: bool
) -> None:
    """On the next longer level it would take twenty seconds."""
    async with open_system(broker310, database_url, retry_delays=(0.4, 20.0)) as system:
        await system.start_worker("llm")
        job_id = await system.publish("hot.scripted", {"steps": [step, "done"]})
        await system.wait_for_state(job_id, State.SUCCEEDED)
        first, second = journal.starts_of(job_id)
        assert 0.7 <= second.at - first.at < 10
        queued_times = [start.message.metadata.queued_at for start in (first, second)]
        assert queued_times[0] is not None
        assert queued_times[1] is not None
        queued_at_shift = (queued_times[1] - queued_times[0]).total_seconds()
        assert queued_at_shift == 0 if counts_as_age else queued_at_shift >= 0.7
