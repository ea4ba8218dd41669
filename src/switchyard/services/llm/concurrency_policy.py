"""How many requests a server gets at once: rules that learn it from how the calls end.

All of it is pure: what is known of a server (`ServerPace`), and what becomes of that when a call
has ended (`observe`). The ledger keeps one for each server, so the whole fleet has one limit.

`StepPolicy` is requirement L3 (docs/requirements.md): time-outs alone. `AdaptivePolicy`, the
default, looks at the tokens per second of all calls together, which tell what a server gains by
more calls, and at the times of the tokens, which tell what each call loses (docs/adr/0012).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Protocol

MIN_WINDOW_AGE = 60.0
"""Seconds after which a window that is not full is begun anew: its first calls say nothing of the
server as it is now."""
WINDOW_AGE_CALLS = 4.0
"""Lengths of a call after which it is, where calls take long."""


class Ended(StrEnum):
    """How a call ended, as far as the server's load is concerned."""

    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """429 or 503: the server itself says that it is too much."""
    BROKEN = "broken"
    """The answer was cut or empty: with other calls under way, a sign that it was too much."""
    FAILED = "failed"
    """In a way that says nothing of its load."""


@dataclass(frozen=True, slots=True)
class CallSample:
    """One call that has ended."""

    ended: Ended
    in_flight: int
    """Calls of the whole fleet under way when it ended, itself included."""
    seconds: float = 0.0
    """From the request to the end of the answer; 0 where it could not be timed."""
    tokens: float = 0.0
    """Of the answer, and those of the prompt by what they cost; 0 where nobody knows."""
    first_token: float | None = None
    """Seconds to the first token; None where the answer came whole."""
    per_token: float | None = None
    """Seconds for each token after the first."""
    is_awaited: bool = True
    """Whether other calls wait for room."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first limit, and the least and the most that a rule may choose."""

    start: int = 2
    least: int = 1
    most: int = 50

    def within(self, limit: float) -> float:
        return min(max(limit, float(self.least)), float(self.most))


@dataclass(frozen=True, slots=True)
class Window:
    """Counts of the calls that ended since the limit was last chosen."""

    answered: int = 0
    timed_out: int = 0
    refused: int = 0
    """By the server itself, or broken off with other calls under way."""
    awaited: int = 0
    """Answers at whose end other calls waited for room."""
    measured: int = 0
    """Answers that began within the window, and whose time and length are known."""
    in_flight: int = 0
    """Calls under way at the ends of these, all together."""
    seconds: float = 0.0
    tokens: float = 0.0
    timed: int = 0
    """Those of them that came as streams."""
    first_token: float = 0.0
    """Seconds, all together."""
    per_token: float = 0.0

    def plus(self, sample: CallSample, *, is_new: bool = True) -> Window:
        """Return the window with one call more; `is_new` says that it began within the window."""
        is_answered = sample.ended is Ended.ANSWERED
        is_broken = sample.ended is Ended.BROKEN and sample.in_flight > 1
        measured = is_answered and is_new and sample.seconds > 0 and sample.tokens > 0
        timed = measured and sample.first_token is not None and sample.per_token is not None
        return Window(
            answered=self.answered + is_answered,
            timed_out=self.timed_out + (sample.ended is Ended.TIMED_OUT),
            refused=self.refused + (is_broken or sample.ended is Ended.REFUSED),
            awaited=self.awaited + (is_answered and sample.is_awaited),
            measured=self.measured + measured,
            in_flight=self.in_flight + sample.in_flight * measured,
            seconds=self.seconds + sample.seconds * measured,
            tokens=self.tokens + sample.tokens * measured,
            timed=self.timed + timed,
            first_token=self.first_token + (sample.first_token or 0.0) * timed,
            per_token=self.per_token + (sample.per_token or 0.0) * timed,
        )

    @property
    def ended(self) -> int:
        """Calls that say something of the server's load."""
        return self.answered + self.timed_out + self.refused

    @property
    def timeouts(self) -> float:
        """Part of the calls that timed out."""
        return self.timed_out / max(1, self.answered + self.timed_out)

    @property
    def is_refusing(self) -> bool:
        """Whether the server refuses or breaks off more than a tenth of the calls."""
        return self.refused * 10 > self.answered

    @property
    def calls(self) -> float:
        """Calls under way on average; 0 where nothing was measured."""
        return self.in_flight / self.measured if self.measured else 0.0

    @property
    def rate(self) -> float:
        """Tokens a second of all calls together: what one makes, times the calls under way."""
        return self.calls * self.tokens / self.seconds if self.measured else 0.0


