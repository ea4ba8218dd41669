"""Decide what happens after an attempt: one pure function, so its rules are tested as tables.

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
"""A job that killed its process this often is dead. The death of a worker in which it ran beside
others makes it a suspect, which then has a process to itself: that tells who is to blame."""
MAX_DEATHS = 5
"""A job that ran in this many dying workers is dead, although nothing proves its guilt: it may end
more than its own process, such as by using all of a machine's memory."""
MAX_UNENDED_RUNS = 20
"""A job with this many runs in a row that had no end is dead, whatever the cause: the last safety
net. High enough for a long job whose worker is stopped by each of many deployments, low enough that
the calls it pays for are not paid without end."""
INVALID_OUTCOME = "InvalidOutcome"
"""The error type of jobs whose handler returns an outcome that can't be carried out or written."""


_TEXTS = {"error_type": 200, "message": 8_000, "traceback": 12_000}
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
    """An attempt that raised, in a form that crosses process borders and can be written anywhere:
    its texts are cut, and without characters that no encoding can write."""

    error_type: str
    message: str
    traceback: str = ""
    permanent: bool = False
    crashed: bool = False
    """The handler's process died (signal, memory limit, exit)."""
    after: float | None = None
    """Seconds to wait at least (Retry-After)."""
    counts: bool = True
    """Whether it uses up an attempt."""
    ages: bool = True
    """Where no attempt is used up: whether the wait for the next one counts towards the job's
    age."""
    expired: bool = False
    """The job's `expires_at` has passed."""

    def __post_init__(self) -> None:
        for name, limit in _TEXTS.items():
            text = getattr(self, name)
            shortened = writable(text, limit, keep_end=name == "traceback")
            if shortened is not text:
                object.__setattr__(self, name, shortened)

    def scrubbed(self, scrubber: Scrubber) -> Failure:
        """Return the failure without the secrets of a payload."""
        return replace(
            self,
            message=scrubber.scrubbed(self.message),
            traceback=scrubber.scrubbed(self.traceback),
        )

    @classmethod
    def from_error(cls, error: BaseException) -> Failure:
        """Classify an exception that a handler raised, of whatever class. Never raises."""
        # Not `type(error).__name__`: a metaclass may answer that.
        name = _name_of(type(error))
        try:
            return cls(
                error_type=error.error_type if isinstance(error, RemoteError) else name,
                message=str(error) or name,
                traceback=_traceback_of(error),
                # PermanentError is a PermanentFailure; invalid input stays invalid every time.
                permanent=isinstance(error, PermanentFailure | InvalidInput),
                after=_wait_of(error),
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
    def over(cls, levels: Sequence[float] = RETRY_DELAYS) -> RetryPolicy:
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
        """Return the level with which a wait of `seconds` begins: a shorter level, after which the
        job waits again for the rest, where it is back sooner that way than after one long
        enough."""
        return self._level_path(seconds)[0]

    def _level_path(self, seconds: float) -> tuple[float, float]:
        """Return the first level, and the seconds after which the job is back."""
        whole = self.level(seconds)
        shorter = max((level for level in self.levels if level <= seconds), default=whole)
        rest = seconds - shorter
        if not 0 < rest <= shorter:  # waiting many times gains nothing
            return whole, whole
        back = shorter + self._level_path(rest)[1]
        return (shorter, back) if back < whole else (whole, whole)


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: Mapping[str, Any]
    jobs: Sequence[Job] = ()
    then: Job | None = None
    """Job that is published when `jobs`, and all that follow from them, have ended."""
    when_dead: WhenDead = "wait"


@dataclass(frozen=True, slots=True)
class Delayed:
    """The job comes back through a retry level."""

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
    reason: Reason
    attempts: int
    failure: Failure


Decision = Succeeded | Delayed | Died


def decide(
    ended: Outcome | Failure | object,
    *,
    attempts: int,
    max_attempts: int,
    policy: RetryPolicy,
    now: datetime,
    crashes: int = 0,
) -> Decision:
    """Return what to do with a job whose attempt has ended.

    `ended` is the handler's outcome or its failure; `attempts` were used up before this one.
    `crashes`: how often its worker died while it ran in that worker's own process.
    A value that is no `Outcome` is a defect of the handler, which no further attempt removes.
    Never raises.
    """
    used = attempts + 1
    match ended:
        case Done(Mapping() as result):
            return Succeeded(result)
        case Next(Sequence() as jobs, Mapping() as result, Job() | None as then, when_dead) if (
            _are_jobs(jobs) and when_dead in WHEN_DEAD
        ):
            return Succeeded(result, tuple(jobs), then, when_dead)
        case Snooze(after, reason):
            snoozed = Failure("Snooze", str(reason))
            return _delay(bounded_delay(after), attempts, snoozed, policy, now, counts=False)
        case Discard(reason):
            return Died(Reason.PERMANENT, used, Failure("Discard", str(reason), permanent=True))
        case Retry(reason, after):
            failure = Failure("Retry", str(reason), after=after)
        case Failure():
            failure = ended
        case Done() | Next():
            expected = "jobs, a mapping, and as when_dead one of " + ", ".join(WHEN_DEAD)
            failure = _invalid(f"a {type(ended).__name__} that does not hold {expected}")
        case _:
            kinds = "Done, Next, Retry, Snooze, Discard"
            failure = _invalid(f"{type(ended).__name__}, not one of {kinds}")
    if failure.expired:
        return Died(Reason.EXPIRED, used, failure)
    if failure.permanent:
        return Died(Reason.PERMANENT, used, failure)
    if not failure.counts:
        wait = bounded_delay(failure.after)
        return _delay(wait, attempts, failure, policy, now, counts=False, ages=failure.ages)
    # A job that was in a dying worker, and then kills its own process, is blamed for both deaths.
    killed = used + min(crashes, 1)
    if failure.crashed and killed >= min(max_attempts, MAX_CRASHES):
        return Died(Reason.CRASHED, used, failure)
    if used >= max_attempts:
        return Died(Reason.EXHAUSTED, used, failure)
    wait = max(policy.backoff(used), bounded_delay(failure.after))
    return _delay(wait, used, failure, policy, now, counts=True)


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


def _wait_of(error: BaseException) -> float | None:
    """Return the seconds that the error asks to wait at least."""
    after = error.after if isinstance(error, RetryableError) else retry_after(error)
    return None if after is None else bounded_delay(after)
