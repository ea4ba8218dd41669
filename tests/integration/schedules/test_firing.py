"""Each due time is fired once, whichever scheduler fires it, and none is lost halfway."""

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


async def test_a_due_schedule_publishes_a_job_with_its_payload_and_options(
    system: System, time: Time
) -> None:
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
    jobs_with_tag = await system.ledger.job_reads.list_jobs(JobFilter(tags={"team": "search"}))
    assert [job.id for job in jobs_with_tag.items] == [fired.job_id]
    assert await system.ready("hot.llm") == 1


async def test_a_payload_keeps_the_version_of_the_time_it_was_written(
    system: System, time: Time
) -> None:
    await add(system, entry())
    await add(system, entry("explicit", payload_version=1))
    # The next release, whose workers upgrade older payloads.
    noop = system.registry.get("noop")
    newer_noop = replace(noop, version=noop.version + 1, upgrades=((noop.version, dict),))
    system.registry = Registry([newer_noop])
    await add(system, entry("written-now"))
    time.now += 30
    assert await runner(system).turn() == 3
    versions = {}
    for name in ("tidy", "explicit", "written-now"):
        (fired,) = await book(system).history(name, 10)
        record = await system.record(fired.job_id or "")
        versions[name] = record.envelope["metadata"].get("payload_version", 1)
    assert versions == {"tidy": 1, "explicit": 1, "written-now": 2}


async def test_a_schedule_with_many_unfinished_jobs_gets_a_lower_priority(
    system: System, time: Time
) -> None:
    await add(system, entry(), entry("seldom", "1 12 * * *"))
    firing = runner(system, fair_from=2)
    for _ in range(3):
        time.now += 60
        await firing.turn()
    jobs = (await system.ledger.job_reads.list_jobs()).items
    priorities = {(job.source, job.priority) for job in jobs}
    assert priorities == {("schedule tidy", 10), ("schedule tidy", 5), ("schedule seldom", 10)}


async def test_only_one_of_many_schedulers_fires_a_due_time(system: System, time: Time) -> None:
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
    time.now = START + 1  # the clock was corrected
    assert await firing.correct_due_times() == ["tidy"]
    assert await firing.correct_due_times() == []
    time.now = START + 91
    assert await firing.turn() == 1  # the first due time counts among the missed ones
    assert await firing.correct_due_times() == []
    time.now = START + 89
    assert await firing.correct_due_times() == ["tidy"]
    time.now = START + 91
    assert await firing.turn() == 0


async def test_missed_due_times_are_recorded_and_the_last_one_is_fired(
    system: System, time: Time
) -> None:
    await add(system, entry(cron="0 * * * *", grace=3600))
    time.now += 5 * 3600
    assert await runner(system).turn() == 1
    first_due = 3600.0 - 30
    assert await outcomes(system) == [(first_due, "missed", 4), (first_due + 4 * 3600, "fired", 1)]
    time.now += 48 * 3600 - 1800
    await runner(system).turn()
    assert (await outcomes(system))[-1][1:] == ("fired", 1)


@pytest.mark.parametrize("step", ["publish", "mark"])
async def test_a_scheduler_that_dies_between_row_and_job_loses_no_firing(
    system: System, time: Time, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await add(system, entry())
    time.now += 30
    with monkeypatch.context() as patch:

        async def die(*args: Any, **options: Any) -> Any:
            raise asyncio.CancelledError

        if step == "publish":
            patch.setattr(JobRepository, "record_many", die)
        else:
            patch.setattr(ScheduleRepository, "settle_firing", die)
        with pytest.raises(asyncio.CancelledError):
            await runner(system).turn()
    assert await outcomes(system) == [(30.0, "due", 1)]
    await runner(system).turn()
    assert await outcomes(system) == [(30.0, "fired", 1)]
    assert await system.ready("hot.llm") == 1


async def test_a_firing_without_a_queue_is_tried_again_until_it_exists(
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

    async def fire_later() -> int:
        time.now += RETRY_INTERVAL
        return await firing.turn()

    await eventually(fire_later)
    assert (await outcomes(system))[0][1] == "fired"
    (fired,) = await book(system).history("tidy", 10)
    assert not fired.is_put_off


async def test_a_schedule_of_an_unknown_job_type_is_refused_and_publishes_nothing(
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


@pytest.mark.parametrize(
    ("days_before", "hours"), [(0, 6), pytest.param(1, 72, marks=pytest.mark.long)]
)
async def test_each_due_time_is_fired_once_through_summer_time_and_back(
    system: System, time: Time, days_before: int, hours: int
) -> None:
    """Two schedulers take turns; a third of their turns is cancelled at a random moment."""
    rng = random.Random(7)
    nights, real_hours = -(-hours // 24), 0
    for change, month in ((29, 3), (25, 10)):
        begin = datetime(2026, month, change - days_before, tzinfo=BERLIN)
        # `begin` is in local time, so an hour more or less passes until `end`.
        end = (begin + timedelta(hours=hours)).timestamp()
        time.at(begin)
        names = (f"nightly-{month}", f"hourly-{month}")
        await add(
            system,
            entry(names[0], "30 2 * * *", timezone="Europe/Berlin"),
            entry(names[1], "30 * * * *", timezone="Europe/Berlin"),
        )
        expected_counts = (nights, int((end - time.now) / 3600))
        real_hours += expected_counts[1]
        while time.now < end:
            time.now += 600
            for firing in (runner(system), runner(system)):
                timeout = rng.random() * 0.02 if rng.random() < 0.33 else 10.0
                try:
                    async with asyncio.timeout(timeout):
                        await firing.turn()
                except TimeoutError:
                    continue
        await runner(system).turn()
        for name, expected in zip(names, expected_counts, strict=True):
            fired = await book(system).history(name, 500)
            assert {firing.outcome for firing in fired} == {FiringOutcome.FIRED}
            assert len(fired) == expected
            jobs = [await system.record(firing.job_id or "") for firing in fired]
            assert {job.source for job in jobs} == {f"schedule {name}"}
            await book(system).pause(name)
    all_jobs = (await system.ledger.job_reads.list_jobs(limit=1000)).items
    assert len(all_jobs) == 2 * nights + real_hours


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

        async def has_fired_twice() -> bool:
            firings = await book(system).history("tidy", 10)
            return sum(firing.outcome is FiringOutcome.FIRED for firing in firings) >= 2

        await eventually(has_fired_twice)
        scheduler.stop()
        await running