@dataclass(frozen=True, slots=True)
class ServerPace:
    """The limit of a server, with the window that the next one is chosen by."""

    limit: float
    """Calls that it may get at once; whole ones count."""
    began: float
    """When the window began, in seconds since the epoch."""
    window: Window = field(default_factory=Window)
    memory: Mapping[str, float] = field(default_factory=dict)
    """What the rule remembers from window to window."""

    @classmethod
    def first(cls, bounds: Bounds, now: float) -> ServerPace:
        return cls(bounds.within(bounds.start), now)

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return asdict(self)

    @classmethod
    def load(cls, values: Mapping[str, Any], bounds: Bounds, now: float) -> ServerPace:
        """Read what `dump` gave. State of a version with other fields is begun anew."""
        names = {each.name for each in fields(Window)}
        if set(values) != {each.name for each in fields(cls)} or set(values["window"]) != names:
            return cls.first(bounds, now)
        limit = bounds.within(values["limit"])  # the settings may have changed
        return cls(limit, values["began"], Window(**values["window"]), dict(values["memory"]))


class ConcurrencyPolicy(Protocol):
    """Chooses the next limit when a window is over."""

    @property
    def minds_broken(self) -> bool:
        """Whether it lowers the limit when answers are cut or empty."""
        ...

    def is_over(self, pace: ServerPace, seconds: float) -> bool:
        """Return whether a window of so many seconds tells enough."""
        ...

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        """Return the next limit, and what to remember for the next window."""
        ...


