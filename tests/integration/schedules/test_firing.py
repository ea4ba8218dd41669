"""What is due is fired once, whoever looks, and is never lost between its row and its job."""

import asyncio
import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger.jobs import JobRepository
from switchyard.services.engine.ledger.schedules import ScheduleRepository
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.schedules import FiringOutcome
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from switchyard.services.engine.schedules.firing import RETRY_INTERVAL, ScheduleRunner
from switchyard.services.engine.schedules.service import job_id_of
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.schedules import START, Time, add, book, entry, outcomes, runner
from tests.support.system import System, declare, open_system

BERLIN = ZoneInfo("Europe/Berlin")


async def test_what_is_due_becomes_a_job_of_its_payload(system: System, time: Time) -> None:
    await add(system, entry(payload={"n": 7}, priority=3, max_attempts=5, tags={"team": "search"}))
    firing = runner(system)
    assert await firing.turn() == 0
    time.now += 30
    assert await firing.turn() == 1
    assert await firing.turn() == 0
    (fired,) = await book(system).history("tidy", 10)
    ids = await system.ledger.system.job_ids()
    assert fired.job_id == job_id_of(ids, "tidy", START + 30)
    record = await system.record(fired.job_id)
    assert (record.state, record.payload, record.priority) == (State.QUEUED, {"n": 7}, 3)
    assert (record.source, record.max_attempts) == ("schedule tidy", 5)
    found = await system.ledger.job_reads.list_jobs(JobFilter(tags={"team": "search"}))
    assert [job.id for job in found.items] == [fired.job_id]
    assert await system.ready("hot.llm") == 1


async def test_the_payload_stays_of_the_version_that_it_was_written_in(
    system: System, time: Time
) -> None:
    await add(system, entry())
    await add(system, entry("explicit", payload_version=1))
    # The next release: its scheduler fires, and its workers upgrade.
    noop = system.registry.get("noop")
    newer = replace(noop, version=noop.version + 1, upgrades=((noop.version, dict),))
    system.registry = Registry([newer])
    await add(system, entry("written-now"))
    time.now += 30
    assert await runner(system).turn() == 3
    versions = {}
    for name in ("tidy", "explicit", "written-now"):
        (fired,) = await book(system).history(name, 10)
        record = await system.record(fired.job_id or "")
        versions[name] = record.envelope["metadata"].get("payload_version", 1)
    assert versions == {"tidy": 1, "explicit": 1, "written-now": 2}


async def test_a_schedule_with_much_in_flight_steps_back_behind_others(
    system: System, time: Time
) -> None:
    await add(system, entry(), entry("seldom", "1 12 * * *"))
    firing = runner(system, fair_from=2)
    for _ in range(3):
        time.now += 60
        await firing.turn()
    jobs = (await system.ledger.job_reads.list_jobs()).items
    priorities = {(each.source, each.priority) for each in jobs}
    assert priorities == {("schedule tidy", 10), ("schedule tidy", 5), ("schedule seldom", 10)}


async def test_of_many_schedulers_one_fires(system: System, time: Time) -> None:
    await add(system, *(entry(f"e{number}") for number in range(20)))
    time.now += 30
    await asyncio.gather(*(runner(system).turn() for _ in range(5)))
    assert await system.ready("hot.llm") == 20
    for number in range(20):
        assert await outcomes(system, f"e{number}") == [(30.0, "fired", 1)]


async def test_a_clock_that_was_ahead_stops_no_schedule_and_fires_none_twice(
    system: System, time: Time
) -> None:
    await add(system, entry())
    firing = runner(system)
    time.now += 7 * 86_400
    assert await firing.turn() > 0
    time.now = START + 1  # somebody has set it right
    assert await firing.correct_due_times() == ["tidy"]
    assert await firing.correct_due_times() == []
    time.now = START + 91
    assert await firing.turn() == 1  # the first due time counts as missed, with those that were
    assert await firing.correct_due_times() == []
    time.now = START + 89
    assert await firing.correct_due_times() == ["tidy"]
    time.now = START + 91
    assert await firing.turn() == 0


async def test_what_was_missed_is_said_and_the_last_is_made_up_for(
    system: System, time: Time
) -> None:
    await add(system, entry(cron="0 * * * *", grace=3600))
    time.now += 5 * 3600
    assert await runner(system).turn() == 1
    first = 3600.0 - 30
    assert await outcomes(system) == [(first, "missed", 4), (first + 4 * 3600, "fired", 1)]
    time.now += 48 * 3600 - 1800
    await runner(system).turn()
    assert (await outcomes(system))[-1][1:] == ("fired", 1)


