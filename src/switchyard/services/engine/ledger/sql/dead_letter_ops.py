"""Operations on dead jobs: record their death, and their redrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from switchyard.services.engine.ledger.sql import job_rules as rules
from switchyard.services.engine.ledger.sql.codec import clean, job_columns
from switchyard.services.engine.ledger.sql.job_rows import Rows, new_row
from switchyard.services.engine.records.requests import DeadLetterRecord, NewJob
from switchyard.services.engine.records.states import AttemptOutcome, State


@dataclass(frozen=True, slots=True)
class MarkOverflowed:
    """Operation: the lane was full, and the job waits in `jobs.dead`."""

    order: ClassVar[int] = 2
    job_id: str
    at: float

    def apply(self, rows: Rows) -> bool:
        row = rows.jobs.get(self.job_id)
        if row is None or not rules.may_overflow(row):
            return False
        row.end(State.DEAD, self.at, "overflowed")
        return True


@dataclass(frozen=True, slots=True)
class MarkRedriven:
    """Operation: a dead job was sent back to its lane, perhaps with changes."""

    order: ClassVar[int] = 2
    job_id: str
    redrives: int
    at: float
    changed: NewJob | None = None

    def apply(self, rows: Rows) -> bool:
        row = rows.jobs.get(self.job_id)
        if row is not None and self.changed is not None and self.redrives >= row.redrives:
            # Even if a worker has already started it: the record must have the content that runs.
            rows.rewritten[row.id] = job_columns(self.changed)
        if row is None or not rules.may_redrive(row, self.redrives):
            return False
        row.state, row.redrives, row.attempts, row.crashes = State.QUEUED, self.redrives, 0, 0
        row.queued_at = row.updated_at = self.at
        row.changed = True
        return True


@dataclass(frozen=True, slots=True)
class UndoRedrive:
    """Operation: undo a redrive. The job is dead again, with its content from before. Workers skip
    the copy in its lane, as its generation now counts as dead."""

    order: ClassVar[int] = 5
    job: NewJob
    """The dead job."""
    redrives: int
    """Redrives of the copy."""
    reason: str

    @property
    def job_id(self) -> str:
        return self.job.message.job_id

    def apply(self, rows: Rows) -> bool:
        row = rows.jobs.get(self.job_id)
        if row is None or not rules.may_unredrive(row, self.redrives):
            return False
        row.end(State.DEAD, self.job.now, clean(self.reason))
        rows.rewritten[row.id] = job_columns(self.job)
        return True


@dataclass(frozen=True, slots=True)
class MarkDead:
    """Operation: a letter of the job is in `jobs.dead`. Makes the job's row when there is none."""

    order: ClassVar[int] = 5
    letter: DeadLetterRecord

    @property
    def job_id(self) -> str:
        return self.letter.job_id or ""

    def apply(self, rows: Rows) -> bool:
        letter = self.letter
        row = rows.jobs.get(self.job_id)
        if row is None and letter.job is not None:
            row = rows.jobs[self.job_id] = new_row(job_columns(letter.job))
        if row is None or not rules.may_record_dead(row, letter):
            return False
        error_type, error_message = clean(letter.error_type), clean(letter.error_message)
        if row.state is State.RUNNING:
            outcome = AttemptOutcome.DEAD
            rows.end_attempt(row, outcome, letter.dead_at, error_type, error_message)
            # If the worker that dead-lettered it reports later, nothing is left to record.
            if letter.redrives == row.redrives:
                row.attempts = max(row.attempts, letter.attempts)
        row.end(State.DEAD, letter.dead_at, clean(letter.reason), error_type, error_message)
        return True
