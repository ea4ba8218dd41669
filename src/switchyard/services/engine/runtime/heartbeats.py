"""Send the heartbeats of a process that runs jobs: often while it has some, rarely while it has
none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from switchyard.services.engine.monitoring.worker_status import beat_interval


async def keep_beating(
    beat: Callable[[], Awaitable[None]],
    takeover_after: float,
    *,
    is_busy: Callable[[], bool],
    began: asyncio.Event,
) -> NoReturn:
    """Call `beat` for ever. `began` is set when a job begins, even if it ends at once. The first
    heartbeat follows one busy interval later, as the claim of the job has told the ledger the same.
    Raises the errors of `beat`."""
    busy, idle = (beat_interval(takeover_after, idle=each) for each in (False, True))
    while True:
        if not is_busy():
            with suppress(TimeoutError):
                async with asyncio.timeout(idle - busy):
                    await began.wait()
        began.clear()
        await asyncio.sleep(busy)
        await beat()
