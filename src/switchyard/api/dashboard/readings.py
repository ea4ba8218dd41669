"""Readings of the whole system that all pages share: an expensive question is asked once for
all."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from statistics import quantiles
from typing import Annotated, Generic, TypeVar

import structlog
from fastapi import Depends, Request

from switchyard.api.state import ApiState
from switchyard.broker.errors import BrokerError
from switchyard.broker.lanes import retry_name
from switchyard.broker.task_supervisor import end_tasks
from switchyard.broker.wire.depths import query_queues
from switchyard.services.common.errors import SwitchyardError
from switchyard.services.engine.ledger.job_reads import JobReads
from switchyard.services.engine.monitoring.check import Diagnostic
from switchyard.services.engine.monitoring.doctor import diagnose
from switchyard.services.engine.monitoring.lane_report import LanesReport, make_lane_report
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.results import Gauges
from switchyard.services.engine.records.states import State

T = TypeVar("T")
DOCTOR_INTERVAL = 30.0
NOTICED_INTERVAL = 8.0
"""Seconds between two runs of the doctor's checks while pages notice one change after another: a
run takes some tenths of a second of processor time."""
NEW_FOR = 600.0
"""Seconds for which a finding counts as new."""
_DURATION = re.compile(r"\d[\d.,]* (?:ms|s|min|h|days?)\b")
LANES_INTERVAL = 1.5
GAUGES_INTERVAL = 5.0
RUN_TIMES_INTERVAL = 30.0
"""Seconds for which a reading is used before it is read again."""
MAX_AGE = 30.0
"""Seconds after that until a reading counts as too old to be shown."""
HEADS_WINDOW = 0.02
"""Seconds for which requests for heads of jobs are collected, to read them by one query."""
COMPARED_JOBS, MIN_COMPARED = 100, 5
"""How many of the latest succeeded jobs of its type a job is compared with, and the fewest that
are enough for it."""
COMPARED_AMONG = 5_000
"""Latest succeeded jobs of all types among which those are looked for."""
MAX_COMPARED_TYPES = 500
FIRST_TIMEOUT = 1.5
"""Seconds that a page waits for the first reading of a process, and for a new one when the last is
too old."""


class Reading(Generic[T]):
    """A value that is read in the background, every few seconds at most, while pages ask for it."""

    def __init__(self, ask: Callable[[], Awaitable[T]], fresh_for: float) -> None:
        self._ask = ask
        self._fresh_for = fresh_for
        self._task: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        self._max_age = fresh_for
        self.read_at: float | None = None
        """When the value was read, in seconds since the epoch; None where there is none."""
        self.value: T | None = None
        """The last value; None before the first one."""
        self.trouble: str | None = None
        """Error of the last attempt to read it; None where that succeeded."""

    async def look(self) -> T | None:
        """Return the last value, and begin to read the next one where it is old. Where there is no
        value, or it is too old to be shown, wait a moment for the next one; None if that does not
        come in time, or can't be read."""
        is_old = time.monotonic() - self._asked_at > self._max_age
        if is_old and (self._task is None or self._task.done()):
            self._max_age = self._fresh_for
            self._task = asyncio.create_task(self._read())
        if self._is_too_old and self._task is not None:
            await asyncio.wait([self._task], timeout=FIRST_TIMEOUT)
        return None if self._is_too_old else self.value

    def outdate(self, max_age: float = -1.0) -> None:
        """Have the next look begin to read the value again if it is older than `max_age` seconds,
        by default in any case, as after somebody has changed what it is about. Until it is read,
        the last one is shown."""
        self._max_age = min(self._max_age, max_age)

    @property
    def _is_too_old(self) -> bool:
        return time.monotonic() - self._asked_at > self._fresh_for + MAX_AGE

    async def _read(self) -> None:
        try:
            self.value = await self._ask()
            self.read_at = time.time()
            self.trouble = None
        except (SwitchyardError, BrokerError) as error:
            self.value = self.read_at = None
            self.trouble = str(error)
            structlog.get_logger("dashboard").warning("reading failed", error=self.trouble)
        self._asked_at = time.monotonic()

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            await end_tasks(self._task)


class RunHeads:
    """Reads heads of jobs and their runs (`JobReads.run_versions`): one query for all that pages
    ask for at about the same time."""

    def __init__(self, reads: JobReads) -> None:
        self._reads = reads
        self._job_ids: set[str] = set()
        self._next: asyncio.Task[dict[str, Hashable]] | None = None

    async def of(self, job_id: str) -> Hashable:
        """Return the head of a job; None for an unknown id. Raises LedgerUnavailable."""
        self._job_ids.add(job_id)
        if self._next is None:
            self._next = asyncio.create_task(self._read())
        return (await asyncio.shield(self._next)).get(job_id)

    async def _read(self) -> dict[str, Hashable]:
        await asyncio.sleep(HEADS_WINDOW)
        job_ids, self._job_ids, self._next = self._job_ids, set(), None
        return await self._reads.run_versions(job_ids)


