"""Fire schedules in the active scheduler: decide which due times are fired, and publish their jobs.

These are two steps, so that no job is lost or published twice. First a transaction moves the entry
on to its next due time and writes a row for the present one; only one of many schedulers succeeds.
Then the row's job is published until it is accepted, with an id derived from entry and due time: if
the scheduler dies in between, the next one publishes the same job.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

import structlog

from switchyard.broker.errors import NeverTaken, PublishError
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.errors import SwitchyardError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.schedules import (
    PUT_OFF,
    Firing,
    FiringOutcome,
    ScheduleRecord,
)
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.file import fingerprint_of
from switchyard.services.engine.schedules.rule import CATCH_UP_WINDOW, InvalidSchedule, with_jitter
from switchyard.services.engine.schedules.service import Schedules, due_firing

BATCH = 200
"""Entries that one turn reads, at most, and firings."""
CLOCK_CHECK_INTERVAL = 60.0
"""Seconds between checks for due times that were moved on while the ledger's clock was ahead."""
FILE_CHECK_INTERVAL = 1.0
"""Seconds between checks whether the file of schedules has changed."""
RETRY_INTERVAL = 5.0
"""Seconds until a job that was refused is published again."""
MAX_LOGGED = 20
"""Names of schedules in one log line, at most."""


