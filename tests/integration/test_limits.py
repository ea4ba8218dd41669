"""Named limits with a real worker: a job without a permit waits, and holds nobody up."""

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
RETRY_LEVELS = (0.2, 60.0)
"""Seconds. The longest is too long for a test: a job that ends sooner was woken."""
TAKEOVER_AFTER = 0.4
"""Seconds without a heartbeat after which a job is taken over."""


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(
        broker310,
        sqlite_url,
        modules=MODULES,
        retry_delays=RETRY_LEVELS,
        takeover_after=TAKEOVER_AFTER,
    ) as opened:
        yield opened


async def read_report(system: System, name: str = "account", key: str = "acme") -> LimitReport:
    reports = {
        (report.name, report.key): report for report in await system.ledger.limits.limit_reports()
    }
    return reports[name, key]


async def wait_until_permits_are_back(system: System) -> None:
    """Wait until no job has a permit: it is given back after the end has been recorded."""

    async def are_given_back() -> bool:
        return (await read_report(system)).in_use == 0

    await eventually(are_given_back, what="the return of all permits")


async def wait_until_waiting(system: System, number: int) -> None:
    """Wait until so many jobs wait for a permit, out of their queue."""

    async def has_reached() -> bool:
        return (await read_report(system)).waiting == number

    await eventually(has_reached, what=f"{number} jobs wait")


@asynccontextmanager
async def running_scheduler(system: System) -> AsyncIterator[None]:
    """Run a scheduler, which wakes waiting jobs where nobody else does."""
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
    waiting_ids = [await system.publish("hot.called", {"account": "acme"}) for _ in range(10)]
    other_id = await system.publish("hot.called", {"account": "other"})
    await journal.started(other_id)  # it came last
    journal.release(other_id)
    await system.wait_for_state(other_id, State.SUCCEEDED)
    noop = await system.publish("hot.noop")
    await system.wait_for_state(noop, State.SUCCEEDED)
    await wait_until_waiting(system, 10)
    await eventually(lambda: worker.worker.running == 1, what="one slot in use")
    assert [journal.runs(job_id) for job_id in waiting_ids] == [0] * 10


async def test_a_job_that_ends_wakes_the_next_and_no_attempt_is_used_up(system: System) -> None:
    await system.start_worker(slots=4)
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    waiting_ids = []
    for number in range(4):
        waiting_ids.append(await system.publish("hot.called", {"account": "acme"}))
        await wait_until_waiting(system, number + 1)
    journal.release_all()
    for job_id in (first, *waiting_ids):
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert (record.attempts, record.timeline) == (0, ())
        assert journal.runs(job_id) == 1
    assert [start.job_id for start in journal.starts] == [first, *waiting_ids]  # in their order
    await wait_until_permits_are_back(system)


async def test_jobs_of_a_full_limit_ask_together_and_a_woken_one_starts_at_once(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permit_batching, "MAX_BATCH_WAIT", 60.0)
    monkeypatch.setattr(permit_batching, "REFUSAL_MEMORY_SECONDS", 60.0)  # however slow the machine
    worker = await system.start_worker(slots=16)  # of which four may gather
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    second = await system.publish("hot.called", {"account": "acme"})
    await wait_until_waiting(system, 1)  # it has found the limit full
    others = [await system.publish("hot.called", {"account": "acme"}) for _ in range(3)]
    await eventually(lambda: worker.worker.running == 4, what="three that gather")
    assert (await read_report(system)).waiting == 1
    others.append(await system.publish("hot.called", {"account": "acme"}))
    await wait_until_waiting(system, 5)
    journal.release(first)
    await journal.started(second)
    journal.release_all()
    for job_id in others:
        await system.wait_for_state(job_id, State.SUCCEEDED)


