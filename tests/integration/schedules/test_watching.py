"""What the doctor and the metrics say of schedules."""

from types import SimpleNamespace
from typing import cast

import pytest

from switchyard.services.jobs.registry import Registry
from switchyard.services.monitoring import schedule_status
from switchyard.services.monitoring.check import Finding
from switchyard.services.monitoring.checks.examined import Examined
from switchyard.services.monitoring.checks.schedules import schedules as schedules_check
from switchyard.services.monitoring.schedule_status import schedule_samples
from switchyard.services.schedules.firing import ScheduleRunner
from tests.support.schedules import START, Time, add, book, entry, runner
from tests.support.system import System


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
