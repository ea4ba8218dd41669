"""What the doctor and the metrics say of schedules."""

from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.monitoring import schedule_status
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.jobs import schedules as schedules_check
from switchyard.services.engine.monitoring.schedule_status import schedule_samples
from switchyard.services.engine.schedules.firing import ScheduleRunner
from tests.support.schedules import START, Time, add, book, entry, runner
from tests.support.system import System


async def test_the_doctor_finds_what_was_due_and_what_was_refused(
    system: System, time: Time
) -> None:
    seen = cast("DoctorContext", SimpleNamespace(need_ledger=lambda: system.ledger))
    assert await schedules_check(seen) == []
    await add(system, entry(cron="0 13 10 3 *", grace=600))
    (well,) = await schedules_check(seen)
    assert well.status == "ok"
    time.now = START - 30 + 3600 + 90  # due 90 s ago, and nobody was there
    (late,) = await schedules_check(seen)
    assert (late.finding, "tidy" in late.detail) == (Finding.SCHEDULE_OVERDUE, True)
    firing = ScheduleRunner(system.settings, Registry(), system.ledger, system.wire, interval=0.05)
    await firing.turn()
    time.now += 120  # its row is there, and its job is not
    (late,) = await schedules_check(seen)
    assert late.finding is Finding.SCHEDULE_OVERDUE
    assert "no job type 'noop'" in late.detail
    time.now += 600
    await firing.turn()
    (refused,) = await schedules_check(seen)
    assert refused.finding is Finding.SCHEDULE_REFUSED
    assert "no job type 'noop'" in refused.detail


async def test_one_that_is_due_every_second_and_always_refused_is_as_late_as_its_first(
    system: System, time: Time
) -> None:
    """Each due time has a row of its own, and the last is always a new one."""
    seen = cast("DoctorContext", SimpleNamespace(need_ledger=lambda: system.ledger))
    await add(system, entry(cron="* * * * * *", grace=90))
    firing = ScheduleRunner(system.settings, Registry(), system.ledger, system.wire, interval=0.05)
    with capture_logs() as said:
        for _ in range(9):
            time.now += 10
            await firing.turn()
    assert [each["event"] for each in said] == ["schedule not fired yet"]
    (late,) = await schedules_check(seen)
    assert late.finding is Finding.SCHEDULE_OVERDUE
    assert "mend what is said" in (late.remedy or "")
    for _ in range(4):  # the first are given up, and others are open
        time.now += 10
        await firing.turn()
    found = {each.finding for each in await schedules_check(seen)}
    assert found == {Finding.SCHEDULE_OVERDUE, Finding.SCHEDULE_REFUSED}


async def test_the_metrics_tell_how_late_schedules_are_with_bounded_labels(
    system: System, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_status, "MAX_SHOWN", 2)

    async def shown() -> dict[tuple[str, ...], float]:
        last = await system.ledger.schedules.last_firings(settled=True)
        waiting = await system.ledger.schedules.waiting_firings()
        entries = await system.ledger.schedules.schedules()
        found = schedule_samples(entries, waiting, last, time.now)
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
