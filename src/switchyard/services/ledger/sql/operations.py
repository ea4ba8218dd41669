"""What the ledger does to jobs: each operation decides by the rules and changes rows in memory.

`services.ledger.sql.transaction` loads the rows of many operations, applies them in order and
writes what has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import uuid4

from switchyard.services.ledger.sql import rules
from switchyard.services.ledger.sql.codec import clean, fingerprint, message_columns
from switchyard.services.ledger.sql.rows import JobRow, KeyHolder, Rows, new_row
from switchyard.services.ledger.sql.works import Work
from switchyard.services.records.errors import IdempotencyConflict
from switchyard.services.records.requests import (
    ClaimRequest,
    DeadLetterRecord,
    FinishRequest,
    NewJob,
)
from switchyard.services.records.results import (
    AlreadyFinished,
    Cancelled,
    CancelResult,
    Claimed,
    ClaimResult,
    Created,
    EndNoted,
    Existing,
    Finished,
    Foreign,
    NoSuchJob,
    Recorded,
    Running,
)
from switchyard.services.records.states import FINISHED, AttemptOutcome, State

Answer_co = TypeVar("Answer_co", covariant=True)


class JobChange(Protocol[Answer_co]):
    """One change of one job."""

    order: ClassVar[int]
    """Its place within a transaction: a job is made before it is claimed."""

    @property
    def job_id(self) -> str: ...

    def apply(self, rows: Rows) -> Answer_co:
        """Change `rows`; the answer goes to the caller. Raises only LedgerError."""
        ...


class Record:
    """Make a job's row. Encodes the message at once, so its caller gets what is wrong with it."""

    __slots__ = ("_columns", "_joins", "_notice", "_receipt")
    order: ClassVar[int] = 1

    def __init__(self, job: NewJob) -> None:
        columns = _new_columns(job)
        columns["state"] = State.PENDING if job.run_at is None else State.SCHEDULED
        columns["run_at"] = job.run_at
        columns["join_id"] = job.join_id
        # Of this operation and no other: applied again, it knows the row that it has made.
        self._receipt = columns["claim_id"] = uuid4().hex
        self._joins = job.joins
        self._notice = None if job.notice is None else Record(job.notice)
        if job.joins is not None:
            columns |= {"state": State.JOINING, "joins": 1, "claim_id": None}
        key = clean(job.idempotency_key)
        if key is not None:
            columns["idempotency_key"] = key
            columns["fingerprint"] = fingerprint(job.message.job_type, columns["payload"])
        self._columns = columns

    @property
    def job_id(self) -> str:
        job_id: str = self._columns["id"]
        return job_id

    @property
    def idempotency_key(self) -> str | None:
        return self._columns.get("idempotency_key")

    def apply(self, rows: Rows) -> Recorded:
        key = self.idempotency_key
        # The key first: an id that is made from the key is known whatever the payload is.
        holder = None if key is None else rows.keys.get(key)
        if key is not None and holder is not None:
            if holder.fingerprint != self._columns["fingerprint"]:
                raise IdempotencyConflict(key, holder.job_id)
            return self._known(rows.jobs[holder.job_id])
        known = rows.jobs.get(self.job_id)
        if known is not None:
            return self._known(known)
        if key is not None:
            rows.keys[key] = KeyHolder(self.job_id, self._columns["fingerprint"])
        rows.jobs[self.job_id] = new_row(self._columns)
        if self._joins is not None:
            rows.opened[self.job_id] = self._joins
        if self._notice is not None:
            self._notice.apply(rows)
        return Created(self.job_id, self._receipt, self._notice_id)

    def _known(self, row: JobRow) -> Recorded:
        if rules.is_held_by(row, self._receipt):
            # Its first answer was lost on the way.
            return Created(row.id, self._receipt, self._notice_id)
        _share(row)
        return Existing(row.id, row.state)

    @property
    def _notice_id(self) -> str | None:
        return None if self._notice is None else self._notice.job_id


