"""An idle system hardly wakes: each wake-up costs a fifth of a millisecond of processor time, each
visit to the ledger two."""

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
"""Seconds in which an idle worker gives one sign of life."""
MAX_WINDOWS = 8
"""Windows within which the system must have become idle."""
MAX_TRANSACTIONS = 10
"""Transactions of a worker and a scheduler in WINDOW seconds. Six of them look for due jobs."""
MAX_WAKE_UPS = 45
"""Wake-ups of their event loop in WINDOW seconds."""


@asynccontextmanager
async def running_scheduler(system: System) -> AsyncIterator[None]:
    """Run scheduler and bulk runner as `jobctl scheduler` does, at their own pace."""
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
    """Return a function that tells how many transactions there have been since this call."""
    transaction_count = 0

    def count(_kind: str, _seconds: float, _well: bool) -> None:
        nonlocal transaction_count
        transaction_count += 1

    ledger.observe(count)
    return lambda: transaction_count


def count_wake_ups() -> Callable[[], int]:
    """Return a function that tells how often this loop has waited since this call."""
    loop = cast("Any", asyncio.get_running_loop())
    selector: selectors.BaseSelector = loop._selector
    select, wake_up_count = selector.select, 0

    def select_and_count(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        nonlocal wake_up_count
        wake_up_count += timeout != 0
        return select(timeout)

    cast("Any", selector).select = select_and_count
    return lambda: wake_up_count


async def test_an_idle_worker_and_an_idle_scheduler_hardly_wake(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system, running_scheduler(system):
        worker = await system.start_worker()
        await worker.consuming()
        transactions, wake_ups = count_transactions(system.ledger), count_wake_ups()
        measured = []
        for _ in range(MAX_WINDOWS):  # what they do at their start goes on for a while
            transactions_before, wake_ups_before = transactions(), wake_ups()
            await asyncio.sleep(WINDOW)
            new_transactions = transactions() - transactions_before
            new_wake_ups = wake_ups() - wake_ups_before
            measured.append((new_transactions, new_wake_ups))
            if new_transactions <= MAX_TRANSACTIONS and new_wake_ups <= MAX_WAKE_UPS:
                return
    raise AssertionError(f"never idle: transactions and wake-ups in {WINDOW:g} s: {measured}")
