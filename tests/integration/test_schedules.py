"""Schedules on a real broker and ledger: what is due is fired once, whoever looks, and is never
lost between its row and its job."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from switchyard.services.jobs.registry import BUILT_IN_MODULES, Registry
from switchyard.services.ledger import Ledger
from switchyard.services.ledger import schedules as ledger_schedules
from switchyard.services.monitoring import schedule_status
from switchyard.services.monitoring.check import Finding
from switchyard.services.monitoring.checks.examined import Examined
from switchyard.services.monitoring.checks.schedules import schedules as schedules_check
from switchyard.services.monitoring.schedule_status import schedule_samples
from switchyard.services.records import State
from switchyard.services.records.schedules import FiringOutcome
from switchyard.services.schedules.book import (
    MOST,
    ScheduleConflict,
    Schedules,
    UnknownSchedule,
    job_id_of,
)
from switchyard.services.schedules.defaults import DEFAULTS
from switchyard.services.schedules.entry import ScheduleEntry
from switchyard.services.schedules.firing import AGAIN, ScheduleRunner
from switchyard.services.schedules.rule import InvalidSchedule
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.system import System, declare, open_system

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 10, 12, 0, 30, tzinfo=UTC).timestamp()


class Time:
    """What the ledger's database says of the time, for schedules."""

    def __init__(self) -> None:
        self.now = START

    def at(self, moment: datetime) -> None:
        self.now = moment.timestamp()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(ledger_schedules, "db_now", lambda connection: clock.now)
    return clock


@pytest.fixture
async def system(broker310: TestBroker, database_url: str) -> AsyncIterator[System]:
    async with open_system(broker310, database_url) as opened:
        yield opened


def runner(system: System, **settings: Any) -> ScheduleRunner:
    own = system.settings.model_copy(update=settings)
    return ScheduleRunner(own, system.registry, system.ledger, system.wire, look=0.05)


def book(system: System) -> Schedules:
    return Schedules(system.ledger, system.registry)


def entry(name: str = "tidy", cron: str = "* * * * *", **changes: Any) -> ScheduleEntry:
    return ScheduleEntry.of({"name": name, "cron": cron, "job": "hot.noop"} | changes)


async def add(system: System, *entries: ScheduleEntry) -> None:
    for each in entries:
        await book(system).add(each, remote=False, created_by="test")


async def outcomes(system: System, name: str = "tidy") -> list[tuple[float, str, int]]:
    """Due times (after START, in seconds), oldest first."""
    return [
        (each.due_at - START, str(each.outcome), each.times)
        for each in reversed(await book(system).history(name, 500))
    ]


async def test_what_is_due_becomes_a_job_of_its_payload(system: System, time: Time) -> None:
    await add(system, entry(payload={"n": 7}, priority=3, max_attempts=5))
    firing = runner(system)
    assert await firing.turn() == 0
    time.now += 30
    assert await firing.turn() == 1
    assert await firing.turn() == 0
    (fired,) = await book(system).history("tidy", 10)
    assert fired.job_id == job_id_of("tidy", START + 30)
    record = await system.record(fired.job_id)
    assert (record.state, record.payload, record.priority) == (State.QUEUED, {"n": 7}, 3)
    assert (record.source, record.max_attempts) == ("schedule tidy", 5)
    assert await system.ready("hot.llm") == 1


async def test_a_schedule_with_much_in_flight_steps_back_behind_others(
    system: System, time: Time
) -> None:
    await add(system, entry(), entry("seldom", "1 12 * * *"))
    firing = runner(system, fair_from=2)
    for _ in range(3):
        time.now += 60
        await firing.turn()
    jobs = (await system.ledger.list_jobs()).items
    priorities = {(each.source, each.priority) for each in jobs}
    assert priorities == {("schedule tidy", 10), ("schedule tidy", 5), ("schedule seldom", 10)}


