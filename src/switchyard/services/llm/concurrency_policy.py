"""How many requests a server gets at once: rules that learn it from how the calls end.

All of it is pure: what is known of a server (`ServerPace`), and what becomes of that when a call
has ended (`observe`). The ledger keeps one for each server, so the whole fleet has one limit.

`StepPolicy` is requirement L3 (docs/requirements.md): time-outs alone. `AdaptivePolicy`, the
default, looks at the time to the first token and the time per token. An answer's whole time follows
its length and misleads; these two follow the server's load (docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Protocol


class Ended(StrEnum):
    """How a call ended, as far as the server's load is concerned."""

    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """429 or 503: the server itself says that it is too much."""
    FAILED = "failed"
    """In a way that says nothing of its load."""


@dataclass(frozen=True, slots=True)
class CallSample:
    """One call that has ended."""

    ended: Ended
    in_flight: int
    """Calls of the whole fleet under way when it ended, itself included."""
    first_token: float | None = None
    """Seconds to the first token."""
    per_token: float | None = None
    """Seconds for each token after the first."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first limit, and the least and the most that a rule may choose."""

    start: int = 16
    least: int = 5
    most: int = 50

    def within(self, limit: float) -> float:
        return min(max(limit, float(self.least)), float(self.most))


@dataclass(frozen=True, slots=True)
class Window:
    """Counts of the calls that ended since the limit was last chosen."""

    answered: int = 0
    timed_out: int = 0
    refused: int = 0
    most_in_flight: int = 0
    timed: int = 0
    """Answers that could be timed."""
    first_token: float = 0.0
    """Seconds, all together."""
    per_token: float = 0.0

    def plus(self, sample: CallSample) -> Window:
        timed = sample.first_token is not None and sample.per_token is not None
        return Window(
            answered=self.answered + (sample.ended is Ended.ANSWERED),
            timed_out=self.timed_out + (sample.ended is Ended.TIMED_OUT),
            refused=self.refused + (sample.ended is Ended.REFUSED),
            most_in_flight=max(self.most_in_flight, sample.in_flight),
            timed=self.timed + timed,
            first_token=self.first_token + (sample.first_token or 0.0) * timed,
            per_token=self.per_token + (sample.per_token or 0.0) * timed,
        )

    @property
    def timeouts(self) -> float:
        """Part of the calls that timed out."""
        return self.timed_out / max(1, self.answered + self.timed_out)


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
    def window(self) -> float:
        """Seconds between looks."""
        ...

    @property
    def min_calls(self) -> int:
        """Calls that a window has at least, or it goes on."""
        ...

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        """Return the next limit, and what to remember for the next window."""
        ...


def observe(
    pace: ServerPace, sample: CallSample, rule: ConcurrencyPolicy, bounds: Bounds, now: float
) -> ServerPace:
    """Return the state of a server after a call has ended."""
    window = pace.window.plus(sample)
    pace = replace(pace, window=window)
    calls = window.answered + window.timed_out + window.refused
    if now - pace.began < rule.window or calls < rule.min_calls:
        return pace
    limit, memory = rule.next(pace)
    return ServerPace(bounds.within(limit), now, memory=memory)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Keeps the limit as it is."""

    window: float = 60.0
    min_calls: int = 1

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        return pace.limit, {}


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """Requirement L3: over 10 % time-outs → x 0.7; under 2 % with more than 50 answers → x 1.2."""

    window: float = 10.0
    min_calls: int = 1

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        if pace.window.timeouts > 0.10:
            return pace.limit * 0.7, {}
        if pace.window.timeouts < 0.02 and pace.window.answered > 50:
            return pace.limit * 1.2, {}
        return pace.limit, {}


@dataclass(frozen=True, slots=True)
class AdaptivePolicy:
    """Raises the limit while it is used and the server keeps its pace; lowers it when the server
    gets slow.

    Slow is a time per token of 2.2 times, or a time to the first token of three times,
    the best that was seen. The first time up it goes in large steps, then in small ones. A slowness
    that giving way does not mend is not of our making, but somebody else's load or another model:
    then the pace of now is the new measure.
    """

    window: float = 5.0
    min_calls: int = 10
    slow_tokens: float = 2.2
    slow_first: float = 3.0
    patience: int = 3
    """Steps down after which there must be a gain."""
    gain: float = 0.1

    def next(self, pace: ServerPace) -> tuple[float, Mapping[str, float]]:
        window, memory = pace.window, dict(pace.memory)
        if window.timeouts > 0.05 or window.refused * 10 > window.answered:
            return pace.limit * 0.7, memory | {"found": 1.0}
        if not window.timed:
            return pace.limit, memory
        first, token = window.first_token / window.timed, window.per_token / window.timed
        best_first = memory.get("best_first", first)
        best_token = memory.get("best_token", token)
        memory["best_first"], memory["best_token"] = min(best_first, first), min(best_token, token)
        slowness = max(
            _ratio(token, best_token) / self.slow_tokens,
            _ratio(first, best_first) / self.slow_first,
        )
        if slowness > 1:
            return self._down(pace.limit, slowness, first, token, memory)
        memory.pop("steps", None)
        if window.most_in_flight < 0.9 * int(pace.limit):
            return pace.limit, memory  # nobody wants more
        step = pace.limit * 0.05 if memory.get("found") else pace.limit * 0.5
        return pace.limit + max(1.0, step), memory

    def _down(
        self, limit: float, slowness: float, first: float, token: float, memory: dict[str, float]
    ) -> tuple[float, Mapping[str, float]]:
        memory["found"] = 1.0
        steps = memory.get("steps", 0.0)
        if not steps:
            memory["slowness"] = slowness
        elif steps >= self.patience:
            if slowness > memory["slowness"] * (1 - self.gain):
                memory["best_first"], memory["best_token"] = first, token
                del memory["steps"]
                return limit, memory
            memory["slowness"], steps = slowness, 0.0
        memory["steps"] = steps + 1
        return limit * 0.9, memory


def _ratio(now: float, best: float) -> float:
    return now / best if best > 0 else 1.0
