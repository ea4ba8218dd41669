"""Pauses: paused jobs do not begin, wait in the ledger, and go on in order."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.ledger import upgrade
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.jobs import pauses as check_pauses
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.pauses import NewPause, PauseRecord, PauseScope
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.displaced_returner import DisplacedJobReturner
from tests.integration.test_scheduler import open_scheduler, running_scheduler
from tests.support.brokers import TestBroker
from tests.support.commands import jobctl
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, lanes_with, open_system


@pytest.fixture
async def any_system(broker: TestBroker, database_url: str) -> AsyncIterator[System]:
    """A system on each kind of broker and database."""
    async with open_system(broker, database_url) as opened:
        yield opened


async def pause(
    system: System, scope: PauseScope, target: str, seconds: float | None = None
) -> PauseRecord:
    return await system.ledger.pauses.pause(
        NewPause(scope, target, "nic@desk", "a new model", seconds)
    )


async def resume(system: System, pause_record: PauseRecord) -> None:
    assert await system.ledger.pauses.resume(pause_record.id, "ann@desk") is not None


def list_started(*job_ids: str) -> list[str]:
    """Return which of the jobs have started, in that order."""
    return [start.job_id for start in journal.starts if start.job_id in job_ids]


async def test_a_type_paused_under_load_does_not_begin_and_every_job_runs_once_after_it(
    any_system: System,
) -> None:
    system = any_system
    await system.start_worker(slots=3)
    running = await system.publish("hot.gated")
    await journal.started(running)
    early = [await system.publish("backfill.gated") for _ in range(40)]
    pause_record = await pause(system, PauseScope.TYPE, "gated")
    started_ids = set(list_started(*early))
    late = [await system.publish("hot.gated") for _ in range(40)]
    foreign = (await system.publish_foreign("hot.gated")).job_id
    noop_id = await system.publish("backfill.noop")  # behind them, in the same queue
    held = [job_id for job_id in (*early, *late, foreign) if job_id not in started_ids]
    journal.release_all()
    await system.wait_until_all([running, *started_ids, noop_id], State.SUCCEEDED)
    await system.wait_until_all(held, State.PAUSED)
    assert (await system.ready("hot.llm"), await system.ready("backfill.llm")) == (0, 0)
    assert list_started(*held) == []

    async with open_scheduler(system) as scheduler:
        assert (await scheduler.turn()).resumed == 0
        await resume(system, pause_record)
        assert (await scheduler.turn()).resumed == len(held)
    await system.wait_until_all(held, State.SUCCEEDED)
    assert sorted(list_started(*held)) == sorted(held)


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        (PauseScope.LANE, "backfill"),
        (PauseScope.TYPE, "noop"),
        (PauseScope.SOURCE, "customer-7"),
        (PauseScope.QUEUE, "backfill.llm"),
    ],
)
async def test_each_scope_holds_its_jobs_and_no_others(
    system: System, scope: PauseScope, target: str
) -> None:
    held = [await system.publish("backfill.noop", source="customer-7") for _ in range(3)]
    free = await system.publish("hot.received", source="customer-8")
    await pause(system, scope, target)
    await system.start_worker("llm", "embed")
    held.append(await system.publish("backfill.noop", source="customer-7"))
    await system.wait_until_all(held, State.PAUSED)
    await system.wait_for_state(free, State.SUCCEEDED)
    assert list_started(*held) == []


async def test_paused_jobs_go_on_most_urgent_lane_and_oldest_first(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system, open_scheduler(system) as scheduler:
        pause_record = await pause(system, PauseScope.TYPE, "noop")
        backfill = [await system.publish("backfill.noop") for _ in range(4)]
        hot = [await system.publish("hot.noop") for _ in range(4)]
        await resume(system, pause_record)
        assert (await scheduler.turn()).resumed == 8
        await system.start_worker(slots=1)
        await system.wait_until_all([*hot, *backfill], State.SUCCEEDED)
        assert list_started(*hot, *backfill) == [*hot, *backfill]


async def test_a_pause_with_an_end_ends_by_itself(broker310: TestBroker, database_url: str) -> None:
    async with open_system(broker310, database_url) as system, running_scheduler(system):
        await system.start_worker()
        await pause(system, PauseScope.LANE, "hot", seconds=1.5)
        job_id = await system.publish("hot.noop")
        assert await system.state(job_id) is State.PAUSED
        await system.wait_for_state(job_id, State.SUCCEEDED)
        [ended] = await system.ledger.pauses.history(10)
        assert (ended.target, ended.ended_by) == ("hot", None)
        assert (await system.ledger.pauses.active()).pauses == ()


async def test_a_job_that_two_pauses_hold_waits_for_both(system: System) -> None:
    first = await pause(system, PauseScope.LANE, "hot")
    second = await pause(system, PauseScope.TYPE, "noop")
    job_id = await system.publish("hot.noop")
    async with open_scheduler(system) as scheduler:
        await resume(system, first)
        assert (await scheduler.turn()).resumed == 0
        await resume(system, second)
        assert (await scheduler.turn()).resumed == 1
    assert await system.state(job_id) is State.QUEUED


async def test_delayed_and_retried_jobs_and_next_stages_are_held_when_they_are_due(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system, running_scheduler(system):
        await system.start_worker("llm", "embed")
        await pause(system, PauseScope.TYPE, "received")
        first = await system.publish("hot.spread", {"count": 3})
        await system.wait_for_state(first, State.SUCCEEDED)
        delayed = await system.publish("hot.noop", delay=0.5)
        retried = await system.publish("hot.held_script", {"steps": ["retry"]})
        await journal.started(retried)
        await pause(system, PauseScope.LANE, "hot")
        journal.release_all()
        await system.wait_until_all([delayed, retried], State.PAUSED)
        stages = [await system.stage_id(first, "received", number) for number in range(3)]
        await system.wait_until_all(stages, State.PAUSED)
        assert list_started(delayed, *stages) == []
        assert (await system.record(retried)).attempts == 1
        for active in (await system.ledger.pauses.active()).pauses:
            await resume(system, active)
        await system.wait_until_all([delayed, *stages], State.SUCCEEDED)
        await system.wait_for_state(retried, State.DEAD)
        assert len(journal.starts_of(retried)) == 3


async def test_nothing_ages_out_while_it_is_paused_and_no_worker_is_there(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(
        ttl_seconds={"hot": 4}
    )  # seconds; a busy machine may need some of them at the end
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        job_id = await system.publish("hot.noop")
        pause_record = await pause(system, PauseScope.LANE, "hot")
        await eventually(lambda: has_letters(system, 1), what="the queue's age limit")
        await index_waiting(system.settings, system.ledger, system.registry)
        assert await system.state(job_id) is State.QUEUED
        returner = DisplacedJobReturner(
            system.settings, system.registry, system.ledger, system.wire, system.lanes
        )
        assert await returner.turn() == 1
        assert await system.state(job_id) is State.PAUSED
        assert (await system.ready("hot.llm"), await system.ready("jobs.dead")) == (0, 0)
        await resume(system, pause_record)
        await system.start_worker()
        async with running_scheduler(system):
            await system.wait_for_state(job_id, State.SUCCEEDED)
        assert len(journal.starts_of(job_id)) == 1


async def has_letters(system: System, number: int) -> bool:
    return await system.ready("jobs.dead") == number


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.10", "4.3"])
async def test_a_pause_outlives_the_restart_of_broker_workers_and_scheduler(
    own_node: Callable[..., LocalNode], database_url: str, version: str
) -> None:
    node = await asyncio.to_thread(own_node, version)
    async with open_system(TestBroker(version, "classic", "/", node), database_url) as system:
        worker = await system.start_worker()
        waiting = [await system.publish("backfill.gated") for _ in range(8)]
        await eventually(lambda: len(list_started(*waiting)) == 3)  # one slot is for hot jobs
        pause_record = await pause(system, PauseScope.LANE, "backfill")
        new = [await system.publish("backfill.noop") for _ in range(5)]
        await worker.stop()  # the running ones are given back
        await asyncio.to_thread(node.restart)
        await system.start_worker()
        held = [*waiting, *new]
        async with running_scheduler(system):
            hot = await system.publish("hot.noop")
            await system.wait_for_state(hot, State.SUCCEEDED)
            await system.wait_until_all(held, State.PAUSED)
            started_ids = list_started(*held)
            journal.release_all()
            await resume(system, pause_record)
            await system.wait_until_all(held, State.SUCCEEDED)
        assert len(started_ids) == 3


async def test_a_paused_job_can_be_cancelled_and_its_pause_is_reported(system: System) -> None:
    await pause(system, PauseScope.TYPE, "noop", seconds=3600)
    job_id = await system.publish("hot.noop")
    [(held_pause, held_jobs)] = await system.ledger.pauses.held_by_pause()
    assert (str(held_pause), held_pause.created_by, held_pause.reason, held_jobs) == (
        "type noop",
        "nic@desk",
        "a new model",
        1,
    )
    [check] = await check_pauses(cast("DoctorContext", _ContextStub(system)))
    assert " by nic@desk (a new model), ends in " in check.detail
    assert "holds 1 job" in check.detail
    await system.ledger.jobs.cancel(job_id, system.ledger.clock.time())
    assert await system.state(job_id) is State.CANCELLED


class _ContextStub:
    """What the check needs of a DoctorContext."""

    def __init__(self, system: System) -> None:
        self.need_ledger = lambda: system.ledger


async def test_a_late_confirm_does_not_make_a_paused_job_queued(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        new = await system.jobs.prepare(JobRequest("hot.noop", {}))
        await system.ledger.jobs.record(new)
        await system.wire.publish(new.message, new.routing_key)
        pause_record = await pause(system, PauseScope.TYPE, "noop")
        await system.start_worker()
        await system.wait_for_state(new.message.job_id, State.PAUSED)
        await system.ledger.jobs.mark_queued([new.message.job_id], system.ledger.clock.time())
        assert await system.state(new.message.job_id) is State.PAUSED
        await resume(system, pause_record)
        async with running_scheduler(system):
            await system.wait_for_state(new.message.job_id, State.SUCCEEDED)


async def test_a_resume_without_a_target_names_what_is_paused_and_all_ends_it(
    sqlite_url: str,
) -> None:
    await upgrade(sqlite_url)
    environment = {"JOBS_DATABASE_URL": sqlite_url}
    without_pauses = await jobctl("resume", **environment)
    assert (without_pauses.returncode, without_pauses.stderr) == (1, "jobctl: nothing is paused\n")
    pause_record = (await jobctl("pause", "--type", "noop", **environment)).stdout.strip()
    await jobctl("pause", "--lane", "backfill", **environment)
    ambiguous = await jobctl("resume", **environment)
    assert (ambiguous.returncode, ambiguous.stdout) == (2, "")
    assert f"type noop ({pause_record}), lane backfill (" in ambiguous.stderr
    ended = json.loads((await jobctl("resume", "--all", "--json", **environment)).stdout)
    assert [pause["target"] for pause in ended] == ["noop", "backfill"]
    assert json.loads((await jobctl("pauses", "--json", **environment)).stdout) == []
