"""Track the progress of a redrive, and decide how much it may send now: limits, canary, halting,
notes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from switchyard.broker.wording import rate_in_words
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
"""Seconds between checks of the letters' outcomes, or of a lane's capacity."""
SAVE_INTERVAL = 0.5
"""Seconds between two records of the progress."""
MAX_KEPT_NOTES = 20


class RedriveRun:
    """Runs one redrive in this process: its counts, and what it may send now."""

    def __init__(
        self, session: BulkSession, spec: RedriveSpec, ledger: Ledger, traffic: HotTraffic
    ) -> None:
        self.session = session
        self.spec = spec
        self.traffic = traffic
        self.created_at = datetime.fromtimestamp(session.operation.created_at, UTC)
        """When the redrive was created."""
        self.counts = RedriveCounts()
        """Counts of the present pass."""
        self.canary: str | None = None
        """Text on the canary's progress while only the canary may be sent; else None."""
        self._halt_rule = HaltRule(spec.canary, spec.halt_on)
        self._ledger = ledger
        self._cursor: dict[str, Any] = dict(session.operation.cursor or {})
        self._progress_before = RedriveProgress.from_operation(session.operation)
        self._planned = 0
        self._planned_before: set[str] = set()
        """Letters that an earlier process was about to send, or has sent."""
        self._outcomes: dict[RedriveOutcome | None, int] = {}
        self._outcomes_read_at = self._saved_at = 0.0

    async def begin(self) -> None:
        """Read from the ledger how far the redrive is."""
        await self._read_outcomes()
        self._planned = sum(self._outcomes.values())
        if "baseline" not in self._cursor:  # at the start, or resumed after a halt
            self._cursor["baseline"] = [self._settled, self._failed]
        if self._progress_before.total is None and not self.spec.from_ledger:
            total = await self._ledger.dead_letters.count_dead(
                self.spec.which.for_index("waiting", self.created_at)
            )
            self._progress_before = replace(
                self._progress_before, total=min(total, self.spec.limit or total)
            )
        await self.save_notes(force=True)

    def takes(self, letter: DeadLetterLike) -> bool:
        """Tell whether the redrive takes a letter. Letters of jobs that died after its start are
        left out, or it might never end."""
        return bool(self.spec.which.ids) or was_dead(letter, self.created_at)

    @property
    def has_enough(self) -> bool:
        return self.spec.limit is not None and self._planned >= self.spec.limit

    async def wait_for_rate(self) -> None:
        """Wait until a letter may be sent by the rate."""
        while (wait := self.session.rate_wait) > 0:
            rate = self.session.operation.rate or 0.0
            await self.session.move(BulkState.RUNNING, f"sends {rate_in_words(rate)}, by its rate")
            # The rate may change meanwhile.
            await self.session.sleep(min(wait, STATE_POLL_INTERVAL))

    async def filter_unsent(self, batch: Sequence[DeadLetterLike]) -> list[DeadLetterLike]:
        """Return the letters of a batch without those that this redrive has sent before, and that
        died again."""
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
        if self._halt_rule.depends_on_outcomes or max_open is not None:
            await self.check_outcomes()
            done, failed = self._since_baseline()
            if max_open is not None:
                limits.append(max_open - self._open)
            left = self._halt_rule.canary_left(done, failed, self._open)
            if left is not None:
                limits.append(left)
            self.canary = None if left is None else self._halt_rule.canary_note(done, failed)
        return max(0, min(limits)) if limits else None

    async def check_outcomes(self, *, now: bool = False) -> None:
        """Read the outcomes of the sent letters, and check the halt rule. Raises Halted."""
        if time.monotonic() - self._outcomes_read_at >= STATE_POLL_INTERVAL or now:
            await self._read_outcomes()
        done, failed = self._since_baseline()
        try:
            self._halt_rule.check(done, failed, "failed again")
        except Halted as halted:
            raise self._halt(str(halted)) from None

    def _halt(self, reason: str) -> Halted:
        # After a resume, only failures since then count; those until then belong to this halt.
        del self._cursor["baseline"]
        return Halted(f"{reason}; see `jobctl dead redrives show {self.session.id}`")

    async def drain(self) -> None:
        """Wait for the outcomes of the letters, where the redrive depends on them. Raises
        Halted."""
        while True:
            await self.check_outcomes(now=True)
            if not self._open or not self._halt_rule.depends_on_outcomes:
                return
            await self.session.move(BulkState.DRAINING, "all are sent; waits for their ends")
            await self.save_notes()
            await self.session.sleep(STATE_POLL_INTERVAL)

    @property
    def final_note(self) -> str | None:
        sentences = [f"{self._failed} failed again"] if self._failed else []
        handled = (
            self._planned
            + self._progress_before.dropped
            + self.counts.dropped
            + self.counts.invalid
        )
        if (lost := (self._progress_before.total or 0) - handled) > 0:
            sentences.append(only_in_ledger(lost))
        return "; ".join(sentences) or None

    def count_planned_letters(self, copies: Sequence[RedriveMessage]) -> None:
        """Count letters that are about to be sent."""
        self._count_planned(len(self._not_planned_before(copies)))

    def uncount(self, copies: Sequence[RedriveMessage]) -> list[str]:
        """Take letters that the broker refused out of the count. Returns the ids whose plans are to
        be deleted: not those that an earlier process planned, as it may have sent them."""
        new = self._not_planned_before(copies)
        self._count_planned(-len(new))
        return new

    def _not_planned_before(self, copies: Sequence[RedriveMessage]) -> list[str]:
        ids = [copy.letter.id for copy in copies]
        return [letter_id for letter_id in ids if letter_id not in self._planned_before]

    def _count_planned(self, number: int) -> None:
        self._planned += number
        self._outcomes[None] = self._open + number

    def begin_pass(self) -> None:
        """Begin the counts of a new pass. Letters that were dropped stay counted, as they are gone;
        the others are counted anew."""
        self._progress_before = replace(
            self._progress_before,
            dropped=self._progress_before.dropped + self.counts.dropped,
            notes=self._notes(),
        )
        self.counts = RedriveCounts()

    async def save_notes(self, *, force: bool = False) -> None:
        """Record the progress every SAVE_INTERVAL seconds, or now with `force`. Ends the run if the
        operation was paused, cancelled or lost."""
        if not force and time.monotonic() - self._saved_at < SAVE_INTERVAL:
            return self.session.check()
        self._saved_at = time.monotonic()
        progress = replace(
            self._progress_before,
            redriven=self._planned,
            dropped=self._progress_before.dropped + self.counts.dropped,
            invalid=self.counts.invalid,
            succeeded=self._outcomes.get(RedriveOutcome.SUCCEEDED, 0),
            failed=self._failed,
            undone=self._outcomes.get(RedriveOutcome.UNDONE, 0),
            unfinished=self._open,
            notes=self._notes(),
        )
        await self.session.checkpoint(cursor=self._cursor, counts=progress.to_json())
        return None

    def _notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._progress_before.notes, *self.counts.notes)))[
            :MAX_KEPT_NOTES
        ]

    async def _read_outcomes(self) -> None:
        self._outcomes = dict(await self._ledger.redrives.settle_redriven(self.session.id))
        self._outcomes_read_at = time.monotonic()

    @property
    def _open(self) -> int:
        return self._outcomes.get(None, 0)

    @property
    def _settled(self) -> int:
        return self._outcomes.get(RedriveOutcome.SUCCEEDED, 0) + self._failed

    @property
    def _failed(self) -> int:
        return self._outcomes.get(RedriveOutcome.FAILED, 0)

    def _since_baseline(self) -> tuple[int, int]:
        """Return the numbers of settled and of failed letters since the start, or since the last
        resume after a halt."""
        settled, failed = self._cursor["baseline"]
        return self._settled - settled, self._failed - failed
