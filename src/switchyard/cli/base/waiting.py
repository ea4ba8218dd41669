"""Waiting for jobs to end, by looking at the ledger gently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from switchyard.cli.base.errors import CommandFailed

if TYPE_CHECKING:
    from switchyard.services.ledger import Ledger
    from switchyard.services.records import State

FIRST_LOOK, LAST_LOOK = 0.05, 1.0
"""Seconds between looks: half as many again each time, from the first to the last."""
CHUNK = 500
"""Ids asked for at once."""


async def wait_for_end(
    ledger: Ledger,
    job_ids: Sequence[str],
    *,
    timeout: float | None = None,
    on_change: Callable[[str, State], None] = lambda job_id, state: None,
) -> dict[str, State]:
    """The states in which the jobs have ended. `on_change` is told of every state that is seen.

    Raises CommandFailed after `timeout` seconds.
    """
    from switchyard.services.records import FINISHED

    deadline = None if timeout is None else time.monotonic() + timeout
    seen: dict[str, State] = {}
    pause = FIRST_LOOK
    while True:
        open_ids = [job_id for job_id in job_ids if seen.get(job_id) not in FINISHED]
        for start in range(0, len(open_ids), CHUNK):
            found = await ledger.states(open_ids[start : start + CHUNK])
            for job_id, state in found.items():
                if seen.get(job_id) is not state:
                    seen[job_id] = state
                    on_change(job_id, state)
                    pause = FIRST_LOOK
        left = [job_id for job_id in open_ids if seen.get(job_id) not in FINISHED]
        if not left:
            return seen
        if deadline is not None and time.monotonic() >= deadline:
            last = str(seen.get(left[0], "unknown"))
            others = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise CommandFailed(
                f"not ended within {timeout:g} s: {left[0]} ({last}){others}; it goes on: "
                f"`jobctl jobs watch {left[0]}`"
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LAST_LOOK)
