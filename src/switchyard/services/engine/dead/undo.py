"""Undo edits of dead letters whose jobs have not run yet; and find edits.

How an edit is made: `services.engine.dead.changes`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, read_dead_letter_info
from switchyard.broker.errors import NeverTaken
from switchyard.broker.lanes import DEAD_EXCHANGE, lane_of
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.errors import NotFoundError
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import LetterEdit, NewJob


class NothingToUndo(NotFoundError):
    """The letter was never edited, or the operation edited none."""


@dataclass(frozen=True, slots=True)
class UndoResult:
    """Result of undoing one edit."""

    letter_id: str
    done: bool
    note: str


async def undo(
    ledger: Ledger, registry: Registry, publisher: Publisher, edits: Sequence[LetterEdit]
) -> list[UndoResult]:
    """Undo edits whose jobs have not run: the copy in its lane never runs, and the original letter
    is in `jobs.dead` again.

    The ledger first records, in one transaction, that the copy must not run; then the letter is
    published. After an interruption between the two, the same call completes it; until then, the
    ledger has the letter. Raises PublishError, LedgerUnavailable.
    """
    return [await _undo(ledger, registry, publisher, edit) for edit in edits]


async def latest_edits(
    ledger: Ledger, *, letter_ids: Sequence[str] = (), operation_id: str | None = None
) -> list[LetterEdit]:
    """Return the last edit of each letter, or all of an operation. Raises NothingToUndo."""
    latest: list[LetterEdit] = []
    for letter_id in letter_ids:
        edits = await ledger.redrives.letter_edits(letter_id=letter_id, limit=1)
        if not edits:
            raise NothingToUndo(
                f"{letter_id} was not edited: see `jobctl dead list --state redriven`"
            )
        latest += edits
    if operation_id is not None:
        edits = await ledger.redrives.letter_edits(operation_id=operation_id, limit=1_000_000)
        if not edits:
            raise NothingToUndo(
                f"{operation_id} changed no letter, and only changes can be undone: "
                f"`jobctl dead redrives show {operation_id}`; `jobctl jobs cancel ID` stops a job"
            )
        latest += edits
    return latest


async def _undo(
    ledger: Ledger, registry: Registry, publisher: Publisher, edit: LetterEdit
) -> UndoResult:
    if edit.restored_at is not None:
        return UndoResult(edit.letter_id, True, "was undone before")
    original = JobMessage.decode(edit.original)
    # The letter gets the copy's generation: should the copy be delivered after all, it counts as
    # dead, and the next redrive counts as newer.
    original = original.with_metadata(redrives=edit.redrives + 1)
    info = read_dead_letter_info(edit.headers, edit.routing_key, original.job_type)
    if edit.undone_at is None:
        job = _to_new_job(original, info, registry)
        if not await ledger.redrives.undo_edit(edit, job, original.encode(), str(info.reason)):
            return UndoResult(edit.letter_id, False, "too late: its job has begun, or was redriven")
    try:
        await publisher.send(DEAD_EXCHANGE, info.routing_key, envelope_of(original, info.headers()))
    except NeverTaken as error:
        return UndoResult(
            edit.letter_id, False, f"its job does not run; the ledger has it: {error}"
        )
    await ledger.redrives.mark_restored(edit, ledger.clock.time())
    return UndoResult(edit.letter_id, True, "is a dead letter again, as it was")


def _to_new_job(message: JobMessage, info: DeadLetterInfo, registry: Registry) -> NewJob:
    lane = lane_of(info.routing_key)
    job_type = registry.find_publishable(message.job_type)
    worker = "" if job_type is None else job_type.worker
    return NewJob(message, lane, worker, info.routing_key)


def payloads(edit: LetterEdit) -> tuple[object, object]:
    """Return the payload before and after an edit."""
    return json.loads(edit.original).get("payload"), json.loads(edit.edited).get("payload")
