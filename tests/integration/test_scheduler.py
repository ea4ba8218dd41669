"""The scheduler: delayed jobs, the outbox, jobs of workers that fell silent, and the lease."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from switchyard.broker.message import now
from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.ledger import to_message
from switchyard.services.engine.ledger.leases import SCHEDULER
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.records.requests import ClaimRequest, NewJob
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler, TurnCounts
from tests.support.brokers import TestBroker
from tests.support.chaos import CHAOS_MODULES, Effects
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.jobs import journal
from tests.support.system import System, lanes_with, open_system
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_process import Processes

QUICK_INTERVALS = SchedulerIntervals(turn=0.05, lease=1.0, pending=0.3, silent=0.3)


@asynccontextmanager
async def running_scheduler(
    system: System, intervals: SchedulerIntervals = QUICK_INTERVALS, **settings: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler that runs, with its own `settings`."""
    own_settings = system.settings.model_copy(update=settings)
    scheduler = Scheduler(own_settings, system.registry, system.ledger, intervals=intervals)
    task = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
    finally:
        scheduler.stop()
        await asyncio.wait_for(task, 20)


@asynccontextmanager
async def open_scheduler(
    system: System, intervals: SchedulerIntervals = QUICK_INTERVALS, **settings: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler that takes its turns when the test says so."""
    own_settings = system.settings.model_copy(update=settings)
    scheduler = Scheduler(own_settings, system.registry, system.ledger, intervals=intervals)
    try:
        yield scheduler
    finally:
        await scheduler.close()


async def record_job(system: System, routing_key: str = "hot.noop", **options: Any) -> NewJob:
    """Record a job without publishing it."""
    new = prepare(system.registry, JobRequest(routing_key, {}, **options))
    await system.ledger.jobs.record(new)
    return new


async def test_a_scheduler_with_nothing_to_do_looks_once_a_turn(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        transactions = 0

        def count(_kind: str, _seconds: float, _well: bool) -> None:
            nonlocal transactions
            transactions += 1

        async with running_scheduler(system, SchedulerIntervals(turn=0.05)) as scheduler:
            await scheduler.is_active.wait()
            await asyncio.sleep(1)  # what is done once at the start is over
            system.ledger.observe(count)
            await asyncio.sleep(2)
        assert (
            1 < transactions < 70
        )  # for forty turns; if each duty looked by itself, it would be 300


# --- delayed jobs -----------------------------------------------------------------------------


async def test_delayed_job_runs_at_its_time_and_not_before(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system, running_scheduler(system):
        await system.start_worker()
        published_at = time.monotonic()
        job_id = await system.publish("hot.noop", delay=0.8)
        assert await system.state(job_id) == State.SCHEDULED

        await system.wait_for_state(job_id, State.SUCCEEDED)
        [start] = journal.starts_of(job_id)
        assert 0.8 <= start.at - published_at < 3


async def test_the_age_of_a_delayed_job_counts_from_its_due_time(
    broker310: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(ttl_seconds={"hot": 2})
    async with open_system(broker310, sqlite_url, lanes=lanes) as system:
        await system.start_worker()
        long_ago = now() - timedelta(hours=1)
        new = await record_job(system, delay=0.01)
        old = new.message.with_metadata(created_at=long_ago, queued_at=long_ago)
        late = NewJob(
            old.model_copy(update={"job_id": "late"}), "hot", "llm", "hot.noop", run_at=1.0
        )
        await system.ledger.jobs.record(late)

        async with running_scheduler(system):
            await system.wait_for_state("late", State.SUCCEEDED)


async def test_scheduled_job_that_finds_its_lane_full_waits_for_room(
    broker310: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"backfill": 1})
    async with (
        open_system(broker310, sqlite_url, lanes=lanes) as system,
        open_scheduler(system) as scheduler,
    ):
        first = await system.publish("backfill.noop")
        second = await system.publish("backfill.noop", delay=0.01)
        await asyncio.sleep(0.02)  # its time comes

        assert await scheduler.turn() == TurnCounts(refused=1)
        assert await system.state(second) == State.SCHEDULED
        await system.start_worker()
        await system.wait_for_state(first, State.SUCCEEDED)
        assert await scheduler.turn() == TurnCounts(scheduled=1)
        await system.wait_for_state(second, State.SUCCEEDED)


async def test_due_jobs_of_a_full_queue_do_not_stand_in_the_way_of_others(
    broker310: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.services.engine.scheduler.scheduler.BATCH", 3)
    lanes = lanes_with(max_length={"backfill": 1})
    async with (
        open_system(broker310, database_url, lanes=lanes) as system,
        open_scheduler(system) as scheduler,
    ):
        await system.publish("backfill.noop")
        for _ in range(7):
            await system.publish("backfill.noop", delay=0.001)
        other_id = await system.publish("backfill.received", delay=0.002)
        hot = await system.publish("hot.noop", delay=0.003)
        await asyncio.sleep(0.01)  # their time comes

        turn = await scheduler.turn()
        assert (turn.scheduled, await system.state(other_id), await system.state(hot)) == (
            2,
            State.QUEUED,
            State.QUEUED,
        )


async def test_the_log_has_one_line_for_all_jobs_that_are_refused_again_and_again(
    broker310: TestBroker, sqlite_url: str
) -> None:
    """A disk alarm may last for hours, and the log is on a disk, too."""
    lanes = lanes_with(max_length={"backfill": 1})
    async with (
        open_system(broker310, sqlite_url, lanes=lanes) as system,
        open_scheduler(system) as scheduler,
    ):
        await system.publish("backfill.noop")
        for _ in range(9):
            await system.publish("backfill.noop", delay=0.001)
        await asyncio.sleep(0.01)  # their time comes
        with capture_logs() as logs:
            for _ in range(3):
                assert await scheduler.turn() == TurnCounts(refused=9)
        (line,) = [entry for entry in logs if entry["log_level"] == "warning"]
        assert (line["event"], line["jobs"]) == ("jobs not published", 9)
        assert "the lane of 'backfill.noop' is full" in line["error"]


async def test_scheduled_job_that_overflows_a_hot_lane_is_dead_and_not_tried_again(
    broker310: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"hot": 1})
    async with (
        open_system(broker310, sqlite_url, lanes=lanes) as system,
        open_scheduler(system) as scheduler,
    ):
        await system.publish("hot.noop")
        second = await system.publish("hot.noop", delay=0.01)
        await asyncio.sleep(0.02)  # its time comes

        assert await scheduler.turn() == TurnCounts(refused=1)
        assert (await system.record(second)).reason == "overflowed"
        assert await scheduler.turn() == TurnCounts()
        assert [letter.id for letter in await system.letters()] == [second]


async def test_scheduler_waits_for_a_broker_that_is_away(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with (
        open_system(broker310, sqlite_url) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
    ):
        proxy.refuse()
        through_proxy = SecretStr(proxy.url(broker310.amqp_url))
        async with running_scheduler(system, amqp_url=through_proxy) as scheduler:
            job_id = await system.publish("hot.noop", delay=0.01)
            await asyncio.wait_for(scheduler.is_active.wait(), MAX_WAIT)
            await system.start_worker()
            await asyncio.sleep(4 * QUICK_INTERVALS.turn)  # some turns that can't publish
            assert await system.state(job_id) == State.SCHEDULED

            await proxy.accept()
            await system.wait_for_state(job_id, State.SUCCEEDED)


# --- the outbox -------------------------------------------------------------------------------


async def test_record_without_a_publish_is_published_once_it_is_old(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        new = await record_job(system)
        async with open_scheduler(system, SchedulerIntervals(pending=60)) as patient:
            assert await patient.turn() == TurnCounts()

        async with running_scheduler(system):
            await system.wait_for_state(new.message.job_id, State.QUEUED)
            await system.start_worker()
            await system.wait_for_state(new.message.job_id, State.SUCCEEDED)
        assert journal.runs(new.message.job_id) == 1


async def test_job_of_a_publisher_that_died_between_record_and_publish_runs(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"modules": CHAOS_MODULES, "data_dir": tmp_path}
    async with (
        open_system(broker310, sqlite_url, **options) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        publisher = await processes.start("record", routing_key="hot.effect", job_id="orphan")
        publisher.kill()
        await publisher.ended()
        assert await system.state("orphan") == State.PENDING

        await system.start_worker()
        async with running_scheduler(system):
            await system.wait_for_state("orphan", State.SUCCEEDED)
        assert Effects(tmp_path).ids("done") == ["orphan"]


# --- jobs of workers that fell silent ---------------------------------------------------------


async def lose(system: System, worker_id: str) -> str:
    """Record a job that a worker claimed before it died, and that the broker has lost, too."""
    new = await record_job(system)
    await system.ledger.workers.register_worker(
        worker_id, kinds=["llm"], lanes=["hot"], host="here", pid=1, concurrency=1
    )
    claim = ClaimRequest(
        message=new.message,
        lane=new.lane,
        worker=new.worker,
        routing_key=new.routing_key,
        worker_id=worker_id,
        claim_id=f"{worker_id}/1",
        now=time.time(),
    )
    await system.ledger.jobs.claim(claim)
    return new.message.job_id


async def test_job_that_broker_and_worker_have_lost_is_published_again_once(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system, open_scheduler(system) as scheduler:
        job_id = await lose(system, "silent")
        turns: list[TurnCounts] = []

        async def count_lost() -> int:
            turns.append(await scheduler.turn())
            return turns[-1].lost

        await eventually(count_lost)
        assert [await scheduler.turn() for _ in range(3)] == [TurnCounts()] * 3
        await system.wait_until_ready("hot.llm", 1)

        await system.start_worker()
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert record.crashes == 1
        assert [attempt.outcome for attempt in record.timeline] == ["crashed"]
        assert [await scheduler.turn() for _ in range(2)] == [TurnCounts()] * 2


async def test_lost_job_that_could_not_be_published_is_tried_in_the_next_turn(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with (
        open_system(broker310, sqlite_url) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
    ):
        proxy.refuse()
        job_id = await lose(system, "silent")
        await system.ledger.workers.mark_stopped("silent")
        through_proxy = SecretStr(proxy.url(broker310.amqp_url))
        async with open_scheduler(system, amqp_url=through_proxy) as scheduler:
            assert await scheduler.turn() == TurnCounts(refused=1)
            assert await system.state(job_id) == State.RUNNING

            await proxy.accept()
            assert await scheduler.turn() == TurnCounts(lost=1)
            assert await scheduler.turn() == TurnCounts()


async def test_copy_of_a_job_that_runs_after_all_does_not_disturb_it(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        worker = await system.start_worker()
        job_id = await system.publish("hot.gated")
        await journal.started(job_id)
        message = to_message(await system.record(job_id))
        for _ in range(2):
            await system.wire.publish(message, "hot.gated")
        journal.release(job_id)
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        await eventually(lambda: worker.worker.counters.skipped == 2)
        assert journal.runs(job_id) == 1
        assert (record.crashes, record.timeline) == (0, ())


async def test_jobs_of_a_worker_that_lives_are_left_alone(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with (
        open_system(broker310, sqlite_url, takeover_after=0.4) as system,
        open_scheduler(system, SchedulerIntervals(silent=2)) as scheduler,
    ):
        await system.start_worker()
        job_id = await system.publish("hot.gated")
        await journal.started(job_id)
        await asyncio.sleep(2.2)  # longer than silence may last
        assert await scheduler.turn() == TurnCounts()
        journal.release(job_id)


# --- the lease --------------------------------------------------------------------------------


async def test_the_active_scheduler_hears_of_bulk_operations_and_a_standby_one_polls(
    broker310: TestBroker, database_url: str
) -> None:
    patient = SchedulerIntervals(turn=0.05, lease=60)  # a busy machine changes no roles
    async with (
        open_system(broker310, database_url) as system,
        running_scheduler(system, patient) as active,
    ):
        await active.is_active.wait()
        active.bulk_due.clear()  # it stood by itself for a moment, perhaps
        async with running_scheduler(system, patient) as standby:
            await asyncio.wait_for(standby.bulk_due.wait(), MAX_WAIT)
        assert not active.bulk_due.is_set()
        await system.ledger.bulk.create_bulk(
            "count-1", kind="count", title="numbers", spec={}, created_by="test"
        )
        await asyncio.wait_for(active.bulk_due.wait(), MAX_WAIT)


async def test_second_scheduler_stands_by_and_takes_over_when_the_first_is_killed(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"modules": CHAOS_MODULES, "data_dir": tmp_path}
    async with (
        open_system(broker310, sqlite_url, **options) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        first = await processes.start("scheduler", turn=0.05, lease=2.0)
        await system.publish("hot.effect", delay=0.01, job_id="by-first")
        await system.wait_for_state("by-first", State.QUEUED)
        async with running_scheduler(system, SchedulerIntervals(turn=0.05, lease=2.0)) as second:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(second.is_active.wait(), 2.5)

            first.kill()
            await asyncio.wait_for(second.is_active.wait(), 30)
            await system.publish("hot.effect", delay=0.01, job_id="by-second")
            await system.wait_for_state("by-second", State.QUEUED)


async def test_a_lease_that_was_taken_when_the_clock_was_ahead_locks_nobody_out(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        assert await system.ledger.leases.acquire_lease(SCHEDULER, "somebody who has died", 7200)
        async with running_scheduler(system) as scheduler:
            await asyncio.wait_for(scheduler.is_active.wait(), MAX_WAIT)
        assert await system.ledger.leases.acquire_lease("a pause", "somebody", 7200)
        assert not await system.ledger.leases.acquire_lease("a pause", "somebody else", 1)


async def test_scheduler_that_stops_hands_over_at_once(
    broker310: TestBroker, sqlite_url: str
) -> None:
    patient = SchedulerIntervals(turn=0.05, lease=60)
    async with open_system(broker310, sqlite_url) as system:
        async with running_scheduler(system, patient) as first:
            await asyncio.wait_for(first.is_active.wait(), MAX_WAIT)
            second = asyncio.create_task(wait_until_active(system, patient))
        await asyncio.wait_for(second, 30)


@pytest.mark.filterwarnings(
    "error:coroutine 'Connection.close'", "error::pytest.PytestUnraisableExceptionWarning"
)
async def test_scheduler_can_be_stopped_at_any_moment_of_its_start(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        for step in range(40):
            async with running_scheduler(system) as scheduler:
                await scheduler.is_active.wait()
                await asyncio.sleep(step * 0.0005)


async def wait_until_active(system: System, intervals: SchedulerIntervals) -> None:
    async with running_scheduler(system, intervals) as scheduler:
        await scheduler.is_active.wait()
