"""Readings of the whole system that all pages share: what costs much is asked once for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Generic, TypeVar

import structlog
from fastapi import Depends, Request

from switchyard.api.state import ApiState
from switchyard.broker.errors import BrokerError
from switchyard.broker.lanes import retry_name
from switchyard.broker.task_supervisor import end_tasks
from switchyard.broker.wire.depths import ask_queues
from switchyard.services.common.errors import SwitchyardError
from switchyard.services.engine.monitoring.check import Diagnostic
from switchyard.services.engine.monitoring.doctor import diagnose
from switchyard.services.engine.monitoring.lane_report import Report, lane_report
from switchyard.services.engine.records.results import Gauges

T = TypeVar("T")
DOCTOR_INTERVAL = 30.0
LANES_INTERVAL = 1.5
GAUGES_INTERVAL = 5.0
"""Seconds for which a reading is shown again."""
MAX_GAUGES_AGE = 30.0
"""Seconds after which gauges are not shown any more."""
FIRST_TIMEOUT = 1.5
"""Seconds that a page waits for the first reading of a process, and in the place of one that is too
old."""


class Reading(Generic[T]):
    """Something that is asked every few seconds at most, beside the pages, while somebody looks."""

    def __init__(self, ask: Callable[[], Awaitable[T]], fresh_for: float) -> None:
        self._ask = ask
        self._fresh_for = fresh_for
        self._task: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        self.value: T | None = None
        """What was answered last; None where nothing ever was."""
        self.trouble: str | None = None
        """Why the last question was not answered."""

    @property
    def age(self) -> float | None:
        """How old the value is, in seconds."""
        return None if self.value is None else time.monotonic() - self._asked_at

    async def look(self, max_age: float = float("inf")) -> T | None:
        """Return the last value, and ask for the next one where that is old. Only for the first
        one of all, and in the place of one of more than `max_age` seconds, a moment is waited."""
        is_old = time.monotonic() - self._asked_at > self._fresh_for
        if is_old and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._read())
        is_wanted = self.trouble is None if self.age is None else self.age > max_age
        if is_wanted and self._task is not None:
            await asyncio.wait([self._task], timeout=FIRST_TIMEOUT)
        return self.value

    async def _read(self) -> None:
        try:
            self.value = await self._ask()
            self.trouble = None
        except (SwitchyardError, BrokerError) as error:
            self.value = None
            self.trouble = str(error)
            structlog.get_logger("dashboard").warning("reading failed", error=self.trouble)
        self._asked_at = time.monotonic()

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            await end_tasks(self._task)


class Readings:
    """The readings of a process."""

    def __init__(self, state: ApiState) -> None:
        self._state = state
        self.doctor: Reading[list[Diagnostic]] = Reading(self._ask_doctor, DOCTOR_INTERVAL)
        self.lanes: Reading[Report] = Reading(self._ask_lanes, LANES_INTERVAL)
        self._gauges: Reading[Gauges] = Reading(state.ledger.gauges.gauges, GAUGES_INTERVAL)
        self.retries: Reading[dict[float, int]] = Reading(self._ask_retries, LANES_INTERVAL)

    async def close(self) -> None:
        """Ask no more."""
        for each in (self.doctor, self.lanes, self.retries, self._gauges):
            await each.close()

    async def gauges(self) -> Gauges:
        """Return the ledger's gauges, of MAX_GAUGES_AGE seconds ago at most: to count what waits
        takes some tenths of a second where it is much. Raises LedgerUnavailable."""
        gauges, age = await self._gauges.look(MAX_GAUGES_AGE), self._gauges.age
        if gauges is None or age is None or age > MAX_GAUGES_AGE:
            gauges = await self._state.ledger.gauges.gauges()
        return gauges

    async def _ask_doctor(self) -> list[Diagnostic]:
        return [each async for each in diagnose(self._state.settings)]

    async def _ask_lanes(self) -> Report:
        self._state.require_broker()
        state = self._state
        return await lane_report(
            state.settings, state.registry, state.ledger, clock=state.ledger.clock.time
        )

    async def _ask_retries(self) -> dict[float, int]:
        """Return how many jobs wait for each delay, in seconds."""
        self._state.require_broker()
        settings = self._state.settings
        sizes = await ask_queues(
            settings.require_amqp_url(), [retry_name(delay) for delay in settings.retry_delays]
        )
        sizes_by_delay = {delay: sizes[retry_name(delay)] for delay in settings.retry_delays}
        return {delay: size.ready for delay, size in sizes_by_delay.items() if size is not None}


async def _readings(request: Request) -> Readings:
    readings: Readings = request.app.state.readings
    return readings


ReadingsOf = Annotated[Readings, Depends(_readings)]
