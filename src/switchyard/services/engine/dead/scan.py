"""Scan `jobs.dead`, one scan at a time, as letters that one scan holds are hidden from others."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from switchyard.broker.dead.scan import QueuedDeadLetter, Scan, scanning
from switchyard.broker.settings import BrokerSettings
from switchyard.services.common.errors import ConflictError
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.dead.displaced import classify_displaced
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import DEAD_SCAN, Sleep
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.requests import LeftoverLetter
from switchyard.services.engine.records.results import DeadLetter, JobRecord

BATCH_SIZE = 200
"""Letters that are compared with the ledger at once."""


class ScanBusy(ConflictError):
    """Another process scans `jobs.dead`, for longer than this one may wait."""


def wait_at_most(seconds: float) -> Sleep:
    """Return a `wait` for `scanning_in_turn` that raises ScanBusy after `seconds`."""
    deadline = time.monotonic() + seconds

    async def wait(pause: float) -> None:
        if time.monotonic() >= deadline:
            raise ScanBusy("a redrive or purge goes through jobs.dead: try again in a minute")
        await asyncio.sleep(pause)

    return wait


def recording_wait(session: BulkSession) -> Sleep:
    """Return a `wait` for `scanning_in_turn` that records that the operation waits for its turn."""

    async def wait(seconds: float) -> None:
        await session.move(BulkState.WAITING, "waits until another redrive or purge has ended")
        await session.sleep(seconds)

    return wait


class LetterScan:
    """A scan that recognises foreign letters and displaced jobs, merges the letters of one death,
    and removes leftovers: letters that were redriven from the index."""

    def __init__(self, scan: Scan, ledger: Ledger, leftovers: Sequence[LeftoverLetter]) -> None:
        self._scan = scan
        self._ledger = ledger
        self._leftovers = {each.letter_id: each for each in leftovers}
        self._removed: Counter[str] = Counter()
        self._is_complete = False
        self.total = scan.total
        """Letters that waited when it began."""
        self.scanned = 0
        """Letters that were scanned so far."""
        self._deaths: dict[tuple[str, int, int], QueuedDeadLetter] = {}

    async def letters(self) -> AsyncGenerator[QueuedDeadLetter, None]:
        """Yield the letters of the scan, each death once. Further letters of a death are
        acknowledged or kept together with the first. Raises as `Scan.letters` does, and
        LedgerUnavailable."""
        batch: list[QueuedDeadLetter] = []
        async for letter in self._scan.letters():
            batch.append(letter)
            if len(batch) >= BATCH_SIZE:
                for each in await classify_displaced(self._ledger, batch):
                    if self._is_first(each):
                        yield each
                batch = []
        for each in await classify_displaced(self._ledger, batch):
            if self._is_first(each):
                yield each
        self._is_complete = self.scanned == self.total and self._scan.is_alone

    @property
    def removed(self) -> list[LeftoverLetter]:
        """Leftovers that are no longer in the queue, once the scan has ended."""
        if self._is_complete:
            return list(self._leftovers.values())
        return [
            replace(self._leftovers[letter_id], copies=copies)
            for letter_id, copies in self._removed.items()
        ]

    def _is_leftover(self, letter: QueuedDeadLetter) -> bool:
        """Tell whether the letter was redriven from the index, and is still in the queue."""
        leftover = self._leftovers.get(letter.id)
        return (
            leftover is not None
            and letter.message is not None
            and letter.redrives <= leftover.redrives
            and self._removed[letter.id] < leftover.copies
        )

    def _is_first(self, letter: QueuedDeadLetter) -> bool:
        self.scanned += 1
        if self._is_leftover(letter):
            self._removed[letter.id] += 1
            letter.ack()
            return False
        first = self._deaths.setdefault(letter.death, letter)
        if first is letter:
            return True
        if first.is_settled:
            letter.ack()
        else:
            first.duplicates.append(letter)
        return False

    async def depth(self, queue: str) -> int:
        """Return the messages that wait in a queue, as `Scan.depth` does."""
        return await self._scan.depth(queue)


@asynccontextmanager
async def scanning_in_turn(
    settings: BrokerSettings,
    ledger: Ledger,
    wait: Sleep = asyncio.sleep,
) -> AsyncIterator[LetterScan]:
    """Open a scan once no other process scans the queue. Until then, `wait` is awaited with the
    seconds until the next try. A concurrent scan would be safe, but would see only some letters.

    Raises BrokerUnavailable, LedgerUnavailable.
    """
    async with ledger.leases.holding_lease(DEAD_SCAN, wait):
        leftovers = await ledger.redrives.leftover_letters()
        async with scanning(settings.require_amqp_url(), profile=settings.profile) as scan:
            letters = LetterScan(scan, ledger, leftovers)
            yield letters
        if scan.is_settled:  # otherwise, acknowledged letters may be back in the queue
            await ledger.redrives.forget_leftovers(letters.removed)


@dataclass(frozen=True, slots=True)
class BrokerLetterIds:
    """Ids of the letters in `jobs.dead` at one moment."""

    ids: frozenset[str]
    until: float
    """The ledger's time before the scan: letters of later deaths may be missing in `ids`."""

    def lacks(self, record: DeadLetter | JobRecord) -> bool:
        """Tell whether the broker certainly has no letter of this dead job."""
        return record.id not in self.ids and record.updated_at <= self.until


async def waiting_ids(
    settings: BrokerSettings,
    ledger: Ledger,
    wait: Sleep = asyncio.sleep,
) -> BrokerLetterIds:
    """Return the ids of all letters in `jobs.dead`. Waits and raises as `scanning_in_turn` does."""
    until = ledger.clock.time()
    async with scanning_in_turn(settings, ledger, wait) as scan:
        return BrokerLetterIds(frozenset([letter.id async for letter in scan.letters()]), until)