async def test_the_permit_of_a_killed_worker_comes_back(system: System, tmp_path: Path) -> None:
    async with Processes(system.settings, tmp_path) as processes:
        worker_process = await processes.start("worker")
        first = await system.publish("hot.called", {"account": "acme"})
        await system.wait_for_state(first, State.RUNNING)
        await system.start_worker(slots=4)
        second = await system.publish("hot.called", {"account": "acme"})
        await wait_until_waiting(system, 1)
        worker_process.kill()
        journal.release_all()
        # The dead worker's job goes on with its permit; then the waiting job gets it.
        record = await system.wait_for_state(first, State.SUCCEEDED)
        assert [attempt.outcome for attempt in record.timeline] == [AttemptOutcome.CRASHED]
        await system.wait_for_state(second, State.SUCCEEDED)
        await wait_until_permits_are_back(system)


async def test_a_worker_that_stops_gives_its_permits_back_at_once(system: System) -> None:
    stopping = await system.start_worker(slots=4, shutdown_grace=0.1)
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    await stopping.stop()
    assert (await read_report(system)).in_use == 0
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
async def test_the_used_tokens_take_the_place_of_the_estimate(
    system: System, job_type: str
) -> None:
    await system.start_worker()
    for _ in range(2):  # 60 + 60 would be too much
        job_id = await system.publish(f"hot.{job_type}", {"tokens": 60})
        await system.wait_for_state(job_id, State.SUCCEEDED, timeout=60)  # a process starts

    async def is_counted() -> bool:  # a moment after the end of the job is recorded
        return (await read_report(system, "tokens", "")).in_use == 0

    await eventually(is_counted, what="what the second used is known")
    assert (await read_report(system, "tokens", "")).tokens_last_minute == 60
    one_more = await system.publish("hot.counted", {"tokens": 60})

    async def is_waiting() -> bool:
        return (await read_report(system, "tokens", "")).waiting == 1

    await eventually(is_waiting, what="the third waits")
    assert journal.runs(one_more) == 0


async def test_settings_change_a_limit(system: System) -> None:
    override = KeyedLimitOverride.model_validate(
        {"concurrency": 1, "keys": {"acme": {"concurrency": 2}}}
    )
    await system.start_worker(slots=4, limits={"account": override})
    job_ids = [await system.publish("hot.called", {"account": "acme"}) for _ in range(2)]
    await journal.started(*job_ids)
    journal.release_all()


async def test_a_job_that_waits_for_a_permit_expires_like_any_other(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(
        broker310,
        sqlite_url,
        modules=MODULES,
        retry_delays=RETRY_LEVELS,
        lanes=lanes_with(ttl_seconds={"hot": 2}),
    ) as system:
        await system.start_worker()
        first = await system.publish("hot.called", {"account": "acme"})
        await journal.started(first)
        second = await system.publish("hot.called", {"account": "acme"})
        await wait_until_waiting(system, 1)
        async with running_scheduler(system):
            record = await system.wait_for_state(second, State.DEAD)
        assert record.reason == "expired"
        journal.release_all()
        await system.wait_for_state(first, State.SUCCEEDED)
        await wait_until_waiting(system, 0)


async def test_a_job_that_waits_for_a_permit_can_be_cancelled(system: System) -> None:
    await system.start_worker()
    first = await system.publish("hot.called", {"account": "acme"})
    await journal.started(first)
    second = await system.publish("hot.called", {"account": "acme"})
    await wait_until_waiting(system, 1)
    await system.ledger.jobs.cancel(second, system.ledger.clock.time())
    journal.release_all()
    await system.wait_for_state(first, State.SUCCEEDED)
    await wait_until_waiting(system, 0)
    assert journal.runs(second) == 0


async def test_two_workers_together_keep_to_a_limit(system: System) -> None:
    for _ in range(2):
        await system.start_worker(slots=4)
    job_ids = [await system.publish("hot.called", {"account": "acme"}) for _ in range(12)]
    journal.release_all()
    records = [await system.wait_for_state(job_id, State.SUCCEEDED) for job_id in job_ids]
    assert [record.result for record in records] == [{"at_once": 1}] * 12
    assert len(journal.starts) == 12


async def test_jobs_without_limits_cost_no_statement_of_the_ledger(system: System) -> None:
    await system.start_worker()
    job_id = await system.publish("hot.noop")
    await system.wait_for_state(job_id, State.SUCCEEDED)
    assert await system.ledger.limits.limit_reports() == []
