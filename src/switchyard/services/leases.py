"""Leases: what one process at a time does, while the others wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog

from switchyard.broker.background import Background
from switchyard.services.instance import new_instance_id
from switchyard.services.ledger import Ledger, LedgerError

Wait = Callable[[float], Awaitable[None]]
"""What is awaited while another holds the lease, with the seconds to the next look."""

LEASE = 6.0
"""Seconds after which the lease of a process that has died is over."""
LOOK = 0.1
"""Seconds between looks at a lease that another holds."""


@asynccontextmanager
async def holding_lease(
    ledger: Ledger, name: str, wait: Wait = asyncio.sleep
) -> AsyncIterator[None]:
    """Wait until nobody else holds the lease, and hold it. `wait` is awaited between looks, with
    the seconds to the next one. Raises LedgerUnavailable."""
    holder = new_instance_id()
    while not await ledger.acquire_lease(name, holder, LEASE):
        await wait(LOOK)
    keeping = Background(structlog.get_logger("leases"))
    keeping.start(name, partial(_keep, ledger, name, holder))
    try:
        yield
    finally:
        await keeping.close()
        await ledger.release_lease(name, holder)


async def _keep(ledger: Ledger, name: str, holder: str) -> None:
    while True:
        await asyncio.sleep(LEASE / 3)
        try:
            await ledger.acquire_lease(name, holder, LEASE)
        except LedgerError:
            continue  # whoever writes next is told
