"""Giving way: while hot jobs come in, bulk work goes in small steps and rests between them.

A publisher at full speed, the broker and the database keep every core busy, and a hot job then
waits for one at each of its dozen steps. Rests leave the cores to it for most of the time. How long
they are follows from how long the steps take: on a slow or busy machine bulk work gives way more.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from broker.lanes import HOT
from services.bulk import BulkSession
from services.ledger import Ledger

STEP = 50
"""Jobs that are sent together while hot jobs come in."""
REST = 3.0
"""How many times as long as a step the rest after it is."""
LONGEST_STEP = 1.0
"""Seconds. A step that took longer was waiting itself."""
RECENT = 5.0
"""Seconds since the last hot job for which bulk work gives way to the next one."""
LOOK = 0.5
"""Seconds between looks for hot jobs."""


class HotTraffic:
    """Whether hot jobs come in, and whose turn it is then. One for all that a process does."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._looked_at = self._free_at = float("-inf")
        self._comes_in = False
        self._step = 0.0

    async def comes_in(self) -> bool:
        """Whether a hot job was made within the last seconds. Raises LedgerUnavailable."""
        now = self._clock()
        if now - self._looked_at >= LOOK:
            self._looked_at = now
            newest = await self._ledger.newest_in(HOT.name)
            self._comes_in = newest is not None and time.time() - newest < RECENT
        return self._comes_in

    async def room(self, wanted: int) -> int:
        """How many jobs to send in the next turn, at most `wanted`. Raises LedgerUnavailable."""
        return min(wanted, STEP) if await self.comes_in() else wanted

    @property
    def why(self) -> str | None:
        """Why bulk work is slow, to be shown; None when it is not."""
        return "slow: hot jobs come in" if self._comes_in else None

    @asynccontextmanager
    async def turn(self, session: BulkSession) -> AsyncIterator[None]:
        """Wait until it is one's turn to send, which is at once while no hot jobs come in. Turns
        are given out ahead: several operations take no more of the time than one."""
        if not await self.comes_in():
            yield
            return
        now = self._clock()
        begins = max(now, self._free_at)
        # As if it took as long as the one before it, for those who ask meanwhile.
        self._free_at = expected = begins + self._step * (1 + REST)
        await session.sleep(begins - now)
        began = self._clock()
        yield
        ended = self._clock()
        self._step = min(ended - began, LONGEST_STEP)
        rested = ended + self._step * REST
        is_last = self._free_at == expected
        self._free_at = rested if is_last else max(self._free_at, rested)
