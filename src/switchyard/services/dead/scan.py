"""Scans of `jobs.dead`, one at a time: of what one scan holds, another sees nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from switchyard.broker.dead.scan import Scan, scanning
from switchyard.broker.settings import BrokerSettings
from switchyard.services.bulk.operations import BulkSession
from switchyard.services.errors import WrongState
from switchyard.services.ledger import Ledger
from switchyard.services.ledger.leases import Wait
from switchyard.services.records import BulkState

LEASE = "scan of jobs.dead"


class ScanBusy(WrongState):
    """Somebody else goes through `jobs.dead`, for longer than one wants to wait."""


def wait_at_most(seconds: float) -> Wait:
    """To wait for one's turn so long, and then raise ScanBusy."""
    deadline = time.monotonic() + seconds

    async def wait(pause: float) -> None:
        if time.monotonic() >= deadline:
            raise ScanBusy("a redrive or purge goes through jobs.dead: try again in a minute")
        await asyncio.sleep(pause)

    return wait


def wait_in(session: BulkSession) -> Wait:
    """To wait for an operation's turn, and show in its record that it waits."""

    async def wait(seconds: float) -> None:
        await session.move(BulkState.WAITING, "waits until another redrive or purge lets it")
        await session.sleep(seconds)

    return wait


@asynccontextmanager
async def scanning_in_turn(
    settings: BrokerSettings,
    ledger: Ledger,
    wait: Wait = asyncio.sleep,
) -> AsyncIterator[Scan]:
    """A scan, begun when nobody else goes through the queue, for which `wait` is awaited with the
    seconds to the next look. Safe without a turn; but what it says would not be the whole.

    Raises BrokerAway, LedgerUnavailable.
    """
    async with (
        ledger.holding_lease(LEASE, wait),
        scanning(settings.require_amqp_url(), profile=settings.profile) as scan,
    ):
        yield scan


async def waiting_ids(
    settings: BrokerSettings,
    ledger: Ledger,
    wait: Wait = asyncio.sleep,
) -> frozenset[str]:
    """The ids of all letters in `jobs.dead`. Waits and raises as `scanning_in_turn` does."""
    async with scanning_in_turn(settings, ledger, wait) as scan:
        return frozenset([letter.id async for letter in scan.letters()])
