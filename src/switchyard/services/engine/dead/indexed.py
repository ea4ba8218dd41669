"""Read dead letters of `jobs.dead` from the index, where only few of a long queue are needed.

To find them in the queue, all of it must be scanned. The index has their bodies, too, and is used
if it certainly lists the whole queue. A letter that is taken from the index stays in the queue as a
leftover, recorded in the ledger: the next scan of the queue removes it (`LetterScan`), and the
scheduler scans soon (`LeftoverRemover`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from switchyard.broker.lanes import DEAD_LOG_QUEUE, DEAD_QUEUE
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.depths import query_queues
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.scan import scanning_in_turn
from switchyard.services.engine.dead.stored import StoredLetter, stored_letter
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.dead_letters import REFUSED
from switchyard.services.engine.ledger.leases import DEAD_SCAN, Sleep

MIN_QUEUE = 5_000
"""Messages in `jobs.dead`, at least, for which the index is used: fewer are scanned within a
second."""
MAX_SHARE = 0.25
"""Fraction of the letters up to which they are read from the index. Beyond it, scanning the queue
costs little per letter, and leaves no leftovers."""
PAGE = 200
"""Letters read from the index at a time."""
REMOVAL_INTERVAL = 60.0
"""Seconds between checks for leftovers."""
PAUSE_RATIO = 20.0
"""Length of the pause after a removal, as a multiple of its duration: scanning a long queue is work
for the broker."""

IndexedLetters = AsyncGenerator[StoredLetter, None]


@asynccontextmanager
async def open_index_in_turn(
    settings: BrokerSettings,
    ledger: Ledger,
    which: LetterFilter,
    moment: datetime,
    wait: Sleep,
    *,
    limit: int | None = None,
) -> AsyncIterator[IndexedLetters | None]:
    """Yield the waiting letters that match, oldest first, or None where the queue must be scanned.
    Meanwhile no other process scans the queue. `limit`: how many will be taken, at most. Waits and
    raises as `scanning_in_turn` does."""
    async with ledger.leases.holding_lease(DEAD_SCAN, wait):
        waiting = await ledger.dead_letters.count_dead(which.for_index("waiting", moment))
        count = waiting if limit is None else min(waiting, limit)
        if not await _index_suffices(settings, ledger, count):
            yield None
            return
        async with aclosing(_open_indexed(ledger, which, moment)) as letters:
            yield letters


async def _index_suffices(settings: BrokerSettings, ledger: Ledger, count: int) -> bool:
    """Tell whether `count` letters are a small part of the queue, and the index lists all of the
    queue: it has as many messages, and no letter still waits to be indexed."""
    if count == 0:
        return False
    sizes = await query_queues(settings.require_amqp_url(), (DEAD_QUEUE, DEAD_LOG_QUEUE))
    dead, log = sizes[DEAD_QUEUE], sizes[DEAD_LOG_QUEUE]
    if dead is None or log is None or log.ready or dead.ready < MIN_QUEUE:
        return False
    if count > dead.ready * MAX_SHARE:
        return False
    letter_count = await ledger.dead_letters.count_messages()
    return letter_count + await ledger.redrives.count_leftovers() == dead.ready


async def _open_indexed(ledger: Ledger, which: LetterFilter, moment: datetime) -> IndexedLetters:
    letter_filter = which.for_index("waiting", moment)
    # The index has filtered by its own groups, which people have seen and named.
    without_group = replace(which, group=None)
    after: tuple[float, str] | None = None
    while page := await ledger.dead_letters.letters_in(
        letter_filter, states=("waiting",), after=after, limit=PAGE
    ):
        for letter in page:
            stored = replace(stored_letter(letter), left_behind=letter.copies)
            if letter.reason != REFUSED and without_group.matches(stored, moment):
                yield stored
        after = (page[-1].dead_at, page[-1].id)


@dataclass
class LeftoverRemover:
    """Removes leftovers from `jobs.dead`; a duty of the scheduler."""

    settings: BrokerSettings
    ledger: Ledger
    next_removal_at: float = 0.0
    """Monotonic time before which nothing is removed."""

    async def run(self) -> None:
        """Scan the queue once, if there are leftovers. Raises BrokerUnavailable,
        LedgerUnavailable."""
        if (
            time.monotonic() < self.next_removal_at
            or not await self.ledger.redrives.count_leftovers()
        ):
            return
        began = time.monotonic()
        async with scanning_in_turn(self.settings, self.ledger) as scan:
            began = time.monotonic()
            async for _ in scan.letters():
                pass
        ended = time.monotonic()
        self.next_removal_at = ended + PAUSE_RATIO * (ended - began)
        structlog.get_logger("dead letters").info(
            "redriven letters removed from jobs.dead", letters=len(scan.removed)
        )