async def test_of_many_schedulers_one_fires(system: System, time: Time) -> None:
    await add(system, *(entry(f"e{number}") for number in range(20)))
    time.now += 30
    await asyncio.gather(*(runner(system).turn() for _ in range(5)))
    assert await system.ready("hot.llm") == 20
    for number in range(20):
        assert await outcomes(system, f"e{number}") == [(30.0, "fired", 1)]


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
            broken.setattr(Ledger, "record_many", dies)
        else:
            broken.setattr(Ledger, "settle_firing", dies)
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
    assert await firing.turn() == 0  # too soon
    await declare(system.broker, system.registry, lanes=system.lanes)

    async def fires() -> int:
        time.now += AGAIN
        return await firing.turn()

    await eventually(fires)
    assert (await outcomes(system))[0][1] == "fired"


async def test_a_type_that_nobody_knows_is_not_fired_into_the_void(
    system: System, time: Time
) -> None:
    await add(system, entry(cron="0 13 10 3 *", grace=600))
    time.now = START - 30 + 3600
    firing = ScheduleRunner(system.settings, Registry(), system.ledger, system.wire, look=0.05)
    for _ in range(3):
        assert await firing.turn() == 0
        time.now += 400
    (refused,) = await book(system).history("tidy", 10)
    assert refused.outcome is FiringOutcome.REFUSED
    assert "no job type 'noop'" in (refused.note or "")
    assert await system.ready("hot.llm") == 0


@pytest.mark.parametrize(("before", "days"), [(0, 1), pytest.param(1, 3, marks=pytest.mark.long)])
async def test_each_due_time_is_fired_once_through_summer_time_and_back(
    system: System, time: Time, before: int, days: int
) -> None:
    """By two schedulers that take turns, each cut off at any moment of every third turn."""
    chance = random.Random(7)
    for change, month in ((29, 3), (25, 10)):
        day = change - before
        time.at(datetime(2026, month, day, tzinfo=BERLIN))
        names = (f"nightly-{month}", f"hourly-{month}")
        await add(
            system,
            entry(names[0], "30 2 * * *", timezone="Europe/Berlin"),
            entry(names[1], "30 * * * *", timezone="Europe/Berlin"),
        )
        end = datetime(2026, month, day + days, tzinfo=BERLIN).timestamp()
        hours = int((end - time.now) / 3600)
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
        for name, times in zip(names, (days, hours), strict=True):
            fired = await book(system).history(name, 500)
            assert {each.outcome for each in fired} == {FiringOutcome.FIRED}
            assert len(fired) == times
            jobs = [await system.record(each.job_id or "") for each in fired]
            assert {job.source for job in jobs} == {f"schedule {name}"}
            await book(system).pause(name)
    listed = (await system.ledger.list_jobs(limit=1000)).items
    assert len(listed) == days * 2 + days * 2 * 24


# --- what people do -----------------------------------------------------------------------------


async def test_what_is_due_while_paused_is_neither_fired_nor_missed(
    system: System, time: Time
) -> None:
    await add(system, entry())
    await book(system).pause("tidy")
    time.now += 600
    assert await runner(system).turn() == 0
    record = await book(system).resume("tidy")
    assert record.next_at == START + 630
    time.now += 30
    assert await runner(system).turn() == 1
    assert await outcomes(system) == [(630.0, "fired", 1)]


async def test_one_is_run_at_once_also_while_it_is_paused(system: System, time: Time) -> None:
    await add(system, entry())
    await book(system).pause("tidy")
    asked = await book(system).run("tidy", "me")
    assert await runner(system).turn() == 1
    (fired,) = await book(system).history("tidy", 10)
    assert (fired.job_id, fired.note) == (asked.job_id, "at once, by me")


