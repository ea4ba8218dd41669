"""Batches permit requests: jobs whose limit was full recently wait up to 25 ms and ask together.

Each request locks the limits' rows and occupies the ledger's writer, for which jobs without limits
wait, too. A job that will probably be refused can wait; one that may get a permit asks at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from switchyard.services.engine.records.limits import PermitDemand

REFUSAL_MEMORY_SECONDS = 1.0
"""Seconds for which a limit counts as full after a refusal."""
MAX_BATCH_WAIT = 0.025
"""Seconds that a job's request for permits waits for others to be sent with."""
SLOTS_PER_WAITING_JOB = 4
"""One in so many slots may be taken by a job whose request waits for others."""
MAX_FULL_LIMITS = 10_000
"""Full limits that are remembered, at most; each key counts."""


class PermitRequestBatcher:
    """Batches the permit requests of one worker, which runs `slots` jobs at once."""

    def __init__(self, slots: int) -> None:
        self._max_waiting = slots // SLOTS_PER_WAITING_JOB
        self._waiting = 0
        self._released: asyncio.Event | None = None
        """Set to let the waiting jobs ask."""
        self._full_until: dict[tuple[str, str], float] = {}
        """By name and key of a limit: until when it counts as full, on the monotonic clock."""

    async def wait_to_ask(self, needs: Sequence[PermitDemand]) -> None:
        """Wait until the job may ask: not at all if none of its limits is known to be full."""
        moment = time.monotonic()
        if not any(self._full_until.get((each.name, each.key), 0.0) > moment for each in needs):
            self.release_waiting()
            return
        self._waiting += 1
        if self._waiting >= self._max_waiting:
            self.release_waiting()
            return
        if self._released is None:
            self._released = asyncio.Event()
            asyncio.get_running_loop().call_later(MAX_BATCH_WAIT, self._release_if, self._released)
        await self._released.wait()

    def release_waiting(self) -> None:
        """Let all jobs that wait here ask now."""
        self._waiting = 0
        if self._released is not None:
            self._released.set()
            self._released = None

    def _release_if(self, event: asyncio.Event) -> None:
        if self._released is event:
            self.release_waiting()

    def mark_full(self, name: str, key: str) -> None:
        """Let jobs of that limit wait for others from now on."""
        if len(self._full_until) >= MAX_FULL_LIMITS:
            self._full_until.clear()  # their next requests are sent at once
        self._full_until[name, key] = time.monotonic() + REFUSAL_MEMORY_SECONDS

    def mark_free(self, needs: Iterable[PermitDemand]) -> None:
        """Let jobs of these limits ask at once again."""
        for each in needs:
            self._full_until.pop((each.name, each.key), None)
