"""Check a message against the job's record: its metadata counts only where both agree.

Anybody who may publish can send a copy of a known job with the right content and false metadata: a
redrive that nobody has asked for, more attempts than were made, another time limit. So the record's
metadata is used, and the message's only if the job has no record. Each claim and each letter is
checked here.
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

MAX_EARLY = 60.0
"""Seconds by which a scheduled job may be delivered before its due time: clocks differ a little."""
MAX_QUEUED_BEFORE = 60.0
"""Seconds by which a message's `queued_at` may precede the record's: the message is made before it
is confirmed."""


def is_foreign(
    content: JobContent, redrives: int, now: float, history: ContentHistory | None
) -> bool:
    """Tell whether a message is not a copy of the job whose id it has: its content is neither the
    recorded one nor one from before or after a redrive's edit; or it has a redrive number that no
    redrive has recorded; or the job is scheduled for later than `now`, the ledger's time.

    Such a message does not run, and does not change the record. It becomes a dead letter with an id
    of its own.
    """
    if history is None:
        return False
    if not _is_known(content, history):
        return True
    return _is_unknown_redrive(redrives, history) or _is_too_early(now, history)


def is_foreign_letter(
    letter: FoundLetter, content: JobContent, now: float, history: ContentHistory | None
) -> bool:
    """Tell whether a letter in `jobs.dead` is not a copy of the job whose id it has."""
    if history is None:
        return False
    if letter.is_ours:  # only this system can write one; the ledger may be a restored, older one
        return not _is_known(content, history)
    redrives = letter.message.metadata.redrives
    has_expired = letter.has_own_expiry and history.is_ours
    if has_expired or is_foreign(content, redrives, now, history):
        return True
    # A redrive may have sent it to another queue.
    is_elsewhere = letter.unroutable_as not in (None, history.routing_key)
    return is_elsewhere and redrives <= history.redrives


def _is_known(content: JobContent, history: ContentHistory) -> bool:
    return any(content.is_same(each) for each in history.all_contents())


def _is_unknown_redrive(redrives: int, history: ContentHistory) -> bool:
    # A redrive is recorded before it is sent. A copy of a finished job is skipped anyway.
    is_over = history.state in (State.SUCCEEDED, State.CANCELLED)
    return redrives > history.redrives and redrives not in history.planned and not is_over


def _is_too_early(now: float, history: ContentHistory) -> bool:
    run_at = history.run_at if history.state is State.SCHEDULED else None
    return run_at is not None and run_at > now + MAX_EARLY


def correct_metadata(
    message: JobMessage, row: JobRow | None, recorded: RecordedMetadata | None
) -> JobMessage:
    """Return the message, which is not foreign, with the record's metadata where they differ."""
    if row is None or recorded is None:
        return message
    metadata = message.metadata
    if metadata.redrives > row.redrives:
        # Just redriven, perhaps with an edit: the record is about to be updated.
        return message if metadata.attempts == 0 else message.with_metadata(attempts=0)
    changes: dict[str, Any] = {}
    # The worker that published the retry may have died before it recorded it.
    if metadata.attempts > row.attempts + (row.state is State.RUNNING):
        changes["attempts"] = row.attempts
    recorded_at, queued_at = recorded.queued_at, metadata.queued_at
    if (
        recorded_at is not None
        and queued_at is not None
        and queued_at.timestamp() < recorded_at - MAX_QUEUED_BEFORE
    ):
        changes["queued_at"] = to_datetime(recorded_at)
    if not recorded.matches(message):
        changes |= recorded.as_metadata()
        message = message.model_copy(update={"priority": recorded.priority})
    return message.with_metadata(**changes) if changes else message


def must_update_record(
    request: ClaimRequest, content: JobContent, row: JobRow, history: ContentHistory
) -> bool:
    """Tell whether the claim must write its message into the record: it is the copy of a redrive
    that changed the job, and that may have died before it updated the record. Other messages change
    no record."""
    redrives = request.message.metadata.redrives
    if not content.is_same(history.recorded) or history.is_edit(content, redrives):
        return True
    is_redriven = redrives > row.redrives
    return (
        is_redriven
        and history.metadata is not None
        and not history.metadata.matches(request.message)
    )