def observe(
    pace: ServerPace, sample: CallSample, rule: ConcurrencyPolicy, bounds: Bounds, now: float
) -> ServerPace:
    """Return the state of a server after a call has ended."""
    if now - pace.began > max(MIN_WINDOW_AGE, WINDOW_AGE_CALLS * sample.seconds):
        pace = replace(pace, window=Window(), began=now - sample.seconds)
    # A call that began before the limit was changed had other company than this limit allows.
    window = pace.window.plus(sample, is_new=now - sample.seconds >= pace.began)
    pace = replace(pace, window=window)
    if not window.ended or not rule.is_over(pace, now - pace.began):
        return pace
    limit, memory = rule.next(pace)
    return ServerPace(bounds.within(limit), now, memory=memory)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Keeps the limit as it is."""

    window: float = 60.0
    minds_broken: bool = False

    def is_over(self, pace: ServerPace, seconds: float) -> bool:
        return seconds >= self.window

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        return pace.limit, {}


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """Requirement L3: over 10 % time-outs → x 0.7; under 2 % with more than 50 answers → x 1.2."""

    window: float = 10.0
    minds_broken: bool = False

    def is_over(self, pace: ServerPace, seconds: float) -> bool:
        return seconds >= self.window

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        if pace.window.timeouts > 0.10:
            return pace.limit * 0.7, {}
        if pace.window.timeouts < 0.02 and pace.window.answered > 50:
            return pace.limit * 1.2, {}
        return pace.limit, {}


@dataclass(frozen=True, slots=True)
class AdaptivePolicy:
    """Raises the limit while that makes the server give more tokens a second in all, and lowers it
    when each call gets slow.

    The first calls tell how fast the server is with one call under way. Then each raise is a trial:
    where the rate does not rise with the number of calls, it is taken back. The first time up it
    goes in large steps, then in small ones, and after each that was in vain it waits for longer.
    Slow is a time per token, or to the first token, of three times that of a call alone. A slowness
    that giving way does not mend is not of our making, but somebody else's load or another model:
    then the pace of now is the new measure.
    """

    window: float = 5.0
    """Seconds between looks, once the limit is found."""
    rise: float = 0.15
    """Least rise of the rate for one of the calls, as a ratio of their logarithms: 1 where the
    server has room for all, 0 where it gains nothing."""
    steep: float = 0.8
    """Such a rise with room for far more."""
    slow: float = 3.0
    max_steps_down: int = 3
    """Steps down after which there must be a gain."""
    gain: float = 0.1
    max_rest: float = 64.0
    """Windows without a trial at most."""
    minds_broken: bool = True

    def is_over(self, pace: ServerPace, seconds: float) -> bool:
        window, limit = pace.window, int(pace.limit)
        if "alone" not in pace.memory:
            return True  # the first that ends says whether it is on its own
        enough = window.measured >= limit / 2 or window.ended >= 3 * limit
        if not pace.memory.get("found") or window.is_refusing:
            return enough or window.ended - window.answered >= 2
        return enough and seconds >= self.window and window.ended >= min(10, 2 * limit)

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        window, memory, limit = pace.window, dict(pace.memory), pace.limit
        if window.timeouts > 0.05 or window.is_refusing:
            self._end_trial(memory)
            self._rest(memory)
            return min(limit * 0.7, max(1.0, limit - 1)), memory | {"found": 1.0, "alone": 1.0}
        if not window.measured:
            return limit, memory
        if "alone" not in memory:
            return self._measure_alone(pace, memory)
        self._note_best(window, memory)
        slowness = self._slowness(window, memory)
        before = memory.get("limit")
        if before is not None and before < limit:
            if window.calls < memory["calls"] * 1.05 and slowness <= 1:
                return limit, memory  # too few calls to tell
            memory["rise"] = _rise(window, memory)
            if slowness > 1 or memory["rise"] < self.rise:
                return self._take_back(before, memory), memory
            memory["rest"] = 0.0
        if slowness > 1:
            return self._down(limit, slowness, window, memory)
        memory.pop("steps", None)
        memory |= {"limit": limit, "calls": window.calls, "rate": window.rate}
        if window.awaited * 2 < window.answered:
            return limit, memory  # nobody wants more
        return self._raise(limit, memory), memory

    def _measure_alone(
        self, pace: ServerPace, memory: dict[str, float]
    ) -> tuple[float, Mapping[str, float]]:
        """Go down to a single call, and come back with what it has told."""
        window = pace.window
        if window.calls > 1 and "start" not in memory:
            return 1.0, memory | {"start": pace.limit}
        self._note_best(window, memory)
        start = memory.pop("start", pace.limit)
        memory |= {"alone": 1.0, "limit": pace.limit, "calls": window.calls, "rate": window.rate}
        return start, memory

    def _note_best(self, window: Window, memory: dict[str, float]) -> None:
        if window.timed:
            for name in ("first_token", "per_token"):
                mean = getattr(window, name) / window.timed
                memory[name] = min(memory.get(name, mean), mean)

    def _slowness(self, window: Window, memory: Mapping[str, float]) -> float:
        """Return how slow the tokens come; more than 1 is too slow."""
        if not window.timed:
            return 0.0
        return max(
            _ratio(getattr(window, name) / window.timed, memory[name]) / self.slow
            for name in ("first_token", "per_token")
        )

    def _raise(self, limit: float, memory: dict[str, float]) -> float:
        if not memory.get("found"):
            # A server that gives as many times more as it got calls has room for far more.
            return limit * (4 if memory.get("rise", 0.0) > self.steep and limit < 10 else 2)
        if memory.get("rest", 0.0) > 0:
            memory["rest"] -= 1
            return limit
        return limit + max(1.0, limit * 0.25)

    def _take_back(self, before: float, memory: dict[str, float]) -> float:
        if memory.get("found"):
            self._rest(memory)
        memory["found"] = 1.0
        return before

    def _rest(self, memory: dict[str, float]) -> None:
        """Try no raise for some windows, and for more each time."""
        memory["pause"] = min(self.max_rest, 2 * memory.get("pause", 1.0))
        memory["rest"] = memory["pause"]

    def _end_trial(self, memory: dict[str, float]) -> None:
        for name in ("limit", "calls", "rate", "start"):
            memory.pop(name, None)

    def _down(
        self, limit: float, slowness: float, window: Window, memory: dict[str, float]
    ) -> tuple[float, Mapping[str, float]]:
        self._end_trial(memory)
        memory["found"] = 1.0
        steps = memory.get("steps", 0.0)
        if not steps:
            memory["slowness"] = slowness
        elif steps >= self.max_steps_down or limit <= 1:
            if slowness > memory["slowness"] * (1 - self.gain):
                memory["first_token"] = window.first_token / window.timed
                memory["per_token"] = window.per_token / window.timed
                del memory["steps"]
                return limit, memory
            memory["slowness"], steps = slowness, 0.0
        memory["steps"] = steps + 1
        return min(limit * 0.9, max(1.0, int(limit) - 1.0)), memory


def _rise(window: Window, memory: Mapping[str, float]) -> float:
    """Return how the rate has followed the calls: the ratio of their logarithms."""
    more_calls = math.log(max(window.calls / memory["calls"], 1.05))
    return math.log(max(window.rate / memory["rate"], 0.01)) / more_calls


def _ratio(now: float, best: float) -> float:
    return now / best if best > 0 else 1.0