@pytest.mark.parametrize("step", ["publish", "mark"])
async def test_a_scheduler_that_dies_between_the_row_and_the_job_loses_none(
    system: System, time: Time, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await add(system, entry())
    time.now += 30
    with monkeypatch.context() as broken:

        async def dies(*args: Any, **options: Any) -> Any:
            raise asyncio.CancelledError

        if step == "publish":
            broken.setattr(JobRepository, "record_many", dies)
        else:
            broken.setattr(ScheduleRepository, "settle_firing", dies)
        with pytest.raises(asyncio.CancelledError):
            await runner(system).turn()
    assert await outcomes(system) == [(30.0, "due", 1)]
    await runner(system).turn()
    assert await outcomes(system) == [(30.0, "fired", 1)]
    assert await system.ready("hot.llm") == 1


async def test_a_job_without_a_queue_is_tried_again_until_it_is_of_no_use(
    system: System, time: Time
) -> None:
    await add(system, entry(cron="0 13 10 3 *", grace=600))
    time.now = START - 30 + 3600
    firing = runner(system)
    async with system.channel() as channel:
        await channel.queue_delete("hot.llm")
    assert await firing.turn() == 0
    assert (await outcomes(system))[0][1] == "due"
    (due,) = await book(system).history("tidy", 10)
    assert due.is_put_off
    assert await firing.turn() == 0  # too soon
    await declare(system.broker, system.registry, lanes=system.lanes)

    async def fires() -> int:
        time.now += RETRY_INTERVAL
        return await firing.turn()

    await eventually(fires)
    assert (await outcomes(system))[0][1] == "fired"
    (fired,) = await book(system).history("tidy", 10)
    assert not fired.is_put_off


async def test_a_type_that_nobody_knows_is_not_fired_into_the_void(
    system: System, time: Time
) -> None:
    await add(system, entry(cron="0 13 10 3 *", grace=600))
    time.now = START - 30 + 3600
    firing = ScheduleRunner(system.settings, Registry(), system.ledger, system.wire, interval=0.05)
    for _ in range(3):
        assert await firing.turn() == 0
        time.now += 400
    (refused,) = await book(system).history("tidy", 10)
    assert refused.outcome is FiringOutcome.REFUSED
    assert "no job type 'noop'" in (refused.note or "")
    assert await system.ready("hot.llm") == 0


@pytest.mark.parametrize(("before", "hours"), [(0, 6), pytest.param(1, 72, marks=pytest.mark.long)])
async def test_each_due_time_is_fired_once_through_summer_time_and_back(
    system: System, time: Time, before: int, hours: int
) -> None:
    """By two schedulers that take turns, each cut off at any moment of every third turn."""
    chance = random.Random(7)
    nights, real_hours = -(-hours // 24), 0
    for change, month in ((29, 3), (25, 10)):
        begin = datetime(2026, month, change - before, tzinfo=BERLIN)
        end = (begin + timedelta(hours=hours)).timestamp()  # by the clock on the wall
        time.at(begin)
        names = (f"nightly-{month}", f"hourly-{month}")
        await add(
            system,
            entry(names[0], "30 2 * * *", timezone="Europe/Berlin"),
            entry(names[1], "30 * * * *", timezone="Europe/Berlin"),
        )
        times = (nights, int((end - time.now) / 3600))
        real_hours += times[1]
        while time.now < end:
            time.now += 600
            for firing in (runner(system), runner(system)):
                limit = chance.random() * 0.02 if chance.random() < 0.33 else 10.0
                try:
                    async with asyncio.timeout(limit):
                        await firing.turn()
                except TimeoutError:
                    continue
        await runner(system).turn()
        for name, expected in zip(names, times, strict=True):
            fired = await book(system).history(name, 500)
            assert {each.outcome for each in fired} == {FiringOutcome.FIRED}
            assert len(fired) == expected
            jobs = [await system.record(each.job_id or "") for each in fired]
            assert {job.source for job in jobs} == {f"schedule {name}"}
            await book(system).pause(name)
    listed = (await system.ledger.job_reads.list_jobs(limit=1000)).items
    assert len(listed) == 2 * nights + real_hours


async def test_the_scheduler_fires_by_itself(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await add(system, entry(cron="* * * * * *"))
        scheduler = Scheduler(
            system.settings,
            system.registry,
            system.ledger,
            intervals=SchedulerIntervals(turn=0.05, lease=1.0),
        )
        running = asyncio.create_task(scheduler.run())

        async def twice() -> bool:
            done = await book(system).history("tidy", 10)
            return sum(each.outcome is FiringOutcome.FIRED for each in done) >= 2

        await eventually(twice)
        scheduler.stop()
        await running
