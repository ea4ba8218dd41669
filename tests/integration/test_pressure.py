"""Back-pressure where jobs are published: what a publisher does when a queue is slow or full."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import STAND_IN_PREFIX, lane_named
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Policy, Queue
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring import lane_pressure
from switchyard.services.engine.monitoring import lane_report as lane_report_module
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.lanes import lanes
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.monitoring.lane_report import make_lane_report
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.limits import LimitSize, PermitDemand, PermitRequest
from switchyard.services.engine.records.pauses import NewPause, PauseScope
from switchyard.services.engine.records.states import Pressure
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.system import System

WATERMARKS = {"llm_ok_below": 1, "llm_slow_at": 2, "llm_full_at": 4}
NOOP = JobRequest("backfill.noop", {})


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for the broker's answers: these tests are about what follows from them."""
    for name in ("ASK_TIMEOUT", "MANAGEMENT_TIMEOUT", "DEPTH_TIMEOUT", "FIRST_DEPTH_TIMEOUT"):
        monkeypatch.setattr(lane_pressure, name, MAX_WAIT)
    monkeypatch.setattr(lane_report_module, "MANAGEMENT_TIMEOUT", MAX_WAIT)


@pytest.fixture
async def pressure(system: System) -> AsyncIterator[LanePressure]:
    settings = system.settings.model_copy(update=WATERMARKS)
    pressure = LanePressure(settings, system.registry, ledger=system.ledger, fresh_for=0)
    yield pressure
    await pressure.close()


@pytest.fixture
def jobs(system: System, pressure: LanePressure) -> JobPublisher:
    return JobPublisher(system.registry, system.ledger, system.wire, pressure=pressure)


async def make_jobs_wait(system: System, number: int) -> None:
    """Let so many jobs wait for a limit under which one job runs."""
    for index in range(number + 1):
        await system.ledger.limits.take_permits(
            PermitRequest(
                hold=f"hold-{index}",
                holder="worker",
                needs=(PermitDemand("openai", "", LimitSize(concurrency=1)),),
                job_id=f"limited-{index}",
                redrives=0,
                attempts=0,
                queue="backfill.llm",
                rank=0,
                body=b"{}",
                levels=(300.0,),
                expires_at=4_000_000_000.0,
                life=60.0,
                claimed=False,
            )
        )


async def test_a_publish_tells_that_its_queue_is_slow_and_is_refused_if_it_is_full(
    system: System, jobs: JobPublisher, pressure: LanePressure
) -> None:
    answers = []
    for _ in range(4):
        await pressure.snapshot()
        answers.append((await jobs.publish(NOOP)).pressure)
    assert answers == [Pressure.OK, Pressure.OK, Pressure.SLOW, Pressure.SLOW]
    recorded = (await system.ledger.job_reads.list_jobs()).items[0]
    await pressure.snapshot()
    with pytest.raises(LaneFull):
        await jobs.publish(NOOP)
    assert len((await system.ledger.job_reads.list_jobs()).items) == 4
    repeated = await jobs.publish(JobRequest("backfill.noop", {}, job_id=recorded.id))
    assert repeated.duplicate
    later, full = await jobs.publish_many([JobRequest("backfill.noop", {}, delay=60), NOOP])
    assert getattr(later, "state", None) == "scheduled"
    assert isinstance(full, LaneFull)


