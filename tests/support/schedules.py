"""Schedules of a test's system, by a clock that the test sets."""

from datetime import UTC, datetime
from typing import Any

from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.firing import ScheduleRunner
from switchyard.services.engine.schedules.service import Schedules
from tests.support.system import System

START = datetime(2026, 3, 10, 12, 0, 30, tzinfo=UTC).timestamp()


class Time:
    """The time of the ledger's database for schedules, as the test sets it."""

    def __init__(self) -> None:
        self.now = START

    def at(self, moment: datetime) -> None:
        self.now = moment.timestamp()


def runner(system: System, **settings: Any) -> ScheduleRunner:
    runner_settings = system.settings.model_copy(update=settings)
    return ScheduleRunner(
        runner_settings, system.registry, system.ledger, system.wire, interval=0.05
    )


def book(system: System) -> Schedules:
    return Schedules(system.ledger, system.registry)


def entry(name: str = "tidy", cron: str = "* * * * *", **changes: Any) -> ScheduleEntry:
    return ScheduleEntry.from_fields({"name": name, "cron": cron, "job": "hot.noop"} | changes)


async def add(system: System, *entries: ScheduleEntry) -> None:
    for each in entries:
        await book(system).add(each, remote=False, created_by="test")


async def outcomes(system: System, name: str = "tidy") -> list[tuple[float, str, int]]:
    """Return the outcomes of due times (after START, in seconds), oldest first."""
    return [
        (each.due_at - START, str(each.outcome), each.times)
        for each in reversed(await book(system).history(name, 500))
    ]
