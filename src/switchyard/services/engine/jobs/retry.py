"""Decide what happens after an attempt, by a pure function.

Requirement T9 (docs/requirements.md): 5 s, doubled, at most 5 min, 3 attempts. Retried: non-2xx
answers, network errors and time-outs, processing errors, exhausted resources. Not retried: failures
that a handler declares permanent.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.lanes import RETRY_DELAYS
from switchyard.broker.wording import writable
from switchyard.services.common.durations import bounded_delay, retry_after
from switchyard.services.common.errors import (
    Expired,
    InvalidInput,
    PermanentFailure,
    RetryableError,
)
from switchyard.services.engine.jobs.outcomes import (
    Discard,
    Done,
    Job,
    Next,
    Outcome,
    Retry,
    Snooze,
)
from switchyard.services.engine.jobs.secret_fields import Scrubber
from switchyard.services.engine.records.joins import WHEN_DEAD, WhenDead

MAX_CRASHES = 2
"""A job that killed its process this often is dead. After the death of a worker with several jobs,
each of these is a suspect, and runs in a process of its own, which shows which one is to blame."""
MAX_DEATHS = 5
"""A job that ran in this many workers when they died is dead, even without proof: it may harm more
than its own process, as by using all of a machine's memory."""
MAX_UNENDED_RUNS = 20
"""A job with this many runs in a row without an end is dead, whatever the cause: the last safety
net. High enough for a long job that is interrupted by many deployments, low enough to bound what
its calls cost."""
INVALID_OUTCOME = "InvalidOutcome"
"""The error type of jobs whose handler returns an outcome that is invalid or can't be written."""


_TEXT_LIMITS = {"error_type": 200, "message": 8_000, "traceback": 12_000}
"""Characters kept of each text of a failure: the start, of a traceback the end."""


class RemoteError(Exception):
    """An error of another process, of a class that can't be unpickled here."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(error_type, message)
        self.error_type = error_type

    def __str__(self) -> str:
        return str(self.args[1])


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of an attempt, in a form that can be pickled and stored anywhere: its texts are
    shortened, and have no unencodable characters."""

    error_type: str
    message: str
    traceback: str = ""
    permanent: bool = False
    crashed: bool = False
    """The handler's process died (signal, memory limit, exit)."""
    after: float | None = None
    """Seconds to wait at least (Retry-After)."""
    counts: bool = True
    """Whether the failure uses up an attempt."""
    ages: bool = True
    """Whether the wait for the next attempt counts towards the job's age; only where no attempt is
    used up."""
    expired: bool = False
    """The job's `expires_at` has passed."""

    def __post_init__(self) -> None:
        for name, limit in _TEXT_LIMITS.items():
            text = getattr(self, name)
            shortened = writable(text, limit, keep_end=name == "traceback")
            if shortened is not text:
                object.__setattr__(self, name, shortened)

    def scrub(self, scrubber: Scrubber) -> Failure:
        """Return the failure without the secrets of a payload."""
        return replace(
            self,
            message=scrubber.scrub(self.message),
            traceback=scrubber.scrub(self.traceback),
        )

    @classmethod
    def from_error(cls, error: BaseException) -> Failure:
        """Classify an exception that a handler raised, of whatever class. Never raises."""
        # Not `type(error).__name__`, which a metaclass may override.
        name = _name_of(type(error))
        try:
            return cls(
                error_type=error.error_type if isinstance(error, RemoteError) else name,
                message=str(error) or name,
                traceback=_traceback_of(error),
                # PermanentError is a PermanentFailure; invalid input stays invalid every time.
                permanent=isinstance(error, PermanentFailure | InvalidInput),
                after=_min_wait_of(error),
                counts=not isinstance(error, RetryableError) or bool(error.counts),
                ages=not isinstance(error, RetryableError) or bool(error.ages),
                expired=isinstance(error, Expired),
            )
        except BaseException as defect:  # raised by the methods of a foreign exception class
            unreadable = f"{name}, which can't be read: {_name_of(type(defect))}"
            return cls(name, unreadable, _traceback_of(error))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Backoff: `base` seconds, multiplied by `factor` for each attempt, at most `limit`."""

    base: float
    factor: float
    limit: float
    levels: tuple[float, ...]
    """Delays that the broker has queues for, ascending, in seconds."""

    @classmethod
    def from_levels(cls, levels: Sequence[float] = RETRY_DELAYS) -> RetryPolicy:
        """Return the doubling policy that starts at the first level and ends at the last."""
        return cls(base=levels[0], factor=2, limit=levels[-1], levels=tuple(levels))

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt` (from 1) has failed."""
        # The exponent is bounded before it is used: 2.0 ** 2000 does not fit into a float.
        return float(min(self.base * self.factor ** min(attempt - 1, 64), self.limit))

    def level(self, seconds: float) -> float:
        """Return the shortest level that is long enough; the longest where none is."""
        return next((level for level in self.levels if level >= seconds), self.levels[-1])

    def first_level(self, seconds: float) -> float:
        """Return the first level for a wait of `seconds`: a shorter one, after which the job waits
        again for the rest, if the job returns sooner that way than from the shortest level that is
        long enough."""
        return self._level_path(seconds)[0]

    def _level_path(self, seconds: float) -> tuple[float, float]:
        """Return the first level, and the seconds until the job returns in all."""
        single = self.level(seconds)
        shorter = max((level for level in self.levels if level <= seconds), default=single)
        rest = seconds - shorter
        if not 0 < rest <= shorter:  # many short waits gain nothing
            return single, single
        total = shorter + self._level_path(rest)[1]
        return (shorter, total) if total < single else (single, single)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The job has succeeded, and others may follow."""

    result: Mapping[str, Any]
    jobs: Sequence[Job] = ()
    then: Job | None = None
    """Job that is published when `jobs`, and all that follow from them, have ended."""
    when_dead: WhenDead = "wait"


@dataclass(frozen=True, slots=True)
class Delayed:
    """The job returns to its queue through a retry level."""

    level: float
    """Seconds; one of the policy's levels."""
    attempts: int
    """Attempts used up by then: unchanged for a snooze."""
    not_before: datetime | None
    """Set where the delay is longer than the level: the job waits again until this time."""
    failure: Failure
    counts: bool
    """False for a snooze, which uses up no attempt."""
    ages: bool = False
    """Whether the wait counts towards the job's age in its lane."""
    rest: float = 0.0
    """Seconds for which it waits again after that level."""

    @property
    def seconds(self) -> float:
        """Seconds that it waits in all."""
        return self.level + self.rest


