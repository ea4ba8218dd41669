"""Schedules are paused, run at once, added and removed; and their history."""

import pytest

from switchyard.services.engine.ledger import schedules as ledger_schedules
from switchyard.services.engine.schedules.rule import InvalidSchedule
from switchyard.services.engine.schedules.service import (
    MAX_SCHEDULES,
    ScheduleConflict,
    UnknownSchedule,
)
from tests.support.schedules import START, Time, add, book, entry, outcomes, runner
from tests.support.system import System


async def test_a_paused_schedule_neither_fires_nor_misses_due_times(
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


async def test_a_schedule_can_be_run_at_once_while_it_is_paused(system: System, time: Time) -> None:
    await add(system, entry())
    await book(system).pause("tidy")
    started = await book(system).run("tidy", "me")
    assert await runner(system).turn() == 1
    (fired,) = await book(system).history("tidy", 10)
    assert (fired.job_id, fired.note) == (started.job_id, "at once, by me")


async def test_an_invalid_or_repeated_schedule_is_not_added(system: System, time: Time) -> None:
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
    assert await book(system).list_all() == []
    assert MAX_SCHEDULES > 20


async def test_the_history_is_bounded(
    system: System, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_schedules, "MAX_FIRINGS", 5)
    await add(system, entry())
    firing = runner(system)
    for _ in range(12):
        time.now += 60
        await firing.turn()
    assert len(await outcomes(system)) <= 6
