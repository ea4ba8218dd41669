"""Remove many rows in transactions so short that nobody waits for them, and that make way for hot
jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.retention import Removal

TARGET_SECONDS = 0.03
"""Seconds that a transaction should take; a longer one makes the next one smaller."""
LIMIT_SECONDS = 0.05
"""Seconds that no transaction should exceed: on SQLite, claims wait for it."""
FIRST_STEP, MAX_STEP = 100, 1000
"""Rows of the first transaction, and of the largest."""
MIN_STEP = 20
"""Rows of the smallest transaction. On a busy machine, even the smallest takes its time, and many
small ones would only add to the load. Twenty rows take little time even if each has a MiB."""
MIN_STEP_ON_SERVER = 200
"""The same for PostgreSQL, where the removal of ended rows blocks nobody. With twenty, rows came
faster than they were removed in a simulated year of a busy system."""


class TimedResult(Protocol):
    """Result of one transaction."""

    @property
    def seconds(self) -> float:
        """Seconds that it took."""
        ...


ResultT = TypeVar("ResultT", bound=TimedResult)


class StepSize:
    """Chooses the number of rows of the next transaction by the duration of the last ones."""

    def __init__(
        self, smallest: int = MIN_STEP, *, first: int = FIRST_STEP, largest: int = MAX_STEP
    ) -> None:
        self._smallest, self._largest = smallest, largest
        self.rows = first
        self.longest = 0.0
        """Seconds of the longest transaction."""
        self.steps = 0
        """Transactions so far."""
        self.too_long = 0
        """Those that took more than LIMIT_SECONDS."""

    def adapt(self, seconds: float) -> None:
        """Choose the next size, after a transaction that took `seconds`."""
        self.longest = max(self.longest, seconds)
        self.steps += 1
        self.too_long += seconds > LIMIT_SECONDS
        if seconds > TARGET_SECONDS:
            self.rows = max(self._smallest, int(self.rows * 0.8 * TARGET_SECONDS / seconds))
        elif seconds < TARGET_SECONDS / 2:
            self.rows = min(self._largest, self.rows + self.rows // 4 + 1)


class _Sleeper:
    """What `HotTraffic.turn` sleeps with here: nothing ends the work while it waits."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SmallSteps:
    """Runs transactions while no hot jobs are busy, and rests after each as long as it took."""

    def __init__(self, traffic: HotTraffic, size: StepSize | None = None) -> None:
        self._traffic = traffic
        self.size = size or StepSize()
        self._sleeper = _Sleeper()

    @classmethod
    def yielding_to_hot_jobs(cls, ledger: Ledger) -> SmallSteps:
        """Return steps that make way for the hot jobs of this ledger."""
        return cls(HotTraffic(ledger.workers))

    async def run_step(self, transaction: Callable[[int], Awaitable[ResultT]]) -> ResultT:
        """Run one transaction, with the number of rows that it may take. Raises what `transaction`
        raises, LedgerUnavailable."""
        async with self._traffic.turn(self._sleeper):
            result = await transaction(self.size.rows)
        self.size.adapt(result.seconds)
        await asyncio.sleep(result.seconds)
        return result

    async def remove_all(self, remove: Callable[[int], Awaitable[Removal]]) -> Counter[str]:
        """Remove until nothing is left. Return the number of removed rows, by table. Raises what
        `remove` raises, LedgerUnavailable."""
        rows: Counter[str] = Counter()
        while True:
            removal = await self.run_step(remove)
            rows += removal.rows
            if removal.is_complete:
                return rows