@dataclass(frozen=True, slots=True)
class Died:
    """The job goes to the dead letters."""

    reason: Reason
    attempts: int
    failure: Failure


Decision = Succeeded | Delayed | Died


def decide(
    outcome: Outcome | Failure | object,
    *,
    attempts: int,
    max_attempts: int,
    policy: RetryPolicy,
    now: datetime,
    crashes: int = 0,
) -> Decision:
    """Return what to do with a job whose attempt has ended.

    `outcome` is the handler's outcome or its failure; any other value is a defect of the handler,
    for which the job dies. `attempts` were used up before this one. `crashes`: how often its worker
    died while the job ran in the worker's own process. Never raises.
    """
    attempts_used = attempts + 1
    match outcome:
        case Done(Mapping() as result):
            return Succeeded(result)
        case Next(Sequence() as jobs, Mapping() as result, Job() | None as then, when_dead) if (
            _are_jobs(jobs) and when_dead in WHEN_DEAD
        ):
            return Succeeded(result, tuple(jobs), then, when_dead)
        case Snooze(after, reason):
            failure = Failure("Snooze", str(reason))
            return _delay(bounded_delay(after), attempts, failure, policy, now, counts=False)
        case Discard(reason):
            return Died(
                Reason.PERMANENT, attempts_used, Failure("Discard", str(reason), permanent=True)
            )
        case Retry(reason, after):
            failure = Failure("Retry", str(reason), after=after)
        case Failure():
            failure = outcome
        case Done() | Next():
            expected = "jobs, a mapping, and as when_dead one of " + ", ".join(WHEN_DEAD)
            failure = _invalid(f"a {type(outcome).__name__} that does not hold {expected}")
        case _:
            kinds = "Done, Next, Retry, Snooze, Discard"
            failure = _invalid(f"{type(outcome).__name__}, not one of {kinds}")
    if failure.expired:
        return Died(Reason.EXPIRED, attempts_used, failure)
    if failure.permanent:
        return Died(Reason.PERMANENT, attempts_used, failure)
    if not failure.counts:
        wait = bounded_delay(failure.after)
        return _delay(wait, attempts, failure, policy, now, counts=False, ages=failure.ages)
    # A job that was in a dying worker, and then kills its own process, is blamed for both deaths.
    deaths = attempts_used + min(crashes, 1)
    if failure.crashed and deaths >= min(max_attempts, MAX_CRASHES):
        return Died(Reason.CRASHED, attempts_used, failure)
    if attempts_used >= max_attempts:
        return Died(Reason.EXHAUSTED, attempts_used, failure)
    wait = max(policy.backoff(attempts_used), bounded_delay(failure.after))
    return _delay(wait, attempts_used, failure, policy, now, counts=True)


def _delay(
    wait: float,
    attempts: int,
    failure: Failure,
    policy: RetryPolicy,
    now: datetime,
    *,
    counts: bool,
    ages: bool = False,
) -> Delayed:
    level = policy.first_level(wait)
    rest = max(0.0, wait - level)
    not_before = now + timedelta(seconds=wait) if rest else None
    return Delayed(level, attempts, not_before, failure, counts, ages, rest)


def _are_jobs(jobs: Sequence[object]) -> bool:
    return all(isinstance(each, Job) for each in jobs)


def _invalid(what: str) -> Failure:
    return Failure(INVALID_OUTCOME, f"the handler returned {what}", permanent=True)


def _name_of(kind: type[BaseException]) -> str:
    name: str = type.__dict__["__name__"].__get__(kind)
    return name


def _traceback_of(error: BaseException) -> str:
    """Return the error's traceback as text; at least its frames, where the error itself
    can't be formatted."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:
        return "".join(traceback.format_tb(error.__traceback__))


def _min_wait_of(error: BaseException) -> float | None:
    """Return the minimum seconds to wait that the error asks for."""
    after = error.after if isinstance(error, RetryableError) else retry_after(error)
    return None if after is None else bounded_delay(after)
