"""Slow bulk work down while hot jobs come in: it goes in small steps and rests in between.

A publisher at full speed, the broker and the database keep every core busy, and a hot job then
waits for one at each of its dozen steps. Pauses leave the cores to hot jobs for most of
the time. Their length follows from that of the steps: on a slow or busy machine, bulk work makes
more room.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from switchyard.services.engine.ledger.workers import WorkerRepository

JOBS_PER_STEP = 30
"""Jobs in one step while hot jobs come in."""
PAUSE_RATIO = 4.0
"""Length of the pause after a step, as a multiple of the step's duration."""
MAX_STEP_SECONDS = 0.25
"""Seconds that a step counts, at most: ten times what one takes. A longer one has waited for
something itself, and that must not keep others from their turns."""
HOT_TRAFFIC_TTL = 5.0
"""Seconds after a worker took a hot job in which bulk work stays slow, as another may come."""
TRAFFIC_POLL_INTERVAL = 0.5
"""Seconds between checks for hot jobs."""


class Sleeper(Protocol):
    """Waits on behalf of whoever wants a turn, such as a bulk operation's session."""

    async def sleep(self, seconds: float) -> None:
        """Wait, or raise what ends the work."""
        ...


class HotTraffic:
    """Watches for hot jobs and gives out turns while they come in. One for a whole process."""

    def __init__(
        self, workers: WorkerRepository, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._checking = asyncio.Lock()
        self._checked_at = float("-inf")
        self._is_active = False
        self._free_at = float("-inf")
        """Monotonic time at which the next turn can begin, when the turns before it are over."""
        self._step = 0.0
        """Seconds that the last step took."""

    async def is_active(self) -> bool:
        """Tell whether a worker took a hot job within the last seconds. Raises
        LedgerUnavailable."""
        async with self._checking:  # concurrent callers get the same result
            if self._clock() - self._checked_at >= TRAFFIC_POLL_INTERVAL:
                idle = await self._workers.hot_idle()
                self._is_active = idle is not None and idle < HOT_TRAFFIC_TTL
                self._checked_at = self._clock()
            return self._is_active

    async def allowance(self, count: int) -> int:
        """Return how many jobs to send in the next turn, at most `count`. Raises
        LedgerUnavailable."""
        return min(count, JOBS_PER_STEP) if await self.is_active() else count

    @property
    def why(self) -> str | None:
        """Say why bulk work is slow; None when it is not, or that was not checked lately."""
        is_known = self._clock() - self._checked_at < 2 * TRAFFIC_POLL_INTERVAL
        return "slow: hot jobs come in" if self._is_active and is_known else None

    @asynccontextmanager
    async def turn(self, session: Sleeper) -> AsyncIterator[None]:
        """Wait for a turn to send, which is at once while no hot jobs come in.

        Turns are given out ahead, each as long as the last step and its rest: several operations
        take no more of the time than one. Raises what `session.sleep` raises where the operation is
        not to go on.
        """
        if not await self.is_active():
            yield
            return
        begins = max(self._clock(), self._free_at)
        self._free_at = ends = begins + self._step * (1 + PAUSE_RATIO)
        try:
            while (left := begins - self._clock()) > 0 and await self.is_active():
                await session.sleep(min(left, TRAFFIC_POLL_INTERVAL))
        except BaseException:
            self._end_turn(ends, begins)
            raise
        began = self._clock()
        yield
        ended_at = self._clock()
        self._step = min(ended_at - began, MAX_STEP_SECONDS)
        self._end_turn(ends, ended_at + self._step * PAUSE_RATIO)

    def _end_turn(self, expected: float, really: float) -> None:
        """Correct the end of a turn that took longer or shorter than planned; later turns keep
        theirs."""
        is_last = self._free_at == expected
        self._free_at = really if is_last else max(self._free_at, really)
