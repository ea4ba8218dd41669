"""The state of model servers in the ledger, and answers to claims, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TRIAL_AFTER_FAILURES = 5
"""Failures in a row from which a server gets one call at a time, until one is answered."""
SLOT_TTL = 15.0
"""Seconds after which the slots of a process that has died are free again."""
MAX_PAUSE = 3600.0
"""Seconds that a server may ask to be left alone."""
PAUSE_SPREAD = 1.1
"""Highest random factor by which a pause is made longer, so that processes do not ask at the same
moment."""
BRIEF_PAUSE = 5.0
"""Longest pause of a server, in seconds, for which a request waits in its worker; for a longer one,
its job goes back to its queue."""
WAIT_FOR_SERVER = ("LlmUnreachable", "LlmSaturated", "LlmLimited", "LlmOverloaded")
"""Classes of the errors with which a job goes back to its queue to wait for a server, without using
up an attempt."""


@dataclass(frozen=True, slots=True)
class LlmServerState:
    """State of a server that all processes share. Times are the database's, in seconds since the
    epoch."""

    limit: float
    """Calls that it may get at once."""
    pace: Mapping[str, Any] = field(default_factory=dict)
    """State of the concurrency policy, as JSON (`services.llm.concurrency_policy.PolicyState`)."""
    paused_until: float = 0.0
    pause_reason: str | None = None
    failures: int = 0
    """Calls in a row that the server did not answer."""
    hot_waits_until: float = 0.0
    """Until when a hot call is known to wait for a slot. Only waiting hot calls write it: any other
    change of the state leaves it as it is."""
    learned: str = ""
    """Which parameters the server takes, learned from its refusals (`services.llm.parameters`), as
    JSON."""
    learned_at: float = 0.0

    @property
    def is_on_trial(self) -> bool:
        """Whether the server failed so often that it gets one call at a time, until it answers
        one."""
        return self.failures >= TRIAL_AFTER_FAILURES

    @property
    def allowed(self) -> float:
        """Calls that the server gets at once now: one on trial, else `limit`."""
        return 1.0 if self.is_on_trial else self.limit

    def calls(self, max_calls: int) -> int:
        """Return how many calls the server gets at once. It is at most `max_calls`, the settings'
        maximum: the limit may be older than the settings."""
        return max(1, min(max_calls, int(self.allowed)))


@dataclass(frozen=True, slots=True)
class SlotAcquired:
    """The call may be made: it has a slot."""

    learned: str = ""
    """`LlmServerState.learned`, unless that is too old."""


@dataclass(frozen=True, slots=True)
class SlotsFull:
    """No slot is free for this call."""

    in_flight: int
    limit: int


@dataclass(frozen=True, slots=True)
class ServerPaused:
    """The server is paused: it is not called for some time."""

    seconds: float
    reason: str


SlotAnswer = SlotAcquired | SlotsFull | ServerPaused


@dataclass(frozen=True, slots=True)
class LlmServerReport:
    """A server as it is now."""

    name: str
    state: LlmServerState
    in_flight: int
    paused_for: float
    """Seconds; 0 when it is not paused."""


@dataclass(frozen=True, slots=True)
class WaitingOutsideQueues:
    """How many jobs wait for servers, and not in a queue of their lane."""

    in_workers: int
    """Running jobs that make no call: they wait in their process for a slot at a server."""
    delayed: int
    """Jobs that were sent away because no server takes them now, as while all are paused."""


@dataclass(frozen=True, slots=True)
class LlmMinute:
    """A server at the end of a minute."""

    at: float
    """End of the minute, a whole minute of wall-clock time, in seconds since the epoch."""
    server: str
    calls_allowed: int
    """Calls that it might get at once."""
    in_flight: int


@dataclass(frozen=True, slots=True)
class LlmPause:
    """A pause of a server. Times are the database's, in seconds since the epoch."""

    server: str
    began_at: float
    until: float
    """When it ended, or will."""
    reason: str | None


@dataclass(frozen=True, slots=True)
class PauseEnded:
    """Somebody has ended a server's pause."""

    paused_for: float
    """Seconds that were left of it; 0 when it was not paused."""
    jobs: int
    """Jobs that had gone back to their queues to wait for the server, and are published again."""


@dataclass(frozen=True, slots=True)
class AnswerClaimRequest:
    """Request of a process for a stored answer, or else for the claim to ask the question."""

    key: str
    """Key of the question."""
    holder: str
    """The process."""
    ttl: float
    """Seconds after which the claim runs out, unless it is renewed."""
    max_age: float
    """Seconds after which a stored answer does not count any more."""


@dataclass(frozen=True, slots=True)
class CacheHit:
    """There is a stored answer to the question."""

    created_at: float


@dataclass(frozen=True, slots=True)
class LeaseAcquired:
    """This process has the claim to ask the question."""


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """Another process is asking the question."""


@dataclass(frozen=True, slots=True)
class AnswersExamined:
    """The result of examining some stored answers, the most recently used first."""

    superfluous: Mapping[str, float]
    """By key, the time of the last use of answers that are too old or too many."""
    kept_bytes_so_far: int
    """Bytes of all answers from the first page to the end of this one, without those that are too
    old."""
    last: tuple[float, str] | None
    """Last use and key of the last answer examined; None if no more follow."""
    seconds: float
    """Seconds that the transaction took."""


@dataclass(frozen=True, slots=True)
class UnrecordedAnswers:
    """Keys of stored answers, of those asked for, that have no record."""

    keys: Sequence[str]
    seconds: float
    """Seconds that the transaction took."""


AnswerClaim = CacheHit | LeaseAcquired | LeaseHeld
