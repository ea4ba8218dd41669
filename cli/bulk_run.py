"""A redrive or purge run in this process, with a progress bar."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cli.output import progress_bar, say

if TYPE_CHECKING:
    from services.bulk import BulkHandler
    from services.ledger import BulkOperation, Ledger

LOOK_SECONDS = 0.25
NICE = 10
"""What it adds to its niceness: what it shares its machine with is more urgent."""


async def run_here(
    ledger: Ledger,
    operation: BulkOperation,
    handler: BulkHandler,
    *,
    counted: str,
    stop: Callable[[], Any],
) -> BulkOperation:
    """Run it until it ends; gives its record then. The bar shows the count of that name; SIGINT
    and SIGTERM call `stop`, whose coroutine ends it."""
    from cli.long_running import settle_memory
    from services import bulk, bulk_control
    from services.ledger.bulk_operations import ACTIVE

    settle_memory()
    give_way()
    runner = bulk.BulkRunner(ledger, [handler])
    stopping: set[asyncio.Task[Any]] = set()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: stopping.add(asyncio.create_task(stop())))
    running = asyncio.create_task(runner.run_one(operation.id))
    try:
        with progress_bar(handler.kind) as show:
            while not running.done():
                seen = await bulk_control.require_bulk(ledger, operation.id)
                show(*_shown(seen, counted))
                await asyncio.wait({running}, timeout=LOOK_SECONDS)
        try:
            return await running
        except bulk_control.BulkConflict:
            say(f"{operation.id} is run by another process; watching it")
        with progress_bar(handler.kind) as show:
            while (seen := await bulk_control.require_bulk(ledger, operation.id)).state in ACTIVE:
                show(*_shown(seen, counted))
                await asyncio.sleep(LOOK_SECONDS)
        return seen
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await asyncio.gather(*stopping, return_exceptions=True)


def give_way() -> None:
    """Let the workers and the broker of this machine go first from now on."""
    with suppress(OSError):
        os.nice(NICE)


def _shown(operation: BulkOperation, counted: str) -> tuple[int, int | None, str]:
    """An operation for a progress bar."""
    counts = operation.counts
    text = f"{operation.state}: {operation.note}" if operation.note else operation.state
    return counts.get(counted, 0), counts.get("total"), text
