"""Records of named limits: sizes, requests for permits and their answers, and the window of
rates."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.broker.lanes import LANES
from switchyard.broker.message import MAX_PRIORITY

WINDOW_SECONDS = 60
"""Length of the window in which a rate is counted."""


@dataclass(frozen=True, slots=True)
class LimitSize:
    """The size of a limit. None: unlimited."""

    concurrency: int | None = None
    """Jobs that run at once."""
    per_minute: int | None = None
    """Jobs that start within any 60 seconds."""
    tokens_per_minute: int | None = None
    """Tokens that the jobs of any 60 seconds use."""


@dataclass(frozen=True, slots=True)
class PermitDemand:
    """Amount of one limit that one job needs."""

    name: str
    key: str
    """Key whose share of the limit is used, such as an account; empty where all jobs share one."""
    size: LimitSize
    tokens: int = 0
    """Estimated."""


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """Request of a worker for all permits that a job needs."""

    hold: str
    """Id of the permits that this request may get; new for each request."""
    holder: str
    """The process that asks."""
    needs: Sequence[PermitDemand]
    job_id: str
    redrives: int
    attempts: int
    """With `redrives`, the generation of the message."""
    queue: str
    """Queue of the job's delivery."""
    rank: int
    """Place in the order of urgency (`rank_of`): the lowest is served first."""
    body: bytes | None
    """The message, to publish again when the job is woken; None where it is too large to be
    kept."""
    levels: Sequence[float]
    """Delays of the retry levels in seconds, ascending: a refused job waits for one of them."""
    expires_at: float
    """Time from which the job is too old to start."""
    life: float
    """Seconds after which the permits run out unless they are renewed."""
    claimed: bool = False
    """The job is claimed already, by this process."""


def rank_of(lane: str, priority: int) -> int:
    """Return the place of a job among those that wait for a limit, by its lane and then by its
    priority; the lowest comes first."""
    ranks = {each.name: rank for rank, each in enumerate(LANES)}
    return ranks.get(lane, len(ranks)) * (MAX_PRIORITY + 1) + MAX_PRIORITY - priority


@dataclass(frozen=True, slots=True)
class PermitReturn:
    """The permits of a job that has ended, to be given back."""

    hold: str
    needs: Sequence[PermitDemand]
    used_tokens: int | None
    """Tokens that the job used; None: as many as were estimated."""


@dataclass(frozen=True, slots=True)
class WokenJob:
    """A waiting job for which permits are reserved now. The receiver must send it to its queue."""

    job_id: str
    queue: str
    body: bytes


@dataclass(frozen=True, slots=True)
class PermitGranted:
    """The job may run. The worker must renew its permits, and return them at the end."""

    woken: tuple[WokenJob, ...] = ()


@dataclass(frozen=True, slots=True)
class PermitRefused:
    """The job has to wait."""

    name: str
    key: str
    why: str
    seconds: float
    """Delay after which it comes back unless it is woken before: one of the levels."""
    woken: tuple[WokenJob, ...] = ()

    def __str__(self) -> str:
        whose = f" of {self.key}" if self.key else ""
        return f"no room in the limit {self.name}{whose}: {self.why}"


@dataclass(frozen=True, slots=True)
class NotRunnable:
    """The job runs already, or has ended: it needs no permit."""

    woken: tuple[WokenJob, ...] = ()


@dataclass(frozen=True, slots=True)
class PermitReleased:
    """The permits of a job were given back."""

    waited_for: bool
    """Whether a job waits for a limit that this job used, or was just woken for it."""
    woken: tuple[WokenJob, ...] = ()
    """Jobs woken by the whole transaction, of whatever limit."""


PermitAnswer = PermitGranted | PermitRefused | NotRunnable | PermitReleased


@dataclass(frozen=True, slots=True)
class LimitReport:
    """State of one limit for one key."""

    name: str
    key: str
    size: LimitSize
    in_use: int
    """Jobs that run."""
    last_minute: int
    """Jobs that started in the last minute."""
    tokens_last_minute: int
    waiting: int
    """Jobs that were put off because the limit was used up."""
    next_room: float | None
    """Seconds until the job that is next in line has room; where none waits, until a job of one
    token would have. 0: now. None: not before a running job ends."""


