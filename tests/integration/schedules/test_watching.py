"""Findings of the doctor and metrics about schedules."""

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


async def test_the_doctor_finds_overdue_and_refused_firings(system: System, time: Time) -> None:
    context = cast("DoctorContext", SimpleNamespace(need_ledger=lambda: system.ledger))
    assert await schedules_check(context) == []
    await add(system, entry(cron="0 13 10 3 *", grace=600))
    (healthy,) = await schedules_check(context)
    assert healthy.status == "ok"
    time.now = START - 30 + 3600 + 90  # due 90 s ago, and no scheduler was running
    (late,) = await schedules_check(context)
    assert (late.finding, "tidy" in late.detail) == (Finding.SCHEDULE_OVERDUE, True)
    schedule_runner = ScheduleRunner(
        system.settings, Registry(), system.ledger, system.wire, interval=0.05
    )
    await schedule_runner.turn()
    time.now += 120  # its row exists, its job does not
    (late,) = await schedules_check(context)
    assert late.finding is Finding.SCHEDULE_OVERDUE
    assert "no job type 'noop'" in late.detail
    time.now += 600
    await schedule_runner.turn()
    (refused,) = await schedules_check(context)
    assert refused.finding is Finding.SCHEDULE_REFUSED
    assert "no job type 'noop'" in refused.detail


async def test_a_schedule_that_always_fails_is_as_late_as_its_first_open_firing(
    system: System, time: Time
) -> None:
    """Each due time has a row of its own, so the newest row says nothing of the delay."""
    context = cast("DoctorContext", SimpleNamespace(need_ledger=lambda: system.ledger))
    await add(system, entry(cron="* * * * * *", grace=90))
    schedule_runner = ScheduleRunner(
        system.settings, Registry(), system.ledger, system.wire, interval=0.05
    )
    with capture_logs() as logs:
        for _ in range(9):
            time.now += 10
            await schedule_runner.turn()
    assert [line["event"] for line in logs] == ["schedule not fired yet"]
    (late,) = await schedules_check(context)
    assert late.finding is Finding.SCHEDULE_OVERDUE
    assert "mend what is said" in (late.remedy or "")
    for _ in range(4):  # the first firings are given up, later ones are still open
        time.now += 10
        await schedule_runner.turn()
    findings = {check.finding for check in await schedules_check(context)}
    assert findings == {Finding.SCHEDULE_OVERDUE, Finding.SCHEDULE_REFUSED}


async def test_the_metrics_show_how_late_schedules_are_with_bounded_labels(
    system: System, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_status, "MAX_SHOWN", 2)

    async def read_samples() -> dict[tuple[str, ...], float]:
        last_firings = await system.ledger.schedules.last_firings(settled=True)
        waiting = await system.ledger.schedules.waiting_firings()
        entries = await system.ledger.schedules.schedules()
        metrics = schedule_samples(entries, waiting, last_firings, time.now)
        return {
            (metric.name, *labels): value
            for metric, values in metrics
            for labels, value in values.items()
        }

    for name in "abcd":
        await add(system, entry(name))
    await book(system).pause("b")
    time.now += 90
    lateness = "switchyard_schedule_late_seconds"
    samples = await read_samples()
    assert {key: samples[key] for key in samples if key[0] == lateness} == {
        (lateness, "a"): 60,
        (lateness, "b"): 0,
        (lateness, "other"): 60,
    }
    await runner(system).turn()
    time.now += 5
    samples = await read_samples()
    last_fired = "switchyard_schedule_last_fired_seconds"
    assert {key: samples[key] for key in samples if key[0] == last_fired} == {
        (last_fired, "a"): 5,
        (last_fired, "other"): 5,
    }
    assert samples[lateness, "a"] == samples["switchyard_schedules_refused",] == 0
