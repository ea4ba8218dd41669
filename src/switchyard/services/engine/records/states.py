"""States of jobs and their transitions, of dead letters and of redrives; pressure of lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """State of a job."""

    SCHEDULED = "scheduled"
    """Waits for its `run_at`; the scheduler publishes it then."""
    JOINING = "joining"
    """Waits for the jobs that it joins; the end of the last of them makes it `pending`."""
    PAUSED = "paused"
    """Held by a pause of its lane, type, source or queue; the scheduler publishes it when that has
    ended."""
    PENDING = "pending"
    """Recorded; the broker has not confirmed it yet. The scheduler publishes a job that stays
    pending."""
    QUEUED = "queued"
    """The broker has it: it waits in its lane."""
    RUNNING = "running"
    """A worker has claimed it."""
    RETRYING = "retrying"
    """An attempt failed; it waits for the next one."""
    SUCCEEDED = "succeeded"
    """Succeeded, for ever."""
    DEAD = "dead"
    """Failed for good; it stays in the dead letters until it is redriven."""
    CANCELLED = "cancelled"
    """Cancelled, for ever: it never runs again."""


class AttemptOutcome(StrEnum):
    """How an attempt ended that did not simply succeed."""

    RETRY = "retry"
    SNOOZE = "snooze"
    DEAD = "dead"
    CRASHED = "crashed"
    """The worker died, and another one took the job over."""
    RELEASED = "released"
    """The worker stopped or lost the broker, and gave the job back."""
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


UNCONFIRMED = frozenset({State.SCHEDULED, State.PENDING})
"""The broker has not confirmed the job yet: its confirm makes it `queued`."""

REVOCABLE = frozenset({State.PENDING, State.PAUSED})
"""States in which a job that may run now is recorded: its publisher may still remove the record."""

IN_QUEUES = frozenset({State.QUEUED, State.RETRYING})
"""The broker holds the job, in a lane or until its next attempt."""

WAITING = UNCONFIRMED | IN_QUEUES | {State.PAUSED}
"""States of jobs that are not started; a claim may run them."""

FINISHED = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})
"""Final states: only a redrive leaves one of them, `dead`."""
OPEN = tuple(state for state in State if state not in FINISHED)
"""States of unfinished jobs: these are few, and an index finds them among all."""

ENDINGS = frozenset({State.SUCCEEDED, State.RETRYING, State.QUEUED, State.DEAD, State.CANCELLED})
"""States in which an attempt may leave a job. `queued`: snoozed or released, no attempt used up."""

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.SCHEDULED: frozenset(
            {State.PAUSED, State.QUEUED, State.RUNNING, State.DEAD, State.CANCELLED}
        ),
        State.JOINING: frozenset({State.PENDING, State.CANCELLED}),
        # Never `queued`: a late confirm may be that of a copy whose job was paused at its claim.
        State.PAUSED: frozenset({State.PENDING, State.RUNNING, State.DEAD, State.CANCELLED}),
        State.PENDING: frozenset(
            {State.PAUSED, State.QUEUED, State.RUNNING, State.DEAD, State.CANCELLED}
        ),
        # queued → pending: moved to another lane, of which no queue has a copy yet.
        State.QUEUED: frozenset(
            {State.PENDING, State.PAUSED, State.RUNNING, State.DEAD, State.CANCELLED}
        ),
        # running → running and running → paused are takeovers from a worker that died.
        State.RUNNING: ENDINGS | {State.RUNNING, State.PAUSED},
        State.RETRYING: frozenset({State.PAUSED, State.RUNNING, State.DEAD, State.CANCELLED}),
        State.SUCCEEDED: frozenset(),
        # Redrives: recorded by the redrive, or seen first by the worker that claims the copy.
        State.DEAD: frozenset({State.QUEUED, State.PAUSED, State.RUNNING}),
        State.CANCELLED: frozenset(),
    }
)
"""Every change of state that the ledger makes. A row may also be deleted: while REVOCABLE, by the
request that recorded it, as long as nobody else relies on it; and while FINISHED, because of its
age (docs/retention.md)."""


class DeadLetterState(StrEnum):
    """State of a dead letter."""

    WAITING = "waiting"
    REDRIVEN = "redriven"
    PURGED = "purged"
    """Removed by an operator."""
    DROPPED = "dropped"
    """The broker no longer has it: its time there was over."""


class RedriveOutcome(StrEnum):
    """Outcome of the redrive of a letter."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The job died again, or was cancelled."""
    UNDONE = "undone"
    """The redrive was undone before the job ran."""


class Pressure(StrEnum):
    """Load of a queue: at `slow` a client should publish less, at `full` it should wait."""

    OK = "ok"
    SLOW = "slow"
    FULL = "full"


_ORDER = tuple(Pressure)


def fullest(pressures: Iterable[Pressure]) -> Pressure:
    """Return the highest of these pressures; OK where there is none."""
    return max(pressures, key=_ORDER.index, default=Pressure.OK)
