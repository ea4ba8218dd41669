"""Check a message against the job's record: what it says of itself counts only where both agree.

Anybody who may publish can send a copy of a known job, with the right content and any metadata: a
redrive that nobody has asked for, more attempts than were made, another time limit. Of a job
without a record, its message is all that is known; of one with a record, the record is. Each claim
and each letter is judged here.
"""

from __future__ import annotations

from typing import Any

from switchyard.broker.message import JobMessage
from switchyard.broker.times import to_datetime
from switchyard.services.engine.ledger.sql.job_content import (
    ContentHistory,
    JobContent,
    RecordedMetadata,
)
from switchyard.services.engine.ledger.sql.job_rows import JobRow
from switchyard.services.engine.records.requests import ClaimRequest, FoundLetter
from switchyard.services.engine.records.states import State

EARLY_SECONDS = 60.0
"""A scheduled job that is due within this time may be delivered: clocks differ a little."""
QUEUED_SECONDS = 60.0
"""Seconds by which a message's `queued_at` may precede the record's: the message is made before it
is confirmed."""


def is_foreign(content: JobContent, redrives: int, at: float, known: ContentHistory | None) -> bool:
    """Tell whether a message is another job than the one whose id it carries, whoever has sent it:
    its content is neither the recorded one nor any that a redrive has changed from or to; or it
    says that it was redriven, and no redrive has noted that; or the job is scheduled for later than
    `at`, the ledger's time.

    Such a message neither runs under the record nor changes what it says, nor is it lost without a
    word: it becomes a dead letter under an id of its own.
    """
    if known is None:
        return False
    if not _is_known(content, known):
        return True
    return _is_unknown_redrive(redrives, known) or _is_early(at, known)


def is_foreign_letter(
    letter: FoundLetter, content: JobContent, at: float, known: ContentHistory | None
) -> bool:
    """Return the same of a message in `jobs.dead`."""
    if known is None:
        return False
    if letter.is_ours:  # nobody else can write one; and the ledger may be an older copy
        return not _is_known(content, known)
    redrives = letter.message.metadata.redrives
    has_expired = letter.has_own_expiry and known.is_ours
    if has_expired or is_foreign(content, redrives, at, known):
        return True
    # A redrive may have sent it elsewhere.
    is_elsewhere = letter.unroutable_as not in (None, known.routing_key)
    return is_elsewhere and redrives <= known.redrives


def _is_known(content: JobContent, known: ContentHistory) -> bool:
    return any(content.is_same(each) for each in known.all())


def _is_unknown_redrive(redrives: int, known: ContentHistory) -> bool:
    # Whoever redrives notes it first. What is over for good is skipped anyway.
    is_over = known.state in (State.SUCCEEDED, State.CANCELLED)
    return redrives > known.redrives and redrives not in known.planned and not is_over


def _is_early(at: float, known: ContentHistory) -> bool:
    run_at = known.run_at if known.state is State.SCHEDULED else None
    return run_at is not None and run_at > at + EARLY_SECONDS


def agreed(
    message: JobMessage, row: JobRow | None, recorded: RecordedMetadata | None
) -> JobMessage:
    """Return the message, not foreign, as far as the ledger agrees to what it says of itself."""
    if row is None or recorded is None:
        return message
    metadata = message.metadata
    if metadata.redrives > row.redrives:
        # Just redriven, and perhaps as another job than it was; the record is about to say so.
        return message if metadata.attempts == 0 else message.with_metadata(attempts=0)
    changes: dict[str, Any] = {}
    # The worker that has published the retry may have died before it could say so.
    if metadata.attempts > row.attempts + (row.state is State.RUNNING):
        changes["attempts"] = row.attempts
    since, queue_times = recorded.queued_at, metadata.queued_at
    if (
        since is not None
        and queue_times is not None
        and queue_times.timestamp() < since - QUEUED_SECONDS
    ):
        changes["queued_at"] = to_datetime(since)
    if not recorded.says(message):
        changes |= recorded.as_metadata()
        message = message.model_copy(update={"priority": recorded.priority})
    return message.with_metadata(**changes) if changes else message


def rewrites(
    request: ClaimRequest, content: JobContent, row: JobRow, known: ContentHistory
) -> bool:
    """Tell whether a copy that runs is what a redrive has made of the job, so that the record is to
    say so: whoever did that may not have got to it. A message by itself changes no record."""
    redrives = request.message.metadata.redrives
    if not content.is_same(known.recorded) or known.is_edit(content, redrives):
        return True
    is_redriven = redrives > row.redrives
    return is_redriven and known.kept is not None and not known.kept.says(request.message)
