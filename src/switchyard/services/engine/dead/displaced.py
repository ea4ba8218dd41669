"""Recognise displaced jobs, wherever letters are read: the broker had accepted them, and they are
no longer in their lane. They differ from jobs that a lane refused or that were sent astray.

**Thrown out.** A classic queue holds more than its length while workers hold some of it
unacknowledged. When the broker restarts, these are back, and it cuts the queue to its length before
it knows that a full queue refuses new messages and drops nothing: the most urgent go first
(measured on 3.10 and 4.3). The letter says `maxlen`, as does that of a new job that a full hot lane
refuses.

**Unbound.** A job whose key no queue is bound to goes from `jobs.topic` to the dead letters, and is
confirmed. Where the ledger has the job, and it has not ended, it was accepted and must run. A job
without a record waits for an operator: its publisher would send it astray again.

**Paused.** A paused job that no worker has taken out of its queue meanwhile grows too old there.
But no job expires while it is paused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
"""The error type of letters of jobs that were paused when they grew too old for their lane."""
_LANES = frozenset(lane.name for lane in LANES)
_ENDS_UNROUTABLE = FINISHED | {None, State.JOINING}
"""States in which a letter without a queue is not that of an accepted job that must run; None
for a job without a record."""


async def classify_displaced(
    ledger: Ledger, letters: Sequence[QueuedDeadLetter]
) -> list[QueuedDeadLetter]:
    """Return the letters, displaced and foreign ones with their proper reason: see also
    `reclassify_collisions`. Raises LedgerUnavailable."""
    classified = await reclassify_collisions(ledger, letters)
    thrown_out = {place for place, letter in enumerate(classified) if _may_be_thrown_out(letter)}
    astray = {place for place, letter in enumerate(classified) if _went_astray(letter)}
    aged = {place for place, letter in enumerate(classified) if _grew_too_old(letter)}
    held = await ledger.pauses.held([classified[place].id for place in aged])
    aged = {place for place in aged if classified[place].id in held}
    doubted = sorted(thrown_out | astray | aged)
    if not doubted:
        return classified
    generations = await ledger.redrives.job_generations([classified[place].id for place in doubted])
    unbound = []
    for place in doubted:
        letter = classified[place]
        state, redrives = generations.get(letter.id, (None, letter.redrives))
        if redrives > letter.redrives:
            continue
        if place in thrown_out and _was_confirmed(letter, state):
            classified[place] = _as_thrown_out(letter)
        elif place in aged and state not in FINISHED:
            classified[place] = _as_paused(letter)
        elif place in astray and state not in _ENDS_UNROUTABLE:
            unbound.append(place)
    if unbound:
        queues = await ledger.redrives.job_queues([classified[place].id for place in unbound])
        for place in unbound:
            classified[place] = _as_unbound(classified[place], queues.get(classified[place].id, ""))
    return classified


def _went_astray(letter: QueuedDeadLetter) -> bool:
    """Tell whether no queue was bound to its key, and its message may be a job of ours."""
    is_unroutable = letter.certificate.reason is Reason.UNROUTABLE
    return is_unroutable and letter.message is not None and not letter.is_ours


def _may_be_thrown_out(letter: QueuedDeadLetter) -> bool:
    certificate = letter.certificate
    from_broker = certificate.error_type == BROKER and certificate.reason is Reason.OVERFLOWED
    # Anybody may have written the letter.
    queue = certificate.queue
    is_lane = lane_of(queue) in _LANES and len(queue.encode(errors="replace")) <= MAX_NAME_LENGTH
    return from_broker and is_lane and letter.message is not None


def _grew_too_old(letter: QueuedDeadLetter) -> bool:
    """Tell whether the broker has dead-lettered the job as it was too old for its lane."""
    certificate = letter.certificate
    return (
        certificate.error_type == BROKER
        and certificate.reason is Reason.EXPIRED
        and lane_of(certificate.queue) in _LANES
        and letter.message is not None
    )


def _was_confirmed(letter: QueuedDeadLetter, state: State | None) -> bool:
    """Tell whether the broker had confirmed the job, whose state is now `state`."""
    if state is State.DEAD:
        return False
    if state is not None and state not in UNCONFIRMED:
        return True
    # Such a lane dead-letters no job that it refuses: so this one was in it.
    return not lane_named(lane_of(letter.certificate.queue)).dead_letters_overflow


def as_overflowed(letter: QueuedDeadLetter) -> QueuedDeadLetter:
    """Return a displaced letter as one that its lane has refused, or that no queue took."""
    if letter.certificate.reason is Reason.EXPIRED or letter.certificate.error_type == PAUSED:
        certificate = replace(letter.certificate, reason=Reason.EXPIRED, error_type=BROKER)
        return replace(letter, certificate=certificate)
    if letter.certificate.error_type == UNBOUND:
        certificate = DeadLetterInfo(
            Reason.UNROUTABLE,
            letter.certificate.routing_key,
            message="no queue took this key",
            dead_at=letter.certificate.dead_at,
        )
        return replace(letter, certificate=certificate)
    why = "dead-lettered by the broker: maxlen"
    certificate = replace(letter.certificate, reason=Reason.OVERFLOWED, message=why)
    return replace(letter, certificate=certificate)


def _as_paused(letter: QueuedDeadLetter) -> QueuedDeadLetter:
    why = "it grew too old for its lane while it was paused"
    certificate = replace(
        letter.certificate, reason=Reason.DISPLACED, error_type=PAUSED, message=why
    )
    return replace(letter, certificate=certificate)


def _as_unbound(letter: QueuedDeadLetter, queue: str) -> QueuedDeadLetter:
    certificate = replace(
        letter.certificate,
        reason=Reason.DISPLACED,
        queue=queue,
        error_type=UNBOUND,
        message=f"no queue was bound to {letter.certificate.routing_key} yet",
    )
    return replace(letter, certificate=certificate)


def _as_thrown_out(letter: QueuedDeadLetter) -> QueuedDeadLetter:
    why = "the broker threw it out of its full lane, although it had taken it"
    certificate = replace(letter.certificate, reason=Reason.DISPLACED, message=why)
    return replace(letter, certificate=certificate)
