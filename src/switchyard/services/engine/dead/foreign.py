"""Recognise foreign letters: messages that have the id of a job, but are not copies of it.

Anybody who may publish can cause one without any worker: by a message that expires or has no queue,
or by publishing to `jobs.dlx`. Such a letter must not count as one of the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from switchyard.broker.dead.dead_letter_headers import FOREIGN, Reason
from switchyard.broker.dead.scan import QueuedDeadLetter
from switchyard.broker.errors import ForeignCopy
from switchyard.broker.message import JobMessage
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import FoundLetter


async def reclassify_collisions(
    ledger: Ledger, letters: Sequence[QueuedDeadLetter]
) -> list[QueuedDeadLetter]:
    """Return the letters, foreign ones as `malformed` and with an id of their own. Raises
    LedgerUnavailable."""
    found_letters = [
        (index, _to_found_letter(each, each.message))
        for index, each in enumerate(letters)
        if each.message
    ]
    foreign = await ledger.dead_letters.find_foreign([letter for _, letter in found_letters])
    classified = list(letters)
    for number in foreign:
        index, letter = found_letters[number]
        classified[index] = _as_foreign(letters[index], letter.message)
    return classified


def _to_found_letter(letter: QueuedDeadLetter, message: JobMessage) -> FoundLetter:
    info = letter.info
    is_unroutable = info.reason is Reason.UNROUTABLE
    return FoundLetter(
        message,
        is_ours=letter.is_ours,
        has_own_expiry=letter.has_own_expiry,
        unroutable_as=info.routing_key if is_unroutable else None,
    )


def _as_foreign(letter: QueuedDeadLetter, message: JobMessage) -> QueuedDeadLetter:
    info = replace(
        letter.info,
        reason=Reason.MALFORMED,
        error_type=FOREIGN,
        message=str(ForeignCopy(message.job_id)),
        traceback="",
    )
    return QueuedDeadLetter(letter.delivery, info, None)
