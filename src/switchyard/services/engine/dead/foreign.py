"""Recognise foreign letters, which carry the id of a job that they are not, wherever letters are
read.

Anybody who may publish can cause one, past every worker: it expired, had no queue, or
was published to `jobs.dlx`. Such a letter must not stand for the job whose id it carries.
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
    """Return the letters; those that are not the job whose id they carry as `malformed`, under an
    id of their own. Raises LedgerUnavailable."""
    jobs = [
        (place, _collisions(each, each.message))
        for place, each in enumerate(letters)
        if each.message
    ]
    foreign = await ledger.dead_letters.find_foreign([letter for _, letter in jobs])
    classified = list(letters)
    for number in foreign:
        place, letter = jobs[number]
        classified[place] = _as_foreign(letters[place], letter.message)
    return classified


def _collisions(letter: QueuedDeadLetter, message: JobMessage) -> FoundLetter:
    certificate = letter.certificate
    is_unroutable = certificate.reason is Reason.UNROUTABLE
    return FoundLetter(
        message,
        is_ours=letter.is_ours,
        has_own_expiry=letter.has_own_expiry,
        unroutable_as=certificate.routing_key if is_unroutable else None,
    )


def _as_foreign(letter: QueuedDeadLetter, message: JobMessage) -> QueuedDeadLetter:
    certificate = replace(
        letter.certificate,
        reason=Reason.MALFORMED,
        error_type=FOREIGN,
        message=str(ForeignCopy(message.job_id)),
        traceback="",
    )
    return QueuedDeadLetter(letter.delivery, certificate, None)
