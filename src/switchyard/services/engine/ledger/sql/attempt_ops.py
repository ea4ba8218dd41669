"""Operations on a job's attempts: claim, end, cancel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from switchyard.services.engine.ledger.sql import copy_validation
from switchyard.services.engine.ledger.sql import job_rules as rules
from switchyard.services.engine.ledger.sql.codec import clean, job_columns
from switchyard.services.engine.ledger.sql.job_content import JobContent
from switchyard.services.engine.ledger.sql.job_rows import JobRow, Rows, new_row
from switchyard.services.engine.records.requests import ClaimRequest, FinishRequest
from switchyard.services.engine.records.results import (
    AlreadyFinished,
    AttemptFinished,
    Cancelled,
    CancelResult,
    Claimed,
    ClaimResult,
    Finished,
    HeldByPause,
    IdCollision,
    NoSuchJob,
    Running,
    Suspect,
)
from switchyard.services.engine.records.states import FINISHED, AttemptOutcome, State

UNENDED: Final = """(
    SELECT count(*) FROM attempts AS run
    WHERE run.job_id = jobs.id AND run.redrive = jobs.redrives
        AND run.id > COALESCE((
            SELECT max(ended.id) FROM attempts AS ended
            WHERE ended.job_id = jobs.id AND ended.outcome NOT IN ('crashed', 'released')
        ), 0)
)"""
"""SQL for the number of a job's last attempts in a row that were released or crashed. Loaded for a
claim. Costs one look into an index for jobs that simply succeed, as these have no attempts in the
table."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Operation: a worker asks to run the job."""

    order: ClassVar[int] = 3
    request: ClaimRequest
    content: JobContent
    """Content of the job's message."""

    @property
    def job_id(self) -> str:
        return self.request.message.job_id

    def apply(self, rows: Rows) -> ClaimResult:
        request = self.request
        row = rows.jobs.get(self.job_id)
        history = rows.known_content(self.job_id)
        redrives = request.message.metadata.redrives
        if copy_validation.is_foreign(self.content, redrives, request.now, history):
            return IdCollision()
        message = copy_validation.correct_metadata(
            request.message, row, history.metadata if history else None
        )
        if message is not request.message:
            request = replace(request, message=message)
        decision = rules.decide_claim(row, request)
        if not isinstance(decision, Claimed | Suspect):
            return decision
        if row is not None and row.cancel_asked_at is not None:
            return self._end_cancelled(rows, row)
        if isinstance(decision, Suspect):
            return self._defer(rows, row, decision)
        if message is not self.request.message:
            decision = replace(decision, message=message)
        if row is not None and (row.join_id is not None or row.joins):
            decision = replace(decision, join_id=row.join_id, joins=row.joins)
        if row is None:
            row = rows.jobs[self.job_id] = new_row(job_columns(request))
        elif row.state is State.RUNNING:
            if row.claim_id == request.claim_id:
                return decision
            rows.end_attempt(row, AttemptOutcome.CRASHED, request.now)
        if history is not None and copy_validation.must_update_record(
            request, self.content, row, history
        ):
            rows.rewritten[row.id] = job_columns(request)
        row.redrives, row.attempts = request.message.generation
        row.crashes = decision.crashes
        held_by_pause = self._hold_if_paused(rows, row, request)
        if held_by_pause is not None:
            return held_by_pause
        row.state = State.RUNNING
        row.worker_id, row.claim_id = request.worker_id, request.claim_id
        row.started_at = row.updated_at = request.now
        row.changed = True
        return decision

    def _defer(self, rows: Rows, row: JobRow | None, suspect: Suspect) -> Suspect:
        """Leave a suspect to wait: the attempt that died with its worker is over."""
        if row is not None and row.state is State.RUNNING:
            rows.end_attempt(row, AttemptOutcome.CRASHED, self.request.now)
            row.crashes = suspect.crashes
            row.state = State.QUEUED
            row.worker_id = row.claim_id = None
            row.updated_at = self.request.now
            row.changed = True
        return suspect

    def _hold_if_paused(self, rows: Rows, row: JobRow, request: ClaimRequest) -> HeldByPause | None:
        """Hold the job in the ledger if a pause covers it: there, waiting uses up neither a queue's
        age or length limit nor a worker's slot."""
        message = request.message
        source = clean(message.metadata.source) or ""
        pause = rows.pauses.pause_of(request.lane, request.worker, message.job_type, source)
        if pause is None:
            return None
        row.state = State.PAUSED
        row.worker_id = row.claim_id = None
        row.updated_at = request.now
        row.changed = True
        return HeldByPause(str(pause))

    def _end_cancelled(self, rows: Rows, row: JobRow) -> Finished:
        """End the job as cancelled: its cancellation was requested while it ran, and its worker
        died before obeying."""
        if row.state is State.RUNNING:
            rows.end_attempt(row, AttemptOutcome.CRASHED, self.request.now)
        row.worker_id, row.claim_id = self.request.worker_id, self.request.claim_id
        row.end(State.CANCELLED, self.request.now, "cancelled")
        rows.forget_checkpoint(row)
        return Finished(State.CANCELLED)


@dataclass(frozen=True, slots=True)
class Finish:
    """Operation: end an attempt."""

    order: ClassVar[int] = 4
    request: FinishRequest
    result: str | None
    """JSON."""

    @property
    def job_id(self) -> str:
        return self.request.job_id

    def apply(self, rows: Rows) -> AttemptFinished | None:
        request = self.request
        row = rows.jobs.get(request.job_id)
        if row is None or not rules.owns(row, request):
            return None
        if row.state is State.RUNNING:
            self._end(row, rows)
        finished = AttemptFinished(state=row.state)
        if row.join_id is not None:
            rows.finishes_by_join[row.join_id] = finished
        return finished

    def _end(self, row: JobRow, rows: Rows) -> None:
        request = self.request
        error_type, error_message = clean(request.error_type), clean(request.error_message)
        if request.outcome is not None:
            rows.end_attempt(row, request.outcome, request.now, error_type, error_message)
        state = row.end(
            request.state, request.now, clean(request.reason), error_type, error_message
        )
        row.attempts = request.attempts
        row.result = self.result
        if state in (State.SUCCEEDED, State.CANCELLED):
            rows.forget_checkpoint(row)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Operation: cancel the job."""

    order: ClassVar[int] = 5
    job_id: str
    at: float

    def apply(self, rows: Rows) -> CancelResult:
        row = rows.jobs.get(self.job_id)
        if row is None:
            return NoSuchJob()
        if row.state is State.RUNNING:
            row.cancel_asked_at = row.cancel_asked_at or self.at
            row.changed = True
            return Running(row.worker_id or "")
        if row.state in FINISHED:
            return AlreadyFinished(row.state)
        row.end(State.CANCELLED, self.at, "cancelled")
        rows.forget_checkpoint(row)
        return Cancelled()
