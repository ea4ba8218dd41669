"""Purges: dead letters are thrown away, under a record of who did it, when, why and which.

The records of the letters stay, marked as purged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from broker.dead_queue import Letter
from broker.message import now
from broker.settings import BrokerSettings
from services import bulk_control
from services.bulk import BulkSession
from services.dead_scan import scanning_in_turn
from services.leases import Wait
from services.ledger import BulkOperation, BulkState, DeadLetterState, Ledger
from services.letters import LetterFilter, was_dead

KIND = "purge"
BATCH = 200
"""Letters marked and acknowledged together."""
NOTE_SECONDS = 0.5
"""Seconds between two notes of how far it has come."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a purge has come; its counts in the record."""

    scanned: int = 0
    total: int | None = None
    """Letters in `jobs.dead` when it began to go through them."""
    purged: int = 0
    """After a crash some letters may be counted twice, at most 200."""

    def to_json(self) -> dict[str, Any]:
        return {"scanned": self.scanned, "total": self.total, "purged": self.purged}

    @classmethod
    def of(cls, operation: BulkOperation) -> Progress:
        return cls(**operation.counts)


async def count_letters(
    settings: BrokerSettings, ledger: Ledger, which: LetterFilter, wait: Wait
) -> Progress:
    """What a purge would do. Raises BrokerAway, LedgerUnavailable."""
    moment, scanned, purged = now(), 0, 0
    async with scanning_in_turn(settings, ledger, wait) as scan:
        async for letter in scan.letters():
            scanned += 1
            purged += which.matches(letter, moment)
        return Progress(scanned, scan.total, purged)


async def start_purge(
    ledger: Ledger, which: LetterFilter, *, created_by: str, reason: str | None = None
) -> BulkOperation:
    """Record a purge; a scheduler runs it, or whoever calls `BulkRunner.run_one`.

    Raises LedgerUnavailable.
    """
    return await ledger.create_bulk(
        bulk_control.new_bulk_id(KIND),
        kind=KIND,
        title=which.describe(),
        spec={"filter": which.to_json()},
        created_by=created_by,
        reason=reason,
    )


class PurgeHandler:
    """Runs purges; see `services.bulk`."""

    kind = KIND

    def __init__(self, settings: BrokerSettings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger

    async def run(self, session: BulkSession) -> None:
        """Go through `jobs.dead` once. Letters that died after the purge began stay."""
        which = LetterFilter.from_json(session.operation.spec["filter"])
        moment = datetime.fromtimestamp(session.operation.created_at, UTC)
        purged = Progress.of(session.operation).purged
        scanned, noted = 0, time.monotonic()
        batch: list[Letter] = []

        async def wait(seconds: float) -> None:
            note = "waits until another redrive or purge lets it"
            await session.move(BulkState.WAITING, note)
            await session.sleep(seconds)

        async with scanning_in_turn(self._settings, self._ledger, wait) as scan:
            await session.move(BulkState.RUNNING)
            async for letter in scan.letters():
                scanned += 1
                if which.matches(letter, moment) and (which.ids or was_dead(letter, moment)):
                    batch.append(letter)
                is_time = time.monotonic() - noted > NOTE_SECONDS
                if len(batch) >= BATCH or is_time:
                    session.check()
                    await self._throw_away(batch)
                    purged += len(batch)
                    batch = []
                if is_time:
                    progress = Progress(scanned, scan.total, purged)
                    await session.checkpoint(counts=progress.to_json())
                    noted = time.monotonic()
            session.check()
            await self._throw_away(batch)
            progress = Progress(scanned, scan.total, purged + len(batch))
        await session.record(counts=progress.to_json())
        await session.finish()

    async def _throw_away(self, letters: Sequence[Letter]) -> None:
        if letters:
            ids = [each.id for each in letters]
            # First the mark: a letter that is marked and still there is purged by the next try.
            await self._ledger.mark_dead_state(ids, DeadLetterState.PURGED, time.time())
            for letter in letters:
                letter.ack()
