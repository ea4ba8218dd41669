"""Named limits with a real worker: what has no room waits, and holds nobody up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from switchyard.services.common.settings import KeyedLimitOverride
from switchyard.services.engine.records.limits import LimitReport
from switchyard.services.engine.records.states import AttemptOutcome, State
from switchyard.services.engine.runtime import permit_batching
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import JOB_MODULES, System, lanes_with, open_system
from tests.support.worker_process import Processes

MODULES = (*JOB_MODULES, "tests.support.limited_jobs")
LEVELS = (0.2, 60.0)
"""The longest is too long for a test: who ends within it was called."""
PATIENT = 0.4


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(
        broker310, sqlite_url, modules=MODULES, retry_delays=LEVELS, takeover_after=PATIENT
    ) as opened:
        yield opened


async def report(system: System, name: str = "account", key: str = "acme") -> LimitReport:
    reports = {(each.name, each.key): each for each in await system.ledger.limits.limit_reports()}
    return reports[name, key]


async def all_given_back(system: System) -> None:
    """Until no job has room any more: it is given back after the end has been recorded."""

    async def given_back() -> bool:
        return (await report(system)).in_use == 0

    await eventually(given_back, what="the room's return")


async def waiting(system: System, number: int) -> None:
    """Until so many jobs wait for room, out of their queue."""

    async def reached() -> bool:
        return (await report(system)).waiting == number

    await eventually(reached, what=f"{number} jobs wait")


@asynccontextmanager
async def scheduling(system: System) -> AsyncIterator[None]:
    """With a scheduler, which calls where nobody else does."""
    intervals = SchedulerIntervals(turn=0.1, limit_wakes=0.1)
    scheduler = Scheduler(system.settings, system.registry, system.ledger, intervals=intervals)
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        scheduler.stop()
        await task


async def test_a_limited_account_holds_up_neither_others_nor_a_slot(system: System) -> None:
    worker = await system.start_worker(slots=2)
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    held = [await system.publish("hot.called", {"account": "acme"}) for _ in range(10)]
    other = await system.publish("hot.called", {"account": "other"})
    await journal.started(other)  # it came last
    journal.release(other)
    await system.wait_for_state(other, State.SUCCEEDED)
    noop = await system.publish("hot.noop")
    await system.wait_for_state(noop, State.SUCCEEDED)
    await waiting(system, 10)
    await eventually(lambda: worker.worker.running == 1, what="one slot in use")
    assert [journal.runs(each) for each in held] == [0] * 10


async def test_whoever_ends_calls_the_next_and_no_attempt_is_used_up(system: System) -> None:
    await system.start_worker(slots=4)
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    held = []
    for number in range(4):
        held.append(await system.publish("hot.called", {"account": "acme"}))
        await waiting(system, number + 1)
    journal.release_all()
    for each in (first, *held):
        record = await system.wait_for_state(each, State.SUCCEEDED)
        assert (record.attempts, record.timeline) == (0, ())
        assert journal.runs(each) == 1
    assert [each.job_id for each in journal.starts] == [first, *held]  # in their order
    await all_given_back(system)


async def test_jobs_of_a_full_limit_ask_together_and_one_that_is_called_starts_at_once(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permit_batching, "MAX_BATCH_WAIT", 60.0)
    monkeypatch.setattr(permit_batching, "REFUSAL_MEMORY_SECONDS", 60.0)  # however slow the machine
    worker = await system.start_worker(slots=16)  # of which four may gather
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    second = await system.publish("hot.called", {"account": "acme"})
    await waiting(system, 1)  # which has found the limit full
    others = [await system.publish("hot.called", {"account": "acme"}) for _ in range(3)]
    await eventually(lambda: worker.worker.running == 4, what="three that gather")
    assert (await report(system)).waiting == 1
    others.append(await system.publish("hot.called", {"account": "acme"}))
    await waiting(system, 5)
    journal.release(first)
    await journal.started(second)
    journal.release_all()
    for each in others:
        await system.wait_for_state(each, State.SUCCEEDED)


async def test_room_of_a_worker_that_is_killed_comes_back(system: System, tmp_path: Path) -> None:
    async with Processes(system.settings, tmp_path) as processes:
        killed = await processes.start("worker")
        first = await system.publish("hot.called", {"account": "acme"})
        await system.wait_for_state(first, State.RUNNING)
        await system.start_worker(slots=4)
        second = await system.publish("hot.called", {"account": "acme"})
        await waiting(system, 1)
        killed.kill()
        journal.release_all()
        # The job of the dead goes on with the room that it had; then comes who waited.
        record = await system.wait_for_state(first, State.SUCCEEDED)
        assert [each.outcome for each in record.timeline] == [AttemptOutcome.CRASHED]
        await system.wait_for_state(second, State.SUCCEEDED)
        await all_given_back(system)


async def test_a_worker_that_stops_gives_room_back_at_once(system: System) -> None:
    stopping = await system.start_worker(slots=4, shutdown_grace=0.1)
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    await stopping.stop()
    assert (await report(system)).in_use == 0
    await system.start_worker(slots=4)
    await journal.started(first, times=2)
    journal.release_all()
    await system.wait_for_state(first, State.SUCCEEDED)


async def test_663_tokens_cannot_pass_a_limit_of_100(system: System) -> None:
    await system.start_worker()
    job_id = await system.publish("hot.counted", {"tokens": 663})
    record = await system.wait_for_state(job_id, State.DEAD)
    assert record.reason == "permanent"
    assert "663 tokens cannot pass the limit tokens of 100 a minute" in str(record.error_message)
    assert journal.runs(job_id) == 0


@pytest.mark.parametrize("job_type", ["counted", "counted_apart"])
async def test_what_was_used_takes_the_place_of_the_estimate(system: System, job_type: str) -> None:
    await system.start_worker()
    for _ in range(2):  # 60 + 60 would be too much
        job_id = await system.publish(f"hot.{job_type}", {"tokens": 60})
        await system.wait_for_state(job_id, State.SUCCEEDED, timeout=60)  # a process starts

    async def is_counted() -> bool:  # a moment after the end of the job is recorded
        return (await report(system, "tokens", "")).in_use == 0

    await eventually(is_counted, what="what the second used is known")
    assert (await report(system, "tokens", "")).tokens_last_minute == 60
    one_more = await system.publish("hot.counted", {"tokens": 60})

    async def is_waiting() -> bool:
        return (await report(system, "tokens", "")).waiting == 1

    await eventually(is_waiting, what="the third waits")
    assert journal.runs(one_more) == 0


async def test_settings_change_a_limit(system: System) -> None:
    numbers = KeyedLimitOverride.model_validate(
        {"concurrency": 1, "keys": {"acme": {"concurrency": 2}}}
    )
    await system.start_worker(slots=4, limits={"account": numbers})
    jobs = [await system.publish("hot.called", {"account": "acme"}) for _ in range(2)]
    await journal.started(*jobs)
    journal.release_all()


async def test_who_waits_for_room_grows_too_old_like_any_other(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(
        broker310,
        sqlite_url,
        modules=MODULES,
        retry_delays=LEVELS,
        lanes=lanes_with(ttl_seconds={"hot": 2}),
    ) as system:
        await system.start_worker()
        first = await system.publish("hot.called", {"account": "acme"})
        await journal.started(first)
        second = await system.publish("hot.called", {"account": "acme"})
        await waiting(system, 1)
        async with scheduling(system):
            record = await system.wait_for_state(second, State.DEAD)
        assert record.reason == "expired"
        journal.release_all()
        await system.wait_for_state(first, State.SUCCEEDED)
        await waiting(system, 0)


async def test_who_waits_for_room_can_be_cancelled(system: System) -> None:
    await system.start_worker()
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    second = await system.publish("hot.called", {"account": "acme"})
    await waiting(system, 1)
    await system.ledger.jobs.cancel(second, system.ledger.clock.time())
    journal.release_all()
    await system.wait_for_state(first, State.SUCCEEDED)
    await waiting(system, 0)
    assert journal.runs(second) == 0


async def test_two_workers_together_keep_to_a_limit(system: System) -> None:
    for _ in range(2):
        await system.start_worker(slots=4)
    jobs = [await system.publish("hot.called", {"account": "acme"}) for _ in range(12)]
    journal.release_all()
    records = [await system.wait_for_state(each, State.SUCCEEDED) for each in jobs]
    assert [each.result for each in records] == [{"at_once": 1}] * 12
    assert len(journal.starts) == 12


async def test_jobs_without_limits_cost_no_statement_of_the_ledger(system: System) -> None:
    await system.start_worker()
    job_id = await system.publish("hot.noop")
    await system.wait_for_state(job_id, State.SUCCEEDED)
    assert await system.ledger.limits.limit_reports() == []