async def test_what_would_be_refused_is_not_added(system: System, time: Time) -> None:
    for changes in (
        {"cron": "no"},
        {"job": "hot.nothing"},
        {"job": "nowhere.noop"},
        {"payload": {"n": "x"}},
        {"timezone": "Mars/Olympus"},
    ):
        with pytest.raises(InvalidSchedule):
            await add(system, entry(**changes))
    with pytest.raises(UnknownSchedule):
        await book(system).remove("tidy")
    await add(system, entry())
    with pytest.raises(ScheduleConflict, match="choose another name"):
        await add(system, entry())
    await book(system).remove("tidy")
    assert await book(system).all() == []
    assert MOST > 20


async def test_the_history_is_bounded(
    system: System, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_schedules, "KEPT", 5)
    await add(system, entry())
    firing = runner(system)
    for _ in range(12):
        time.now += 60
        await firing.turn()
    assert len(await outcomes(system)) <= 6


async def test_the_doctor_finds_what_was_due_and_what_was_refused(
    system: System, time: Time
) -> None:
    seen = cast("Examined", SimpleNamespace(need_ledger=lambda: system.ledger))
    assert await schedules_check(seen) == []
    await add(system, entry(cron="0 13 10 3 *", grace=600))
    (well,) = await schedules_check(seen)
    assert well.status == "ok"
    time.now = START - 30 + 3600 + 90  # due 90 s ago, and nobody was there
    (late,) = await schedules_check(seen)
    assert (late.finding, "tidy" in late.detail) == (Finding.SCHEDULE_OVERDUE, True)
    firing = ScheduleRunner(system.settings, Registry(), system.ledger, system.wire, look=0.05)
    await firing.turn()
    time.now += 120  # its row is there, and its job is not
    (late,) = await schedules_check(seen)
    assert late.finding is Finding.SCHEDULE_OVERDUE
    time.now += 600
    await firing.turn()
    (refused,) = await schedules_check(seen)
    assert refused.finding is Finding.SCHEDULE_REFUSED
    assert "no job type 'noop'" in refused.detail


async def test_the_metrics_tell_how_late_schedules_are_with_bounded_labels(
    system: System, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_status, "SHOWN", 2)

    async def shown() -> dict[tuple[str, ...], float]:
        last = await system.ledger.last_firings()
        entries = await system.ledger.schedules()
        found = schedule_samples(entries, last, time.now)
        return {
            (metric.name, *labels): seen for metric, each in found for labels, seen in each.items()
        }

    for name in "abcd":
        await add(system, entry(name))
    await book(system).pause("b")
    time.now += 90
    late = "switchyard_schedule_late_seconds"
    seen = await shown()
    assert {key: seen[key] for key in seen if key[0] == late} == {
        (late, "a"): 60,
        (late, "b"): 0,
        (late, "other"): 60,
    }
    await runner(system).turn()
    time.now += 5
    seen = await shown()
    fired = "switchyard_schedule_last_fired_seconds"
    assert {key: seen[key] for key in seen if key[0] == fired} == {
        (fired, "a"): 5,
        (fired, "other"): 5,
    }
    assert seen[late, "a"] == seen["switchyard_schedules_refused",] == 0


# --- the file -----------------------------------------------------------------------------------


def write(path: Path, cron: str, *names: str) -> Path:
    file = path / "schedules.toml"
    file.write_text("".join(f'[{each}]\ncron = "{cron}"\njob = "hot.noop"\n' for each in names))
    return file


async def test_the_file_is_taken_over_and_what_it_no_longer_has_goes(
    system: System, time: Time, tmp_path: Path
) -> None:
    own = system.settings.model_copy(update={"schedules": write(tmp_path, "* * * * *", "a", "b")})
    await book(system).adopt(own)
    await book(system).pause("b")
    time.now += 30
    assert await runner(system).turn() == 1
    write(tmp_path, "* * * * *", "b", "c")
    await book(system).adopt(own)
    found = {each.name: each for each, _ in await book(system).all()}
    assert set(found) == {"b", "c"}
    assert found["b"].paused_at is not None
    with pytest.raises(ScheduleConflict, match="JOBS_SCHEDULES"):
        await book(system).remove("c")
    await add(system, entry("d"))
    write(tmp_path, "* * * * *", "d")
    with pytest.raises(ScheduleConflict, match="jobctl schedules remove d"):
        await book(system).adopt(own)