@dataclass(frozen=True, slots=True)
class PendingPermit:
    """A job that was put off because a limit was used up."""

    name: str
    key: str
    since: float
    times: int
    """How often it was put off."""
    back_at: float
    """When its delay ends and it is queued again, unless it is woken before."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Jobs and tokens of the last minute, by second, so that no 60 seconds have more than the rate.

    A token bucket would let through up to twice as much in a minute, and a provider that counts
    would refuse requests with the status 429.
    """

    bins: tuple[tuple[int, int, int], ...] = ()
    """Second since the epoch, jobs that started in it, their tokens; ascending."""

    @classmethod
    def load(cls, text: str, now: float) -> RateWindow:
        """Read a stored window, without bins older than a minute. Bins later than `now` were
        written before the clock was set back, by an unknown time: they count for the present
        second, as otherwise nothing would start until then."""
        second = int(now)
        oldest = second - WINDOW_SECONDS
        bins = [(at, jobs, tokens) for at, jobs, tokens in json.loads(text) if at >= oldest]
        window: RateWindow = cls(tuple(each for each in bins if each[0] <= second))
        for _, jobs, tokens in bins[len(window.bins) :]:
            window = window.plus(now, jobs, tokens)
        return window

    def dump(self) -> str:
        return json.dumps(self.bins)

    @property
    def jobs(self) -> int:
        return sum(each[1] for each in self.bins)

    @property
    def tokens(self) -> int:
        return sum(each[2] for each in self.bins)

    def plus(self, now: float, jobs: int, tokens: int) -> RateWindow:
        """Return the window with these jobs and tokens added to the current second."""
        return self._change(int(now), jobs, tokens)

    def corrected(self, second: int, now: float, more_tokens: int) -> RateWindow:
        """Return the window with `more_tokens` (negative: fewer) added to a second whose estimate
        was wrong. If that second has left the window, additional tokens count for the present
        second."""
        if any(each[0] == second for each in self.bins):
            return self._change(second, 0, more_tokens)
        return self._change(int(now), 0, max(0, more_tokens))

    def wait(self, now: float, size: LimitSize, jobs: int, tokens: int) -> float:
        """Return the seconds until that many jobs and tokens fit into the window; 0: now."""
        used_jobs, used_tokens, left = self.jobs, self.tokens, list(self.bins)
        seconds = 0.0
        while True:
            over_jobs = _exceeds(used_jobs + jobs, size.per_minute)
            over_tokens = _exceeds(used_tokens + tokens, size.tokens_per_minute)
            if not (over_jobs or over_tokens):
                return seconds
            if not left:
                # The need exceeds a whole window: add a window for each further multiple.
                minutes = max(
                    _extra_minutes(used_jobs + jobs, size.per_minute),
                    _extra_minutes(used_tokens + tokens, size.tokens_per_minute),
                )
                return seconds + WINDOW_SECONDS * minutes
            second, gone_jobs, gone_tokens = left.pop(0)
            used_jobs, used_tokens = used_jobs - gone_jobs, used_tokens - gone_tokens
            seconds = max(seconds, second + 1 + WINDOW_SECONDS - now)

    def _change(self, second: int, jobs: int, tokens: int) -> RateWindow:
        by_second = {each[0]: each for each in self.bins}
        _, jobs_before, tokens_before = by_second.get(second, (second, 0, 0))
        by_second[second] = (second, jobs_before + jobs, max(0, tokens_before + tokens))
        return RateWindow(tuple(by_second[each] for each in sorted(by_second)))


def _exceeds(used: int, maximum: int | None) -> bool:
    return maximum is not None and used > maximum


def _extra_minutes(used: int, maximum: int | None) -> int:
    return 0 if maximum is None else math.ceil(used / maximum) - 1


def backoff_level(request: PermitRequest, times: int) -> float:
    """Return the delay, in seconds, of a job that gets no permit and was put off `times` times
    before. A job with a stored body is woken, so its delay is only a fallback: the longest."""
    levels = request.levels
    return levels[-1] if request.body is not None else levels[min(times, len(levels) - 1)]
