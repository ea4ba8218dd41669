"""What a system does while there is nothing to do: each wake-up costs a fifth of a millisecond of
processor time, each visit to the ledger two."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.system import System, open_system

WINDOW = 3.0
"""Seconds, in which an idle worker gives one sign of life."""
MAX_WINDOWS = 8
MAX_TRANSACTIONS = 10
"""Of a worker and a scheduler, in WINDOW seconds. Six are looks for what is due."""
MAX_WAKE_UPS = 45
"""Of their loop, in WINDOW seconds."""


@asynccontextmanager
async def scheduling(system: System) -> AsyncIterator[None]:
    """As `jobctl scheduler` does, at its own pace."""
    scheduler = Scheduler(system.settings, system.registry, system.ledger)
    runner = BulkRunner(system.ledger, [], when_due=scheduler.bulk_due)
    async with asyncio.TaskGroup() as group:
        group.create_task(scheduler.run())
        group.create_task(runner.run())
        await scheduler.is_active.wait()
        try:
            yield
        finally:
            scheduler.stop()
            runner.stop()


def count_transactions(ledger: Ledger) -> Callable[[], int]:
    """Count from now on."""
    number = 0

    def count(_kind: str, _seconds: float, _well: bool) -> None:
        nonlocal number
        number += 1

    ledger.observe(count)
    return lambda: number


def count_wake_ups() -> Callable[[], int]:
    """Count, from now on, how often this loop has waited for something."""
    loop = cast("Any", asyncio.get_running_loop())
    selector: selectors.BaseSelector = loop._selector
    select, number = selector.select, 0

    def counted(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        nonlocal number
        number += timeout != 0
        return select(timeout)

    cast("Any", selector).select = counted
    return lambda: number


async def test_an_idle_worker_and_an_idle_scheduler_hardly_wake(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system, scheduling(system):
        worker = await system.start_worker()
        await worker.consuming()
        transactions, wake_ups = count_transactions(system.ledger), count_wake_ups()
        seen = []
        for _ in range(MAX_WINDOWS):  # what they do at their start goes on for a while
            before = transactions(), wake_ups()
            await asyncio.sleep(WINDOW)
            seen.append((transactions() - before[0], wake_ups() - before[1]))
            if seen[-1][0] <= MAX_TRANSACTIONS and seen[-1][1] <= MAX_WAKE_UPS:
                return
    raise AssertionError(f"never idle: transactions and wake-ups in {WINDOW:g} s: {seen}")
