"""Recognise displaced jobs among letters: jobs that the broker had accepted, and that are no longer
in their lane. Jobs that a lane refused, or that were never recorded, are not displaced.

**Dropped.** A classic queue can hold more messages than its length while workers hold some of them
unacknowledged. After a restart of the broker these are back, and it cuts the queue to its length
before it knows the policy to refuse new messages and drop none: it drops the most urgent ones first
(measured on 3.10 and 4.3). The letter says `maxlen`, like that of a new job that a full hot lane
refuses.

**Unbound.** A job whose routing key has no queue goes from `jobs.topic` to the dead letters, and is
confirmed. If the ledger has the job, and it has not ended, it was accepted and must run. A job
without a record waits for an operator.

**Paused.** A paused job stays in its queue until a worker takes it out, and may expire there; but a
job must not expire while it is paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from switchyard.broker.dead.dead_letter_headers import (
    BROKER,
    MAX_NAME_LENGTH,
    UNBOUND,
    DeadLetterInfo,
    Reason,
)
from switchyard.broker.dead.scan import QueuedDeadLetter
from switchyard.broker.lanes import LANES, lane_named, lane_of
from switchyard.services.engine.dead.foreign import reclassify_collisions
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.states import FINISHED, UNCONFIRMED, State

PAUSED = "Paused"
"""The error type of letters of jobs that expired in their lane while they were paused."""
_LANES = frozenset(lane.name for lane in LANES)
_NEED_NOT_RUN = FINISHED | {None, State.JOINING}
"""States of jobs that need not run after their letter found no queue; None: a job without a
record."""


async def classify_displaced(
    ledger: Ledger, letters: Sequence[QueuedDeadLetter]
) -> list[QueuedDeadLetter]:
    """Return the letters, with the reasons of displaced and foreign ones corrected
    (`reclassify_collisions`). Raises LedgerUnavailable."""
    classified = await reclassify_collisions(ledger, letters)

    def ids_of(indexes: Iterable[int]) -> list[str]:
        return [classified[index].id for index in indexes]

    dropped = {index for index, letter in enumerate(classified) if _may_be_dropped(letter)}
    unroutable = {index for index, letter in enumerate(classified) if _may_be_unbound(letter)}
    expired = {index for index, letter in enumerate(classified) if _has_expired(letter)}
    paused_ids = await ledger.pauses.held(ids_of(expired))
    expired = {index for index in expired if classified[index].id in paused_ids}
    candidates = sorted(dropped | unroutable | expired)
    if not candidates:
        return classified
    generations = await ledger.redrives.job_generations(ids_of(candidates))
    unbound = []
    for index in candidates:
        letter = classified[index]
        state, redrives = generations.get(letter.id, (None, letter.redrives))
        if redrives > letter.redrives:
            continue  # the job has been redriven since
        if index in dropped and _was_confirmed(letter, state):
            classified[index] = _as_dropped(letter)
        elif index in expired and state not in FINISHED:
            classified[index] = _as_paused(letter)
        elif index in unroutable and state not in _NEED_NOT_RUN:
            unbound.append(index)
    if unbound:
        queues = await ledger.redrives.job_queues(ids_of(unbound))
        for index in unbound:
            classified[index] = _as_unbound(classified[index], queues.get(classified[index].id, ""))
    return classified


def _may_be_unbound(letter: QueuedDeadLetter) -> bool:
    """Tell whether the letter found no queue, and may have a job of ours."""
    is_unroutable = letter.info.reason is Reason.UNROUTABLE
    return is_unroutable and letter.message is not None and not letter.is_ours


def _may_be_dropped(letter: QueuedDeadLetter) -> bool:
    """Tell whether the broker has dead-lettered the job as its lane was full."""
    info = letter.info
    is_from_broker = info.error_type == BROKER and info.reason is Reason.OVERFLOWED
    # Anybody may have written the letter, with any name for the queue.
    queue = info.queue
    is_lane = lane_of(queue) in _LANES and len(queue.encode(errors="replace")) <= MAX_NAME_LENGTH
    return is_from_broker and is_lane and letter.message is not None


def _has_expired(letter: QueuedDeadLetter) -> bool:
    """Tell whether the broker has dead-lettered the job as expired in its lane."""
    info = letter.info
    return (
        info.error_type == BROKER
        and info.reason is Reason.EXPIRED
        and lane_of(info.queue) in _LANES
        and letter.message is not None
    )


def _was_confirmed(letter: QueuedDeadLetter, state: State | None) -> bool:
    """Tell whether the broker had confirmed the job, whose state is now `state`."""
    if state is State.DEAD:
        return False
    if state is not None and state not in UNCONFIRMED:
        return True
    # A lane that does not dead-letter refused jobs must have accepted this one.
    return not lane_named(lane_of(letter.info.queue)).dead_letters_overflow


def as_ordinary(letter: QueuedDeadLetter) -> QueuedDeadLetter:
    """Return a displaced letter as an ordinary one: overflowed, unroutable or expired."""
    if letter.info.reason is Reason.EXPIRED or letter.info.error_type == PAUSED:
        return _with_info(letter, reason=Reason.EXPIRED, error_type=BROKER)
    if letter.info.error_type == UNBOUND:
        info = DeadLetterInfo(
            Reason.UNROUTABLE,
            letter.info.routing_key,
            message="no queue took this key",
            dead_at=letter.info.dead_at,
        )
        return replace(letter, info=info)
    text = "dead-lettered by the broker: maxlen"
    return _with_info(letter, reason=Reason.OVERFLOWED, message=text)


def _as_paused(letter: QueuedDeadLetter) -> QueuedDeadLetter:
    text = "it grew too old for its lane while it was paused"
    return _with_info(letter, reason=Reason.DISPLACED, error_type=PAUSED, message=text)


def _as_unbound(letter: QueuedDeadLetter, queue: str) -> QueuedDeadLetter:
    text = f"no queue was bound to {letter.info.routing_key} yet"
    return _with_info(
        letter, reason=Reason.DISPLACED, queue=queue, error_type=UNBOUND, message=text
    )


def _as_dropped(letter: QueuedDeadLetter) -> QueuedDeadLetter:
    text = "the broker threw it out of its full lane, although it had taken it"
    return _with_info(letter, reason=Reason.DISPLACED, message=text)


def _with_info(letter: QueuedDeadLetter, **changes: Any) -> QueuedDeadLetter:
    """Return the letter with some fields of its DeadLetterInfo changed."""
    return replace(letter, info=replace(letter.info, **changes))
