"""Decide which claim may run a job, whose end of it counts, and who may roll its record back: pure
decisions on one row.

A message's generation is `(redrives, attempts)`. Of all copies of a job that the broker may
deliver, the ledger lets one run at a time, and never one that is older than what it has seen.
"""

from __future__ import annotations

from switchyard.services.engine.ledger.sql.job_rows import JobRow
from switchyard.services.engine.records.requests import (
    ClaimRequest,
    DeadLetterRecord,
    FinishRequest,
)
from switchyard.services.engine.records.results import (
    Claimed,
    ClaimResult,
    Finished,
    HeldBy,
    StillJoining,
    Superseded,
)
from switchyard.services.engine.records.states import (
    FINISHED,
    REVOCABLE,
    UNCONFIRMED,
    WAITING,
    State,
)

NEVER_STARTED = frozenset(
    {"expired", "overflowed", "unroutable", "refused", "malformed", "invalid_payload"}
)
"""Reasons for which a copy dies without having run; they say nothing of a copy that runs."""
GOES_BACK = "displaced"
"""The reason of letters that end no job: they go back by themselves."""


def decide_claim(row: JobRow | None, request: ClaimRequest) -> ClaimResult:
    """Tell whether the request may run the job. With `Claimed`, `crashes` counts a takeover in."""
    if row is None:
        return Claimed(crashes=0)
    if row.state in (State.SUCCEEDED, State.CANCELLED):
        return Finished(row.state)
    if row.state is State.JOINING:
        return StillJoining()
    redriven = request.message.metadata.redrives > row.redrives
    if row.state is State.DEAD and not redriven:
        return Finished(row.state)
    if request.message.generation < row.generation:
        return Superseded(row.redrives, row.attempts)
    if row.state is State.RUNNING:
        if row.claim_id == request.claim_id:
            return Claimed(row.crashes, row.has_checkpoint, row.unended)  # its answer was lost
        if request.takeover_from is None or request.takeover_from != row.claim_id:
            return HeldBy(row.worker_id or "", row.claim_id or "")
        if redriven:
            return Claimed(0, row.has_checkpoint)
        return Claimed(row.crashes + 1, row.has_checkpoint, row.unended + 1)
    if redriven:
        return Claimed(0, row.has_checkpoint)
    return Claimed(row.crashes, row.has_checkpoint, row.unended)


def owns(row: JobRow | None, request: FinishRequest) -> bool:
    """Tell whether the claim is still the job's: False when somebody has taken it over."""
    if row is None or row.claim_id != request.claim_id:
        return False
    # The same end a second time: its first answer was lost on the way.
    called_off = row.cancel_asked_at is not None and row.state is State.CANCELLED
    return row.state is State.RUNNING or row.state is request.state or called_off


def is_held_by(row: JobRow, receipt: str | None) -> bool:
    """Tell whether the record is that of one request alone, which may take it back: its receipt
    says so for as long as the job has not gone on and nobody else was told of it.

    What one request has accepted, no other may discard. So a request never takes back what it
    found, and whoever finds a record and relies on it ends its maker's right to do so.
    """
    return row.state in REVOCABLE and receipt is not None and row.claim_id == receipt


def is_held(row: JobRow) -> bool:
    """Tell whether some request may still take the record back."""
    return is_held_by(row, row.claim_id)


def may_queue(row: JobRow | None) -> bool:
    """Tell whether a confirm of the broker changes anything: not after a worker was faster."""
    return row is not None and row.state in UNCONFIRMED


def may_overflow(row: JobRow | None) -> bool:
    """Tell whether the job may be given up as one that its lane had no room for."""
    return row is not None and row.state in WAITING - {State.RETRYING}


def may_record_dead(row: JobRow | None, letter: DeadLetterRecord) -> bool:
    """Tell whether a dead letter is the end of the job, or of an old or stray copy only."""
    if row is None or row.state in FINISHED or letter.reason == GOES_BACK:
        return False
    if row.state is State.JOINING:
        return False  # nobody has sent it yet: the letter is a stray
    if row.state is State.RUNNING:
        return letter.reason not in NEVER_STARTED and letter.redrives >= row.redrives
    died = (letter.redrives, letter.attempts)
    # Any copy can end so, whatever it says of itself.
    return died == row.generation if letter.reason in NEVER_STARTED else died >= row.generation


def may_redrive(row: JobRow | None, redrives: int) -> bool:
    """Tell whether the redrive of that number is news: not after a worker has claimed it."""
    return row is not None and row.state is State.DEAD and redrives > row.redrives


def may_unredrive(row: JobRow, redrives: int) -> bool:
    """Tell whether the copy of that number still waits for its first run."""
    return row.state is State.QUEUED and row.generation == (redrives, 0)