class ScheduleRunner:
    """Fires the entries of one ledger, for as long as its scheduler is the active one."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        publisher: Publisher,
        *,
        interval: float,
        when_due: asyncio.Event | None = None,
    ) -> None:
        """`interval`: seconds between two turns, at least. `when_due` is set when an entry is due;
        without it, a turn is made after each interval."""
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._jobs = JobPublisher(registry, ledger, publisher, fair_from=settings.fair_from)
        self._interval = interval
        self._when_due = when_due
        self._refused: dict[tuple[str, float], tuple[float, str]] = {}
        """When the job of a firing is published again, and why it was refused, by schedule and due
        time."""
        self._loaded: tuple[tuple[int, ...] | None] | None = None
        """The fingerprint of the file that was loaded last, in a tuple; None before the first."""
        self._logged: set[tuple[str, str]] = set()
        """Problems that were logged, by schedule and text."""
        self._log = structlog.get_logger("schedules")

    async def run(self) -> None:
        """Fire entries until cancelled, and load those of the file whenever it changes."""
        checked_at = -math.inf
        while True:
            try:
                await self.load_if_changed()
                if time.monotonic() - checked_at > CLOCK_CHECK_INTERVAL:
                    await self.correct_due_times()
                    checked_at = time.monotonic()
                await self.turn()
            except LedgerError as error:
                self._log.warning("ledger unreachable", error=str(error))
                await asyncio.sleep(self._interval)
            else:
                await self._await_due()

    async def _await_due(self) -> None:
        """Wait until the next turn is due, or it is time to check the file and the clock."""
        await asyncio.sleep(self._interval)
        if self._when_due is None:
            return
        pause = CLOCK_CHECK_INTERVAL if self._settings.schedules is None else FILE_CHECK_INTERVAL
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._when_due.wait()
        self._when_due.clear()

    async def turn(self) -> int:
        """Decide about all entries that are due, and publish the jobs of those that are fired.
        Return the number of jobs. Raises LedgerError."""
        due, now = await self._ledger.schedules.due_schedules(BATCH)
        for entry in due:
            await self._decide(entry, now)
        fired = 0
        for firing, entry in await self._ledger.schedules.open_firings(BATCH):
            fired += await self._fire(firing, entry, now)
        return fired

    async def correct_due_times(self) -> list[str]:
        """Move due times back that were moved on too far while the ledger's clock was ahead, and
        return the names of these schedules. Nothing is fired again. Raises LedgerError."""
        entries = await self._ledger.schedules.schedules()
        _, now = await self._ledger.schedules.due_schedules(1)
        moved = []
        for entry in entries:
            if entry.paused_at is not None:
                continue
            try:
                due = ScheduleEntry.from_record(entry).rule().after(now)
            except InvalidSchedule:
                continue  # logged when it is due
            fire_at = with_jitter(entry.name, due, entry.jitter)
            if entry.next_at > due and await self._ledger.schedules.record_due(
                entry, (), due, fire_at
            ):
                moved.append(entry.name)
        if moved:
            self._log.warning(
                "schedules moved back: the clock was ahead", schedules=moved[:MAX_LOGGED]
            )
        return moved

    async def load_if_changed(self) -> None:
        """Load the default entries and those of the file, if the file has changed or nothing was
        loaded yet. Raises LedgerError."""
        path = self._settings.schedules
        # Taken before the file is read: a write in between is seen as a change by the next turn.
        fingerprint = None if path is None else await asyncio.to_thread(fingerprint_of, path)
        if (fingerprint,) == self._loaded:
            return
        try:
            changed, removed = await Schedules(self._ledger, self._registry).load(self._settings)
        except LedgerError:
            raise
        except SwitchyardError as error:
            # The entries that were loaded before are still fired.
            self._log.error("schedule file not loaded", error=str(error))
        else:
            if changed or removed:
                self._log.info(
                    "schedules loaded", changed=changed[:MAX_LOGGED], gone=removed[:MAX_LOGGED]
                )
        self._loaded = (fingerprint,)

    async def _decide(self, entry: ScheduleRecord, now: float) -> None:
        """Record which of the entry's due times until now are fired, and which are missed."""
        name = entry.name
        try:
            rule = ScheduleEntry.from_record(entry).rule()
            # In a thread: after days without a scheduler there are thousands of due times.
            passed = await asyncio.to_thread(
                rule.due_between,
                entry.next_at,
                now,
                jitter=entry.jitter,
                grace=entry.grace,
                name=name,
            )
        except InvalidSchedule as error:  # such as a time zone that an upgrade of this host removed
            self._log_problem(name, "schedule can't be fired", str(error))
            return
        ids = await self._ledger.system.job_ids()
        firings = [due_firing(ids, name, due, now) for due in passed.fired]
        if passed.missed is not None:
            first, number = passed.missed
            late = now - with_jitter(name, first, entry.jitter)
            why = (
                "the latest of the times that passed meanwhile is fired instead"
                if passed.fired
                else f"more than the grace of {entry.grace:g} s"
            )
            note = f"no scheduler was there for {late:,.0f} s: {why}"
            firings.append(Firing(name, first, FiringOutcome.MISSED, None, now, number, note))
        fire_at = with_jitter(name, passed.next_at, entry.jitter)
        if not await self._ledger.schedules.record_due(entry, firings, passed.next_at, fire_at):
            return  # another scheduler has decided, or the entry was changed
        if passed.missed is not None:
            self._log.warning("schedule missed", schedule=name, times=passed.missed[1])

    async def _fire(self, firing: Firing, entry: ScheduleRecord, now: float) -> bool:
        """Publish the firing's job; return whether it was accepted."""
        key = (firing.schedule, firing.due_at)
        retry_at, why = self._refused.get(key, (0.0, ""))
        if now < retry_at:
            return False
        late = now - with_jitter(entry.name, firing.due_at, entry.jitter)
        if why and late > max(entry.grace, CATCH_UP_WINDOW):
            await self._give_up(firing, now, why)
            return False
        try:
            job = ScheduleEntry.from_record(entry).prepare_job(
                self._registry, remote=entry.remote, job_id=firing.job_id
            )
            await self._jobs.publish_one(job)
        except (LedgerError, asyncio.CancelledError):
            raise
        except NeverTaken as error:
            await self._give_up(firing, now, str(error))
            return False
        except (SwitchyardError, PublishError) as error:
            self._refused[key] = (now + RETRY_INTERVAL, str(error))
            if str(error) != why:  # people can read in the ledger why the firing is late
                note = f"{PUT_OFF}{error}"
                await self._ledger.schedules.settle_firing(
                    firing, FiringOutcome.DUE, firing.noted_at, note
                )
            self._log_problem(entry.name, "schedule not fired yet", str(error))
            return False
        self._refused.pop(key, None)
        self._logged = {each for each in self._logged if each[0] != entry.name}
        await self._ledger.schedules.settle_firing(firing, FiringOutcome.FIRED, now, firing.note)
        self._log.info("schedule fired", schedule=entry.name, job_id=firing.job_id)
        return True

    async def _give_up(self, firing: Firing, now: float, why: str) -> None:
        """Record that the firing was refused for good."""
        self._log.error("schedule firing given up", schedule=firing.schedule, error=why)
        await self._ledger.schedules.settle_firing(firing, FiringOutcome.REFUSED, now, why)
        self._refused.pop((firing.schedule, firing.due_at), None)

    def _log_problem(self, name: str, event: str, text: str) -> None:
        """Log a problem, but only once until the schedule fires: it is retried every few
        seconds."""
        if (name, text) not in self._logged:
            self._logged.add((name, text))
            self._log.error(event, schedule=name, error=text)
