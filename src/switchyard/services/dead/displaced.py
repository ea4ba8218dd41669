"""Jobs that the broker had taken and threw out of their full lane: told apart wherever letters are
read, from what a lane refused.

A classic queue holds more than its length while workers hold some of it unacknowledged. When the
broker restarts, these are back, and it cuts the queue to its length before it knows that a full
one refuses newcomers and drops nothing: the most urgent go first (measured on 3.10 and 4.3). The
letter says `maxlen`, as that of a newcomer to a hot lane does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from switchyard.broker.dead.certificate import BROKER, MOST_NAME, Reason
from switchyard.broker.dead.scan import Letter
from switchyard.broker.lanes import LANES, lane_named, lane_of
from switchyard.services.dead.foreign import told_apart
from switchyard.services.ledger import Ledger
from switchyard.services.records.states import UNCONFIRMED, State

_LANES = frozenset(lane.name for lane in LANES)


async def examined(ledger: Ledger, letters: Sequence[Letter]) -> list[Letter]:
    """The letters as they are to be taken: see `told_apart`, too. Raises LedgerUnavailable."""
    found = await told_apart(ledger, letters)
    doubted = [place for place, letter in enumerate(found) if _may_be_displaced(letter)]
    if doubted:
        known = await ledger.job_generations([found[place].id for place in doubted])
        for place in doubted:
            letter = found[place]
            state, redrives = known.get(letter.id, (None, letter.redrives))
            if redrives <= letter.redrives and _was_taken(letter, state):
                found[place] = _as_displaced(letter)
    return found


def _may_be_displaced(letter: Letter) -> bool:
    certificate = letter.certificate
    from_broker = certificate.error_type == BROKER and certificate.reason is Reason.OVERFLOWED
    # Anybody may have written the letter.
    queue = certificate.queue
    is_lane = lane_of(queue) in _LANES and len(queue.encode(errors="replace")) <= MOST_NAME
    return from_broker and is_lane and letter.message is not None


def _was_taken(letter: Letter, state: State | None) -> bool:
    """Whether the broker had confirmed the job, which is in that state by now."""
    if state is State.DEAD:
        return False
    if state is not None and state not in UNCONFIRMED:
        return True
    # Nothing that such a lane refuses becomes a dead letter: whoever is one was in it.
    return not lane_named(lane_of(letter.certificate.queue)).dead_letters_overflow


def as_any_other(letter: Letter) -> Letter:
    """A displaced letter as one that its lane has refused."""
    why = "dead-lettered by the broker: maxlen"
    certificate = replace(letter.certificate, reason=Reason.OVERFLOWED, message=why)
    return replace(letter, certificate=certificate)


def _as_displaced(letter: Letter) -> Letter:
    why = "the broker threw it out of its full lane, although it had taken it"
    certificate = replace(letter.certificate, reason=Reason.DISPLACED, message=why)
    return replace(letter, certificate=certificate)
