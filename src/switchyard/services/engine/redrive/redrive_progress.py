"""Progress of a redrive, and what it may do now: its limits, canary, halt, and notes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from switchyard.services.engine.bulk.halting import Halted, HaltRule
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.dead.letters import DeadLetterLike, was_dead
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.states import RedriveOutcome
from switchyard.services.engine.redrive.sending import RedriveCounts, RedriveMessage
from switchyard.services.engine.redrive.spec import RedriveProgress, RedriveSpec, only_in_ledger

STATE_POLL_INTERVAL = 0.3
"""Seconds between looks at what became of letters, or whether a lane has room."""
NOTE_INTERVAL = 0.5
"""Seconds between two notes of how far it has come."""
MAX_KEPT_NOTES = 20


class RedriveRun:
    """Runs one redrive in this process: its counts, and what it may send now."""

    def __init__(
        self, session: BulkSession, spec: RedriveSpec, ledger: Ledger, traffic: HotTraffic
    ) -> None:
        self.session = session
        self.spec = spec
        self.traffic = traffic
        self.moment = datetime.fromtimestamp(session.operation.created_at, UTC)
        self.tally = RedriveCounts()
        """Counts of this pass."""
        self.canary: str | None = None
        """Text of the canary's progress, while only the canary may be sent; else None."""
        self._rule = HaltRule(spec.canary, spec.halt_on)
        self._ledger = ledger
        self._cursor: dict[str, Any] = dict(session.operation.cursor or {})
        self._before = RedriveProgress.from_operation(session.operation)
        self._planned = 0
        self._planned_before: set[str] = set()
        """Letters that an earlier process was about to send, or has sent."""
        self._ended: dict[RedriveOutcome | None, int] = {}
        self._looked = self._noted = 0.0

    async def begin(self) -> None:
        """Read from the ledger how far the redrive is."""
        await self._read_outcomes()
        self._planned = sum(self._ended.values())
        if "baseline" not in self._cursor:  # it begins, or was resumed after a halt
            self._cursor["baseline"] = [self._settled, self._failed]
        if self._before.total is None and not self.spec.from_ledger:
            total = await self._ledger.dead_letters.count_dead(
                self.spec.which.for_index("waiting", self.moment)
            )
            self._before = replace(self._before, total=min(total, self.spec.limit or total))
        await self.save_notes(force=True)

    def is_ours(self, letter: DeadLetterLike) -> bool:
        """Tell whether the redrive takes a letter: not one whose job died after it began, as a
        cause that lasts would make it endless."""
        return bool(self.spec.which.ids) or was_dead(letter, self.moment)

    @property
    def has_enough(self) -> bool:
        return self.spec.limit is not None and self._planned >= self.spec.limit

    async def wait_for_slot(self) -> None:
        """Wait until a letter may be sent by the rate."""
        while (wait := self.session.slot_wait) > 0:
            rate = self.session.operation.rate
            await self.session.move(BulkState.RUNNING, f"sends {rate:g} a second, by its rate")
            await self.session.sleep(
                min(wait, STATE_POLL_INTERVAL)
            )  # the rate may change meanwhile

    async def not_sent_before(self, batch: Sequence[DeadLetterLike]) -> list[DeadLetterLike]:
        """Return the letters of a batch that are to be sent: not those that this redrive has sent,
        and that died again."""
        planned = await self._ledger.redrives.planned_redrives(
            self.session.id, [letter.id for letter in batch]
        )
        self._planned_before |= planned.keys()
        return [
            letter
            for letter in batch
            if letter.id not in planned or letter.redrives < planned[letter.id]
        ]

    async def allowance(self) -> int | None:
        """Return how many more letters may be sent now; None for any number. Raises Halted."""
        limits = []
        if self.spec.limit is not None:
            limits.append(self.spec.limit - self._planned)
        max_open = self.session.operation.max_open
        if self._rule.depends_on_outcomes or max_open is not None:
            await self.check_outcomes()
            done, failed = self._since_baseline()
            if max_open is not None:
                limits.append(max_open - self._open)
            left = self._rule.canary_left(done, failed, self._open)
            if left is not None:
                limits.append(left)
            self.canary = None if left is None else self._rule.canary_note(done, failed)
        return max(0, min(limits)) if limits else None

    async def check_outcomes(self, *, now: bool = False) -> None:
        """Check what became of the letters that were sent. Raises Halted."""
        if time.monotonic() - self._looked >= STATE_POLL_INTERVAL or now:
            await self._read_outcomes()
        done, failed = self._since_baseline()
        try:
            self._rule.check(done, failed, "failed again")
        except Halted as halted:
            raise self._halt(str(halted)) from None

    def _halt(self, why: str) -> Halted:
        # Whoever resumes it wants to try again, and not to hear the same again: what fails until
        # then belongs to this halt.
        del self._cursor["baseline"]
        return Halted(f"{why}; see `jobctl dead redrives show {self.session.id}`")

    async def drain(self) -> None:
        """Wait for the outcomes of the letters, where the redrive depends on them. Raises
        Halted."""
        while True:
            await self.check_outcomes(now=True)
            if not self._open or not self._rule.depends_on_outcomes:
                return
            await self.session.move(BulkState.DRAINING, "all are sent; waits for their ends")
            await self.save_notes()
            await self.session.sleep(STATE_POLL_INTERVAL)

    @property
    def final_note(self) -> str | None:
        sentences = [f"{self._failed} failed again"] if self._failed else []
        handled = self._planned + self._before.dropped + self.tally.dropped + self.tally.invalid
        if (lost := (self._before.total or 0) - handled) > 0:
            sentences.append(only_in_ledger(lost))
        return "; ".join(sentences) or None

    def note_planned(self, copies: Sequence[RedriveMessage]) -> None:
        """Count letters that are about to be sent."""
        self._count_planned(len(self._new(copies)))

    def not_taken(self, copies: Sequence[RedriveMessage]) -> list[str]:
        """Take back the count of letters that the broker did not take. Returns those to be
        forgotten: what an earlier process has planned, it may have sent."""
        new = self._new(copies)
        self._count_planned(-len(new))
        return new

    def _new(self, copies: Sequence[RedriveMessage]) -> list[str]:
        ids = [copy.letter.id for copy in copies]
        return [letter_id for letter_id in ids if letter_id not in self._planned_before]

    def _count_planned(self, number: int) -> None:
        self._planned += number
        self._ended[None] = self._open + number

    def next_pass(self) -> None:
        """Begin to count a pass: what could not be sent is counted anew; what was dropped is
        gone."""
        self._before = replace(
            self._before, dropped=self._before.dropped + self.tally.dropped, notes=self._notes()
        )
        self.tally = RedriveCounts()

    async def save_notes(self, *, force: bool = False) -> None:
        """Record the progress from time to time. Ends the run when it is not to go on."""
        if not force and time.monotonic() - self._noted < NOTE_INTERVAL:
            return self.session.check()
        self._noted = time.monotonic()
        progress = replace(
            self._before,
            redriven=self._planned,
            dropped=self._before.dropped + self.tally.dropped,
            invalid=self.tally.invalid,
            succeeded=self._ended.get(RedriveOutcome.SUCCEEDED, 0),
            failed=self._failed,
            undone=self._ended.get(RedriveOutcome.UNDONE, 0),
            unfinished=self._open,
            notes=self._notes(),
        )
        await self.session.checkpoint(cursor=self._cursor, counts=progress.to_json())
        return None

    def _notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._before.notes, *self.tally.notes)))[:MAX_KEPT_NOTES]

    async def _read_outcomes(self) -> None:
        self._ended = dict(await self._ledger.redrives.settle_redriven(self.session.id))
        self._looked = time.monotonic()

    @property
    def _open(self) -> int:
        return self._ended.get(None, 0)

    @property
    def _settled(self) -> int:
        return self._ended.get(RedriveOutcome.SUCCEEDED, 0) + self._failed

    @property
    def _failed(self) -> int:
        return self._ended.get(RedriveOutcome.FAILED, 0)

    def _since_baseline(self) -> tuple[int, int]:
        """Ended, and failed of these, since it began, or was resumed after the last halt."""
        settled, failed = self._cursor["baseline"]
        return self._settled - settled, self._failed - failed
