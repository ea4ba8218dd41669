"""Purge dead letters: remove them from the broker, and record who did it, when, why and for which
filter. The ledger keeps their records, marked as purged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.dead.scan import QueuedDeadLetter
from switchyard.broker.settings import BrokerSettings
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.dead.displaced import as_ordinary
from switchyard.services.engine.dead.groups import require_group
from switchyard.services.engine.dead.letters import LetterFilter, was_dead
from switchyard.services.engine.dead.scan import recording_wait, scanning_in_turn
from switchyard.services.engine.dead.stored import stored_letter
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import Sleep
from switchyard.services.engine.records.bulk import BulkHold, BulkOperation, BulkState
from switchyard.services.engine.records.requests import DeadLetterRecord
from switchyard.services.engine.records.states import DeadLetterState

KIND = "purge"
BATCH = 200
"""Letters marked and acknowledged together."""
SAVE_INTERVAL = 0.5
"""Seconds between two updates of the recorded progress."""


@dataclass(frozen=True, slots=True)
class PurgeProgress:
    """Progress of a purge: the counts in its record."""

    scanned: int = 0
    total: int | None = None
    """Letters in `jobs.dead` when the scan began."""
    purged: int = 0
    """Includes letters that were counted but not removed before a crash: one batch at most."""

    def to_json(self) -> dict[str, Any]:
        return {"scanned": self.scanned, "total": self.total, "purged": self.purged}

    @classmethod
    def from_operation(cls, operation: BulkOperation) -> PurgeProgress:
        return cls(**operation.counts)


async def count_letters(
    settings: BrokerSettings, ledger: Ledger, which: LetterFilter, wait: Sleep
) -> PurgeProgress:
    """Return the counts that a purge would have. Raises UnknownGroup, BrokerUnavailable,
    LedgerUnavailable."""
    await require_group(ledger, which)
    moment, purged = ledger.clock.now(), 0
    async with scanning_in_turn(settings, ledger, wait) as scan:
        async for letter in scan.letters():
            purged += which.matches(letter, moment)
        return PurgeProgress(scan.scanned, scan.total, purged)


async def start_purge(
    ledger: Ledger,
    which: LetterFilter,
    *,
    created_by: str,
    reason: str | None = None,
    hold: BulkHold | None = None,
) -> BulkOperation:
    """Record a purge; a scheduler runs it, or with `hold` the `BulkRunner` whose hold that is.

    Raises UnknownGroup, LedgerUnavailable.
    """
    await require_group(ledger, which)
    return await ledger.bulk.create_bulk(
        bulk_control.new_bulk_id(KIND),
        kind=KIND,
        title=which.describe(),
        spec={"filter": which.to_json()},
        created_by=created_by,
        reason=reason,
        hold=hold,
    )


class PurgeHandler:
    """Runs purges; see `services.engine.bulk.runner`."""

    kind = KIND

    def __init__(self, settings: BrokerSettings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger

    async def run(self, session: BulkSession) -> None:
        """Scan `jobs.dead` once; purge matching letters whose jobs died before the purge."""
        which = LetterFilter.from_json(session.operation.spec["filter"])
        created_at = datetime.fromtimestamp(session.operation.created_at, UTC)
        # Letters that an earlier process purged are gone, but count as scanned.
        purged = purged_before = PurgeProgress.from_operation(session.operation).purged
        batch: list[QueuedDeadLetter] = []
        saved_at = time.monotonic()

        async with scanning_in_turn(self._settings, self._ledger, recording_wait(session)) as scan:
            await session.move(BulkState.RUNNING)
            total = purged_before + scan.total
            async for letter in scan.letters():
                if which.matches(letter, created_at) and was_dead(letter, created_at):
                    batch.append(letter)
                if len(batch) >= BATCH or time.monotonic() - saved_at > SAVE_INTERVAL:
                    purged += len(batch)
                    progress = PurgeProgress(purged_before + scan.scanned, total, purged)
                    await self._purge_letters(session, batch, progress)
                    batch, saved_at = [], time.monotonic()
            purged += len(batch)
            progress = PurgeProgress(purged_before + scan.scanned, total, purged)
            await self._purge_letters(session, batch, progress)
        await self._forget_refused(which, created_at)
        await session.finish()

    async def _forget_refused(self, which: LetterFilter, moment: datetime) -> None:
        """Mark as purged the matching letters that only the ledger has, as the broker refused
        them."""
        refused_filter = replace(which.for_index(None, moment), reason=str(Reason.REFUSED))
        if which.reason not in (None, refused_filter.reason):
            return
        after: tuple[float, str] | None = None
        while page := await self._ledger.dead_letters.letters_in(
            refused_filter, states=("waiting",), after=after
        ):
            matching = [each for each in page if which.matches(stored_letter(each), moment)]
            ids = [each.id for each in matching if was_dead(stored_letter(each), moment)]
            await self._ledger.dead_letters.mark_dead_state(
                ids, DeadLetterState.PURGED, self._ledger.clock.time()
            )
            after = (page[-1].dead_at, page[-1].id)

    async def _purge_letters(
        self, session: BulkSession, letters: Sequence[QueuedDeadLetter], progress: PurgeProgress
    ) -> None:
        """Mark the letters, save the progress, then acknowledge them: after a crash at any point,
        each letter that is gone was marked and counted."""
        session.check()
        if letters:
            ids = [each.id for each in letters]
            moment = self._ledger.clock.time()
            await self._ledger.dead_letters.record_dead(
                [_purge_record_of(each, moment) for each in letters if _is_displaced(each)]
            )
            await self._ledger.dead_letters.mark_dead_state(ids, DeadLetterState.PURGED, moment)
        await session.save_progress(counts=progress.to_json())
        for letter in letters:
            letter.ack()


def _is_displaced(letter: QueuedDeadLetter) -> bool:
    return letter.info.reason is Reason.DISPLACED


def _purge_record_of(letter: QueuedDeadLetter, moment: float) -> DeadLetterRecord:
    """Return the record that makes a displaced job dead, so that it is not returned to its lane."""
    return DeadLetterRecord(
        id=letter.id,
        job_id=letter.id,
        reason=str(as_ordinary(letter).info.reason),
        dead_at=moment,
        body=letter.body,
        error_type="Purged",
        error_message="purged before it went back to its lane",
        redrives=letter.redrives,
        attempts=letter.message.metadata.attempts if letter.message else 0,
    )
