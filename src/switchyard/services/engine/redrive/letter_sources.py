"""Open the dead letters that a redrive may send: those in `jobs.dead`, or the ledger's copies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime

from switchyard.broker.settings import BrokerSettings
from switchyard.services.engine.dead.letters import DeadLetterLike, LetterFilter
from switchyard.services.engine.dead.scan import scanning_in_turn, waiting_ids
from switchyard.services.engine.dead.stored import stored_letters
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import Sleep

Letters = AsyncGenerator[DeadLetterLike, None]


@asynccontextmanager
async def open_queued(
    settings: BrokerSettings,
    ledger: Ledger,
    which: LetterFilter,
    now: datetime,
    wait: Sleep,
    *,
    includes: Callable[[DeadLetterLike], bool] = lambda _: True,
) -> AsyncIterator[Letters]:
    """Open the letters in `jobs.dead` that match, oldest first, leaving out those for which
    `includes` is false. `wait` is awaited while another process scans the queue."""

    async def matching_letters() -> Letters:
        async for letter in scan.letters():
            if includes(letter) and which.matches(letter, now):
                yield letter

    async with (
        scanning_in_turn(settings, ledger, wait) as scan,
        aclosing(matching_letters()) as letters,
    ):
        yield letters


@asynccontextmanager
async def open_stored(
    settings: BrokerSettings, ledger: Ledger, which: LetterFilter, now: datetime, wait: Sleep
) -> AsyncIterator[Letters]:
    """Open the matching letters that the ledger has and the broker has not, oldest first. `wait`
    is awaited while another process scans `jobs.dead`."""
    on_broker = await waiting_ids(settings, ledger, wait)
    async with aclosing(stored_letters(ledger, which, now, on_broker)) as letters:
        yield letters