@dataclass(frozen=True, slots=True)
class Rely:
    """Somebody relies on a job that another has recorded: it is not taken back any more."""

    order: ClassVar[int] = 2
    job_id: str

    def apply(self, rows: Rows) -> State | None:
        """The job's state, None where there is none (any more)."""
        row = rows.jobs.get(self.job_id)
        if row is None:
            return None
        _share(row)
        return row.state


@dataclass(frozen=True, slots=True)
class MarkQueued:
    """The broker has confirmed the job."""

    order: ClassVar[int] = 2
    job_id: str
    at: float

    def apply(self, rows: Rows) -> bool:
        row = rows.jobs.get(self.job_id)
        if row is None or not rules.may_queue(row):
            return False
        row.state = State.QUEUED
        row.queued_at = row.updated_at = self.at
        row.changed = True
        return True


@dataclass(frozen=True, slots=True)
class Overflow:
    """The lane was full, and the job waits in `jobs.dead`."""

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
class Redriven:
    """A dead job was sent back to its lane, perhaps as another job than it was."""

    order: ClassVar[int] = 2
    job_id: str
    redrives: int
    at: float
    changed: NewJob | None = None

    def apply(self, rows: Rows) -> bool:
        row = rows.jobs.get(self.job_id)
        if row is not None and self.changed is not None and self.redrives >= row.redrives:
            # Also when its worker was faster: the record says what is being run.
            rows.rewritten[row.id] = _new_columns(self.changed)
        if row is None or not rules.may_redrive(row, self.redrives):
            return False
        row.state, row.redrives, row.attempts, row.crashes = State.QUEUED, self.redrives, 0, 0
        row.queued_at = row.updated_at = self.at
        row.changed = True
        return True


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker wants to run the job."""

    order: ClassVar[int] = 3
    request: ClaimRequest
    work: Work
    """Of its message."""

    @property
    def job_id(self) -> str:
        return self.request.message.job_id

    def apply(self, rows: Rows) -> ClaimResult:
        request = self.request
        row = rows.jobs.get(self.job_id)
        known = rows.known_works(self.job_id)
        if rules.is_foreign(self.work, known):
            return Foreign()
        answer = rules.decide_claim(row, request)
        if not isinstance(answer, Claimed):
            return answer
        if row is not None and row.cancel_asked_at is not None:
            return self._called_off(rows, row)
        if row is not None and (row.join_id is not None or row.joins):
            answer = replace(answer, join_id=row.join_id, joins=row.joins)
        if row is None:
            row = rows.jobs[self.job_id] = new_row(_new_columns(request))
        elif row.state is State.RUNNING:
            if row.claim_id == request.claim_id:
                return answer
            rows.end_attempt(row, AttemptOutcome.CRASHED, request.now)
        if known is not None and rules.rewrites(self.work, request.message.generation[0], known):
            rows.rewritten[row.id] = _new_columns(request)
        row.state = State.RUNNING
        row.redrives, row.attempts = request.message.generation
        row.crashes = answer.crashes
        row.worker_id, row.claim_id = request.worker_id, request.claim_id
        row.started_at = row.updated_at = request.now
        row.changed = True
        return answer

    def _called_off(self, rows: Rows, row: JobRow) -> Finished:
        """It was to be cancelled while it ran, and whoever ran it has not seen to that."""
        if row.state is State.RUNNING:
            rows.end_attempt(row, AttemptOutcome.CRASHED, self.request.now)
        row.worker_id, row.claim_id = self.request.worker_id, self.request.claim_id
        row.end(State.CANCELLED, self.request.now, "cancelled")
        rows.forget_checkpoint(row)
        return Finished(State.CANCELLED)


@dataclass(frozen=True, slots=True)
class Finish:
    """An attempt has ended."""

    order: ClassVar[int] = 4
    request: FinishRequest
    result: str | None
    """JSON."""

    @property
    def job_id(self) -> str:
        return self.request.job_id

    def apply(self, rows: Rows) -> EndNoted | None:
        request = self.request
        row = rows.jobs.get(request.job_id)
        if row is None or not rules.owns(row, request):
            return None
        noted = EndNoted()
        if row.state is not State.RUNNING:
            return noted
        error_type, error_message = clean(request.error_type), clean(request.error_message)
        if request.outcome is not None:
            rows.end_attempt(row, request.outcome, request.now, error_type, error_message)
        now = row.end(request.state, request.now, clean(request.reason), error_type, error_message)
        row.attempts = request.attempts
        row.result = self.result
        if now in (State.SUCCEEDED, State.CANCELLED):
            rows.forget_checkpoint(row)
        if row.join_id is not None:
            rows.noted[row.join_id] = noted
        return noted


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody calls the job off."""

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


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The broker refused the job: forget it, unless anybody else relies on it. Comes last, for
    that may be in the same transaction."""

    order: ClassVar[int] = 6
    made: Created

    @property
    def job_id(self) -> str:
        return self.made.job_id

    def apply(self, rows: Rows) -> State | None:
        """The state in which the job is kept; None when nothing of it is left."""
        row = rows.jobs.get(self.job_id)
        if row is None:
            return None
        if not rules.is_held_by(row, self.made.receipt):
            return row.state
        _delete(rows, row)
        notice = rows.jobs.get(self.made.notice_id or "")
        if notice is not None:
            _delete(rows, notice)
        return None


@dataclass(frozen=True, slots=True)
class Unredrive:
    """A redrive is taken back: the copy in its lane is not to run, and the job is what it was.

    The copy is of the generation that has died now, so whoever gets it skips it.
    """

    order: ClassVar[int] = 5
    job: NewJob
    """What it was."""
    redrives: int
    """Those of the copy."""
    reason: str

    @property
    def job_id(self) -> str:
        return self.job.message.job_id

    def apply(self, rows: Rows) -> bool:
        row = rows.jobs.get(self.job_id)
        if row is None or not rules.may_unredrive(row, self.redrives):
            return False
        row.end(State.DEAD, self.job.now, clean(self.reason))
        rows.rewritten[row.id] = _new_columns(self.job)
        return True


@dataclass(frozen=True, slots=True)
class Bury:
    """A letter of the job lies in `jobs.dead`. Makes its row when there is none."""

    order: ClassVar[int] = 5
    letter: DeadLetterRecord

    @property
    def job_id(self) -> str:
        return self.letter.job_id or ""

    def apply(self, rows: Rows) -> bool:
        letter = self.letter
        row = rows.jobs.get(self.job_id)
        if row is None and letter.job is not None:
            row = rows.jobs[self.job_id] = new_row(_new_columns(letter.job))
        if row is None or not rules.buries(row, letter):
            return False
        error_type, error_message = clean(letter.error_type), clean(letter.error_message)
        if row.state is State.RUNNING:
            outcome = AttemptOutcome.DEAD
            rows.end_attempt(row, outcome, letter.dead_at, error_type, error_message)
            # The worker that buried it comes later, if at all, and finds nothing left to record.
            if letter.redrives == row.redrives:
                row.attempts = max(row.attempts, letter.attempts)
        row.end(State.DEAD, letter.dead_at, clean(letter.reason), error_type, error_message)
        return True


def _delete(rows: Rows, row: JobRow) -> None:
    del rows.jobs[row.id]
    rows.opened.pop(row.id, None)
    if row.new is None:
        rows.deleted.append(row)


def _share(row: JobRow) -> None:
    if rules.is_held(row):
        row.claim_id = None
        row.changed = True


def _new_columns(job: NewJob | ClaimRequest) -> dict[str, Any]:
    return {
        **message_columns(job.message),
        "lane": clean(job.lane),
        "worker": clean(job.worker),
        "routing_key": clean(job.routing_key),
        "updated_at": job.now,
    }
