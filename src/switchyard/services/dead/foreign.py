"""Letters that carry the id of a job and are another: told apart wherever letters are read.

Anybody who may publish can have brought one there, past every worker: it expired, had no queue, or
was published to `jobs.dlx`. Such a letter must not stand for the job whose id it carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from switchyard.broker.dead.certificate import FOREIGN, Reason
from switchyard.broker.dead.scan import Letter
from switchyard.broker.errors import ForeignCopy
from switchyard.broker.message import JobMessage
from switchyard.services.ledger import Ledger


async def told_apart(ledger: Ledger, letters: Sequence[Letter]) -> list[Letter]:
    """The letters; those that are not the job whose id they carry as `malformed`, under an id of
    their own. Raises LedgerUnavailable."""
    jobs = [(place, each.message) for place, each in enumerate(letters) if each.message]
    foreign = await ledger.foreign_among([message for _, message in jobs])
    found = list(letters)
    for number in foreign:
        place, message = jobs[number]
        found[place] = _as_foreign(letters[place], message)
    return found


def _as_foreign(letter: Letter, message: JobMessage) -> Letter:
    certificate = replace(
        letter.certificate,
        reason=Reason.MALFORMED,
        error_type=FOREIGN,
        message=str(ForeignCopy(message.job_id)),
        traceback="",
    )
    return Letter(letter.delivery, certificate, None)
