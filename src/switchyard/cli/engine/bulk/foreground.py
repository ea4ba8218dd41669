"""Run a bulk operation in the foreground: in this process, with its progress on the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from switchyard.cli.base.output import console, say

if TYPE_CHECKING:
    from switchyard.services.engine.bulk.session import BulkHandler
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkHold, BulkOperation

POLL_INTERVAL = 0.25
NICENESS = 10
"""Added to the niceness of the process: others on the machine are more urgent."""


async def run_in_foreground(
    ledger: Ledger,
    handlers: Sequence[BulkHandler],
    start: Callable[[BulkHold], Awaitable[BulkOperation]],
    *,
    counted: str,
    stop: Callable[[str], Any],
) -> BulkOperation:
    """Run an operation in this process until it ends, and return its record.

    `start` starts or resumes it, with the hold that keeps other processes from it; the handler of
    its kind runs it. `counted` is the count that is shown as its progress. At SIGINT or SIGTERM,
    the coroutine `stop(id)` ends or pauses it."""
    from switchyard.cli.base.long_running import settle_memory
    from switchyard.services.engine.bulk import control as bulk_control
    from switchyard.services.engine.bulk.runner import BulkRunner
    from switchyard.services.engine.records.bulk import ACTIVE

    settle_memory()
    give_way()
    runner = BulkRunner(ledger, handlers)
    operation = await start(runner.hold)
    stopping: set[asyncio.Task[Any]] = set()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(
            number, lambda: stopping.add(asyncio.create_task(stop(operation.id)))
        )
    running = asyncio.create_task(runner.run_one(operation.id))
    try:
        with _showing_progress(operation.kind, counted) as show:
            while not running.done():
                show(await bulk_control.require_bulk(ledger, operation.id))
                await asyncio.wait({running}, timeout=POLL_INTERVAL)
        try:
            return await running
        except bulk_control.BulkConflict:
            say(f"{operation.id} is run by another process; watching it")
        with _showing_progress(operation.kind, counted) as show:
            while (seen := await bulk_control.require_bulk(ledger, operation.id)).state in ACTIVE:
                show(seen)
                await asyncio.sleep(POLL_INTERVAL)
        return seen
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await asyncio.gather(*stopping, return_exceptions=True)


def give_way() -> None:
    """Give the workers and the broker of this machine precedence from now on."""
    with suppress(OSError):
        os.nice(NICENESS)


@contextmanager
def _showing_progress(kind: str, counted: str) -> Iterator[Callable[[BulkOperation], None]]:
    """Show an operation on stderr: as a bar on a terminal; elsewhere, what it waits for, a line
    whenever that changes."""
    screen = console(stderr=True)
    last_note: str | None = None

    def say_note(operation: BulkOperation) -> None:
        nonlocal last_note
        if operation.note is not None and operation.note != last_note:
            say(f"{operation.id} is {operation.state}: {operation.note}")
        last_note = operation.note

    if not screen.is_terminal:
        yield say_note
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn(kind),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(kind, total=None, text="")

        def show(operation: BulkOperation) -> None:
            note = f": {operation.note}" if operation.note else ""
            counts = operation.counts
            bar.update(
                task,
                completed=counts.get(counted, 0),
                total=counts.get("total"),
                text=operation.state + note,
            )

        yield show
