"""Batches permit requests: jobs whose limit was full recently wait up to 25 ms and ask together.

Each request locks the limits' rows and takes a turn at writing to the ledger, for which jobs
without limits wait, too; and a job that will be refused is in no hurry. One that may get a permit
asks at once.
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
"""Fraction of the slots, as 1 in SLOTS_PER_WAITING_JOB, that may be taken by jobs whose requests
wait for others."""
MAX_KNOWN = 10_000
"""Limits, each key of one by itself, that are known to be full."""


class PermitRequestBatcher:
    """Batches the permit requests of one worker, which runs `slots` jobs at once."""

    def __init__(self, slots: int) -> None:
        self._max_waiting = slots // SLOTS_PER_WAITING_JOB
        self._waiting = 0
        self._released: asyncio.Event | None = None
        """Set when the jobs that wait here are to ask."""
        self._full: dict[tuple[str, str], float] = {}
        """By name and key of a limit: until when it counts as full, on the monotonic clock."""

    async def wait_to_ask(self, needs: Sequence[PermitDemand]) -> None:
        """Wait until it is time to ask: not at all where the limits may have a permit left."""
        moment = time.monotonic()
        if not any(self._full.get((each.name, each.key), 0.0) > moment for each in needs):
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

    def note_full(self, name: str, key: str) -> None:
        """Let jobs of that limit wait for others from now on."""
        if len(self._full) >= MAX_KNOWN:
            self._full.clear()  # then they ask at once, once
        self._full[name, key] = time.monotonic() + REFUSAL_MEMORY_SECONDS

    def note_room(self, needs: Iterable[PermitDemand]) -> None:
        """Let jobs of these limits ask at once again."""
        for each in needs:
            self._full.pop((each.name, each.key), None)
