"""What the ledger keeps of language models' servers and of claims to ask them, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TRIAL_AFTER_FAILURES = 5
"""Failures in a row from which a server gets one call at a time, until one is answered."""
BRIEF_PAUSE = 5.0
"""Seconds of a server's pause up to which a request waits in its worker; for a longer one, its job
goes back to its queue."""
WAIT_FOR_SERVER = ("LlmUnreachable", "LlmSaturated", "LlmLimited", "LlmOverloaded")
"""Errors of requests that have gone back to wait for a server, and used up no attempt."""


@dataclass(frozen=True, slots=True)
class LlmServerState:
    """What the fleet knows of one server. Times are the database's, in seconds since the epoch."""

    limit: float
    """Calls that it may get at once."""
    pace: Mapping[str, Any] = field(default_factory=dict)
    """What the rule remembers (`services.llm.concurrency_policy.ServerPace`)."""
    paused_until: float = 0.0
    pause_reason: str | None = None
    failures: int = 0
    """Calls in a row that it did not answer."""
    hot_waits_until: float = 0.0
    """Until when a hot call is known to wait for room. Kept by who waits, not with the state."""
    learned: str = ""
    """How it takes parameters, by what it has refused (`services.llm.parameters`), as JSON."""
    learned_at: float = 0.0

    @property
    def is_on_trial(self) -> bool:
        """It failed again and again: one call at a time finds out whether it is back."""
        return self.failures >= TRIAL_AFTER_FAILURES

    @property
    def allowed(self) -> float:
        """Calls that it gets at once as things are."""
        return 1.0 if self.is_on_trial else self.limit

    def calls(self, most: int) -> int:
        """Return the calls that the server gets at once, where the settings allow `most`: its limit
        may be from before these settings."""
        return max(1, min(most, int(self.allowed)))


@dataclass(frozen=True, slots=True)
class SlotTaken:
    """The call may be made: it has a slot."""

    learned: str = ""
    """`LlmServerState.learned`, unless that is too old."""


@dataclass(frozen=True, slots=True)
class SlotsFull:
    """No slot is free: as many calls are under way as may be."""

    in_flight: int
    limit: int


@dataclass(frozen=True, slots=True)
class ServerPaused:
    """The server is not to be called for now."""

    seconds: float
    reason: str


SlotAnswer = SlotTaken | SlotsFull | ServerPaused


@dataclass(frozen=True, slots=True)
class LlmServerReport:
    """A server as it is now."""

    name: str
    state: LlmServerState
    in_flight: int
    paused_for: float
    """Seconds; 0 when it is not paused."""


@dataclass(frozen=True, slots=True)
class LlmMinute:
    """A server at the end of a minute."""

    at: float
    """When the minute began, in seconds since the epoch."""
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
    """Those that had gone back to wait, and are to be published again."""


@dataclass(frozen=True, slots=True)
class CacheHit:
    """The question was answered before."""

    created_at: float


@dataclass(frozen=True, slots=True)
class LeaseAcquired:
    """The question is this process' to ask."""


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """Another process is asking the question."""


@dataclass(frozen=True, slots=True)
class AnswersExamined:
    """Some of the stored answers, the last used first."""

    superfluous: Mapping[str, float]
    """Keys of those that are too old or too many, with the time of their last use."""
    total: int
    """Bytes of all answers up to the last of these, without those that are too old."""
    last: tuple[float, str] | None
    """Last use and key of the last one; None where no more follow."""
    seconds: float
    """What the transaction took."""


@dataclass(frozen=True, slots=True)
class UnrecordedAnswers:
    """Which of some files of answers nobody knows."""

    keys: Sequence[str]
    seconds: float
    """What the transaction took."""


AnswerClaim = CacheHit | LeaseAcquired | LeaseHeld