async def test_the_depths_of_all_queues_are_read_on_one_channel(
    pressure: LanePressure, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0

    async def open_counted(*args: Any, **options: Any) -> PipelinedChannel:
        nonlocal opened
        opened += 1
        return await open_channel(*args, **options)

    monkeypatch.setattr("switchyard.broker.wire.depths.open_channel", open_counted)
    snapshot = await pressure.snapshot()
    depths = [queue.ready for lane in snapshot.lanes for queue in lane.queues]
    assert depths.count(0) > 2
    # A queue that is missing ends its channel, and so does its stand-in.
    assert opened <= 1 + 2 * depths.count(None)


async def test_a_queue_that_is_being_remade_is_as_full_as_the_one_that_stands_in_for_it(
    system: System, jobs: JobPublisher, pressure: LanePressure
) -> None:
    """As halfway through `jobctl topology migrate`: a queue that takes nothing is not full."""
    queue, stand_in = "backfill.llm", STAND_IN_PREFIX + "backfill.llm"
    url, vhost = system.broker.management_url, system.broker.vhost
    async with ManagementClient(url, vhost) as client:
        await client.put_queue(Queue(stand_in, "classic"))
        for binding in await client.bindings():
            if binding.destination == queue:
                await client.put_binding(replace(binding, destination=stand_in))
                await client.delete_binding(binding)
        closed = {"max-length": 0, "overflow": "reject-publish"}
        await client.put_policy(Policy(stand_in, "^backfill[.]llm$", closed, priority=100))
        await system.broker.management.wait_for(queue, policy=stand_in)
        answers = []
        for _ in range(2):
            await pressure.snapshot()
            answers.append((await jobs.publish(NOOP)).pressure)
        depth = (await pressure.snapshot()).queue(queue)
        assert depth is not None
        assert answers == [Pressure.OK, Pressure.OK]
        assert (depth.ready, depth.limit, depth.pressure) == (2, 4, Pressure.SLOW)
        await system.broker.management.wait_until_depth(stand_in, 2)
        report = await make_lane_report(system.settings, system.registry, None, clock=time.time)
        (depth_shown,) = [q for lane in report.lanes for q in lane.queues if q.name == queue]
        assert (depth_shown.ready, depth_shown.limit) == (2, lane_named("backfill").max_length)
        await client.delete_queue(queue)  # as in the moment before it is declared anew
        depth = (await pressure.snapshot()).queue(queue)
        assert depth is not None
        assert depth.ready == 2


async def test_a_broker_that_has_not_answered_in_time_is_asked_for_the_first_depths_again(
    pressure: LanePressure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_pressure, "ASK_TIMEOUT", 0.0)
    monkeypatch.setattr(lane_pressure, "DEPTHS_TTL", 0.05)
    pressure.start()
    await eventually(lambda: pressure._query is not None and pressure._query.done())
    assert not pressure.is_known
    monkeypatch.setattr(lane_pressure, "ASK_TIMEOUT", MAX_WAIT)
    await eventually(lambda: pressure.is_known)


async def test_jobs_that_wait_for_a_named_limit_count_as_if_they_were_in_their_queue(
    system: System, jobs: JobPublisher, pressure: LanePressure
) -> None:
    await make_jobs_wait(system, 4)
    depth = (await pressure.snapshot()).queue("backfill.llm")
    assert depth is not None
    assert (depth.ready, depth.put_off, depth.pressure) == (0, 4, Pressure.FULL)
    with pytest.raises(LaneFull):
        await jobs.publish(NOOP)
    await system.ledger.limits.cancel_wait("limited-1")
    await pressure.snapshot()
    assert (await jobs.publish(NOOP)).pressure is Pressure.SLOW


async def test_depths_are_known_although_the_ledger_is_away(system: System) -> None:
    async with await Ledger.open("postgresql://nobody@127.0.0.1:9/none") as away:
        pressure = LanePressure(system.settings, system.registry, ledger=away)
        try:
            depth = (await pressure.snapshot()).queue("backfill.llm")
        finally:
            await pressure.close()
    assert depth is not None
    assert (depth.ready, depth.put_off) == (0, 0)


async def test_operators_see_a_queue_as_full_as_publishers_do(
    system: System, jobs: JobPublisher
) -> None:
    for _ in range(4):
        await jobs.publish(NOOP)
    settings = system.settings.model_copy(update=WATERMARKS)
    report = await make_lane_report(settings, system.registry, None, clock=system.ledger.clock.time)
    (llm,) = (q for lane in report.lanes for q in lane.queues if q.name == "backfill.llm")
    assert (llm.ready, llm.limit, llm.percent_full) == (4, 4, 100.0)
    checks = await lanes(DoctorContext(settings, system.registry, ledger=system.ledger))
    (full,) = (check for check in checks if check.finding is Finding.LANE_FULL)
    assert "backfill.llm is full and takes no new jobs: 4 of 4" in full.detail
    assert full.remedy is not None
    assert "jobctl llm status" in full.remedy
    assert "--concurrency" not in full.remedy, "more workers would wait for the same servers"
    pause = await system.ledger.pauses.pause(NewPause(PauseScope.LANE, "backfill", "me"))
    checks = await lanes(DoctorContext(settings, system.registry, ledger=system.ledger))
    (full,) = (check for check in checks if check.finding is Finding.LANE_FULL)
    assert full.remedy.startswith("lane backfill is paused"), "more room comes when it goes on"
    assert pause.remedy in full.remedy
    context = DoctorContext(settings, system.registry, found={Finding.LEDGER_LOCKED})
    (full,) = (check for check in await lanes(context) if check.finding is Finding.LANE_FULL)
    assert full.remedy.startswith("first mend what is reported above of the ledger")