async def test_the_active_scheduler_reads_the_file_again_when_it_has_changed(
    system: System, time: Time, tmp_path: Path
) -> None:
    own = write(tmp_path, "* * * * *", "a")
    firing = runner(system, schedules=own, default_schedules=False)

    async def names() -> set[str]:
        await firing.follow_file()
        return {each.name for each, _ in await book(system).all()}

    assert await names() == {"a"}
    write(tmp_path, "*/5 * * * *", "a", "b")
    with capture_logs() as said:
        assert await names() == {"a", "b"}
        assert await names() == {"a", "b"}
    assert [(each["changed"], each["gone"]) for each in said] == [(["a", "b"], [])]
    for broken in ("[a]\ncron = 7", "no TOML", "[a]\n[b]\ncron = '* * * * *'\njob = 'hot.nothing'"):
        own.write_text(broken)
        with capture_logs() as said:
            assert await names() == {"a", "b"}  # nothing of it, and nothing lost
            assert await names() == {"a", "b"}
        assert [each["log_level"] for each in said] == ["error"]
    own.unlink()
    assert await names() == {"a", "b"}
    write(tmp_path, "* * * * *", "b", "c")
    assert await names() == {"b", "c"}
    time.now += 60
    assert await firing.turn() == 2


async def test_what_fires_by_itself_can_be_had_otherwise(
    system: System, time: Time, tmp_path: Path
) -> None:
    everything = Schedules(system.ledger, Registry.load(BUILT_IN_MODULES))
    await everything.adopt(system.settings)
    usual = {each.name: each for each, _ in await everything.all()}
    assert set(usual) == {each.name for each in DEFAULTS}
    assert {each.origin for each in usual.values()} == {"default"}
    with pytest.raises(ScheduleConflict, match="JOBS_DEFAULT_SCHEDULES"):
        await everything.remove("cleanup-expired")
    # An entry of the file takes the place of one; a system without their types has none.
    own = {"schedules": write(tmp_path, "0 1 * * *", "cleanup-expired")}
    known = Registry([*Registry.load(BUILT_IN_MODULES), *system.registry])
    book_of_all = Schedules(system.ledger, known)
    await book_of_all.adopt(system.settings.model_copy(update=own))
    assert (await everything.get("cleanup-expired")).origin == "file"
    assert (await everything.get("cleanup-expired")).cron == "0 1 * * *"
    await book(system).adopt(system.settings.model_copy(update={"default_schedules": False}))
    assert await everything.all() == []


async def test_a_due_time_is_not_lost_when_the_next_scheduler_takes_the_file_over(
    system: System, time: Time, tmp_path: Path
) -> None:
    own = system.settings.model_copy(update={"schedules": write(tmp_path, "* * * * *", "tidy")})
    await book(system).adopt(own)
    time.now += 45  # it was due 15 s ago, and the scheduler is dead
    await book(system).adopt(own)
    assert await runner(system).turn() == 1
    assert await outcomes(system) == [(30.0, "fired", 1)]


async def test_the_scheduler_fires_by_itself(broker310: TestBroker, sqlite_url: str) -> None:
    from switchyard.services.scheduler.scheduler import Pace, Scheduler

    async with open_system(broker310, sqlite_url) as system:
        await add(system, entry(cron="* * * * * *"))
        scheduler = Scheduler(
            system.settings, system.registry, system.ledger, pace=Pace(turn=0.05, lease=1.0)
        )
        running = asyncio.create_task(scheduler.run())

        async def twice() -> bool:
            done = await book(system).history("tidy", 10)
            return sum(each.outcome is FiringOutcome.FIRED for each in done) >= 2

        await eventually(twice)
        scheduler.stop()
        await running
