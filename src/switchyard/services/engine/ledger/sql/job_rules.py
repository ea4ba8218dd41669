"""Decide which claim may run a job, which claim's result counts, and which request may delete its
record again. All rules are pure functions of one row.

A message's generation is `(redrives, attempts)`. The broker may deliver many copies of a job; the
ledger lets one run at a time, and none that is older than the newest it has seen.
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
    HeldByWorker,
    StillJoining,
    Superseded,
    Suspect,
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
"""Reasons for which a copy dies without having run: such a death does not end a copy that runs."""
DISPLACED = "displaced"
"""The reason of letters that end no job, as they are returned to their queues automatically."""


def decide_claim(row: JobRow | None, request: ClaimRequest) -> ClaimResult:
    """Tell whether the request may run the job. `crashes` of `Claimed` and `Suspect` includes
    the takeover, if it is one."""
    decision = _decide_claim(row, request)
    is_ours = row is not None and row.claim_id == request.claim_id
    if (
        request.defers_suspects
        and isinstance(decision, Claimed)
        and decision.crashes
        and not is_ours
    ):
        return Suspect(decision.crashes)
    return decision


def _decide_claim(row: JobRow | None, request: ClaimRequest) -> ClaimResult:
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
            return Claimed(row.crashes, row.has_checkpoint, row.unended)  # its decision was lost
        if request.takeover_from is None or request.takeover_from != row.claim_id:
            return HeldByWorker(row.worker_id or "", row.claim_id or "")
        if redriven:
            return Claimed(0, row.has_checkpoint)
        return Claimed(row.crashes + 1, row.has_checkpoint, row.unended + 1)
    if redriven:
        return Claimed(0, row.has_checkpoint)
    return Claimed(row.crashes, row.has_checkpoint, row.unended)


def owns(row: JobRow | None, request: FinishRequest) -> bool:
    """Tell whether the claim is still the job's: False when another worker has taken the job
    over."""
    if row is None or row.claim_id != request.claim_id:
        return False
    # Also for the same request again, whose first decision was lost.
    was_cancelled = row.cancel_asked_at is not None and row.state is State.CANCELLED
    return row.state is State.RUNNING or row.state is request.state or was_cancelled


def is_revocable_by(row: JobRow, receipt: str | None) -> bool:
    """Tell whether the request with that receipt may still delete the record that it made: the job
    has not gone on, and no other request relies on it.

    A request may not delete a job that another one has accepted. So it never deletes a record that
    it found, and a request that finds a record takes the receipt out of it.
    """
    return row.state in REVOCABLE and receipt is not None and row.claim_id == receipt


def is_revocable(row: JobRow) -> bool:
    """Tell whether some request may still delete the record."""
    return is_revocable_by(row, row.claim_id)


def may_queue(row: JobRow | None) -> bool:
    """Tell whether a confirm of the broker changes the row: not if a worker has already claimed the
    job."""
    return row is not None and row.state in UNCONFIRMED


def may_overflow(row: JobRow | None) -> bool:
    """Tell whether the job may be marked dead because its lane was full."""
    return row is not None and row.state in WAITING - {State.RETRYING}


def may_record_dead(row: JobRow | None, letter: DeadLetterRecord) -> bool:
    """Tell whether a dead letter ends the job, and not only an old or stray copy of it."""
    if row is None or row.state in FINISHED or letter.reason == DISPLACED:
        return False
    if row.state is State.JOINING:
        return False  # nobody has sent it yet: the letter is a stray
    if row.state is State.RUNNING:
        return letter.reason not in NEVER_STARTED and letter.redrives >= row.redrives
    generation = (letter.redrives, letter.attempts)
    # A copy that never ran can have any generation: only the job's own counts.
    return (
        generation == row.generation
        if letter.reason in NEVER_STARTED
        else generation >= row.generation
    )


def may_redrive(row: JobRow | None, redrives: int) -> bool:
    """Tell whether the redrive of that number changes the row: not if a worker has claimed its
    copy."""
    return row is not None and row.state is State.DEAD and redrives > row.redrives


def may_unredrive(row: JobRow, redrives: int) -> bool:
    """Tell whether the copy of that number still waits for its first run."""
    return row.state is State.QUEUED and row.generation == (redrives, 0)
