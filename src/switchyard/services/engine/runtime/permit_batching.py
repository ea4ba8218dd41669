"""Jobs that will hardly find room ask for it together.

Each time the ledger is asked it takes the limits' rows and the writer's turn, from jobs without
limits, too; and a job that is put off is in no hurry. One that may have room asks at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from switchyard.services.engine.records.limits import PermitDemand

REFUSAL_MEMORY_SECONDS = 1.0
"""Seconds for which a limit counts as full after it was found so."""
MAX_BATCH_WAIT = 0.025
"""Seconds that a job waits for others to ask with."""
SHARE = 4
"""One slot in so many may be taken by jobs that wait for others to ask with."""
MAX_KNOWN = 10_000
"""Limits, each key of one by itself, that are known to be full."""


class PermitRequestBatcher:
    """Those of one worker that are about to ask. `slots` is how many jobs it runs at once."""

    def __init__(self, slots: int) -> None:
        self._most = slots // SHARE
        self._here = 0
        self._leave: asyncio.Event | None = None
        """Of those that are here."""
        self._full: dict[tuple[str, str], float] = {}
        """Until when a limit counts as full, on the monotonic clock."""

    async def join(self, needs: Sequence[PermitDemand]) -> None:
        """Returns when it is time to ask: at once where there may be room."""
        moment = time.monotonic()
        if not any(self._full.get((each.name, each.key), 0.0) > moment for each in needs):
            self.leave()
            return
        self._here += 1
        if self._here >= self._most:
            self.leave()
            return
        if self._leave is None:
            self._leave = asyncio.Event()
            asyncio.get_running_loop().call_later(MAX_BATCH_WAIT, self._leave_if, self._leave)
        await self._leave.wait()

    def leave(self) -> None:
        """Somebody asks now: the others ask with it."""
        self._here = 0
        if self._leave is not None:
            self._leave.set()
            self._leave = None

    def _leave_if(self, mine: asyncio.Event) -> None:
        if self._leave is mine:
            self.leave()

    def found_full(self, name: str, key: str) -> None:
        if len(self._full) >= MAX_KNOWN:
            self._full.clear()  # then they ask at once, once
        self._full[name, key] = time.monotonic() + REFUSAL_MEMORY_SECONDS

    def found_room(self, needs: Iterable[PermitDemand]) -> None:
        for each in needs:
            self._full.pop((each.name, each.key), None)