class UsualRunTimes:
    """How long jobs of each type run, by the latest that have succeeded."""

    def __init__(self, reads: JobReads) -> None:
        self._reads = reads
        self._by_type: dict[str, Reading[tuple[float, float] | None]] = {}

    async def of(self, job_type: str) -> tuple[float, float] | None:
        """Return p50 and p99 in seconds, at most a minute old; None where there are too few jobs,
        or they can't be read."""
        reading = self._by_type.get(job_type)
        if reading is None:
            if len(self._by_type) >= MAX_COMPARED_TYPES:
                await self._by_type.pop(next(iter(self._by_type))).close()
            reading = Reading(partial(self._read, job_type), RUN_TIMES_INTERVAL)
            self._by_type[job_type] = reading
        run_times = await reading.look()
        if run_times is None and reading.read_at is not None:  # there may soon be enough
            self._by_type.pop(job_type, None)
            await reading.close()
        return run_times

    async def close(self) -> None:
        """Ask no more."""
        for each in self._by_type.values():
            await each.close()

    async def _read(self, job_type: str) -> tuple[float, float] | None:
        page = await self._reads.list_jobs(
            JobFilter(job_type=job_type, state=State.SUCCEEDED),
            limit=COMPARED_JOBS,
            examined=COMPARED_AMONG,
        )
        times = [
            each.finished_at - each.started_at
            for each in page.items
            if each.started_at is not None and each.finished_at is not None
        ]
        if len(times) < MIN_COMPARED:
            return None
        percentiles = quantiles(times, n=100, method="inclusive")
        return percentiles[49], percentiles[98]


class Readings:
    """All readings of a process."""

    def __init__(self, state: ApiState) -> None:
        self._state = state
        self.doctor: Reading[list[Diagnostic]] = Reading(self._ask_doctor, DOCTOR_INTERVAL)
        self.lanes: Reading[LanesReport] = Reading(self._ask_lanes, LANES_INTERVAL)
        self._gauges: Reading[Gauges] = Reading(state.ledger.gauges.gauges, GAUGES_INTERVAL)
        self.retries: Reading[dict[float, int]] = Reading(self._ask_retries, LANES_INTERVAL)
        self._signs: Hashable = None
        self._changed_at = float("-inf")
        self._found_at: dict[Hashable, float] = {}
        self.run_versions = RunHeads(state.ledger.job_reads)
        self.usual_run_times = UsualRunTimes(state.ledger.job_reads)

    async def close(self) -> None:
        """Ask no more."""
        for each in (
            self.doctor,
            self.lanes,
            self.retries,
            self._gauges,
            self.usual_run_times,
        ):
            await each.close()

    def notice(self, signs: Hashable) -> None:
        """Have the doctor's checks run where the signs of trouble that a page has read anyway are
        not those of the last time: at once after a time without changes, then less often."""
        if self._signs is not None and signs != self._signs:
            now = time.monotonic()
            is_first = now - self._changed_at > DOCTOR_INTERVAL
            self.doctor.outdate(0.0 if is_first else NOTICED_INTERVAL)
            self._changed_at = now
        self._signs = signs

    def new_at(self, diagnostic: Diagnostic) -> float:
        """Return when a finding of the last NEW_FOR seconds was found, in seconds since the epoch;
        0 for an older one, and for one that was there at the first reading."""
        found_at = self._found_at.get(_key_of(diagnostic), 0.0)
        return found_at if time.time() - found_at < NEW_FOR else 0.0

    async def gauges(self) -> Gauges:
        """Return the ledger's gauges, at most half a minute old: counting many waiting jobs takes
        some tenths of a second. Raises LedgerUnavailable."""
        gauges = await self._gauges.look()
        return await self._state.ledger.gauges.gauges() if gauges is None else gauges

    async def _ask_doctor(self) -> list[Diagnostic]:
        diagnostics = [each async for each in diagnose(self._state.settings)]
        found_at = 0.0 if self.doctor.read_at is None else time.time()
        self._found_at = {
            key: self._found_at.get(key, found_at)
            for key in (_key_of(each) for each in diagnostics if each.finding is not None)
        }
        return diagnostics

    async def _ask_lanes(self) -> LanesReport:
        self._state.require_broker()
        state = self._state
        return await make_lane_report(
            state.settings, state.registry, state.ledger, clock=state.ledger.clock.time
        )

    async def _ask_retries(self) -> dict[float, int]:
        """Return how many jobs wait for each delay, in seconds."""
        self._state.require_broker()
        settings = self._state.settings
        sizes = await query_queues(
            settings.require_amqp_url(), [retry_name(delay) for delay in settings.retry_delays]
        )
        sizes_by_delay = {delay: sizes[retry_name(delay)] for delay in settings.retry_delays}
        return {delay: size.ready for delay, size in sizes_by_delay.items() if size is not None}


def _key_of(diagnostic: Diagnostic) -> Hashable:
    """Return what a finding is known by: another thing to do makes it a new one."""
    return diagnostic.finding, diagnostic.name, _DURATION.sub("", diagnostic.remedy)


async def _readings(request: Request) -> Readings:
    readings: Readings = request.app.state.readings
    return readings


ReadingsOf = Annotated[Readings, Depends(_readings)]
