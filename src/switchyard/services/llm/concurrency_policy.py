"""Policies that learn, from how calls end, how many requests a server gets at once.

Everything here is pure: the state of a server (`PolicyState`), and the next state when a call has
ended (`observe`). The ledger has one state for each server, so the whole fleet shares its limit.

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
"""Seconds after which a window that is not complete starts again: its first calls say nothing about
the server's present state."""
WINDOW_AGE_CALLS = 4.0
"""The same age as a multiple of a call's duration; the longer of the two counts."""


class CallEnd(StrEnum):
    """How a call ended, as far as the server's load is concerned."""

    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """With 429 or 503: the server itself says that it has too many calls."""
    BROKEN = "broken"
    """The answer was cut or empty: with other calls under way, a sign of too many calls."""
    FAILED = "failed"
    """Ended in a way that says nothing about the server's load."""


@dataclass(frozen=True, slots=True)
class CallSample:
    """One call that has ended."""

    end: CallEnd
    in_flight: int
    """Calls of the whole fleet under way when it ended, itself included."""
    seconds: float = 0.0
    """From the request to the end of the answer; 0 if there was no answer."""
    weighted_tokens: float = 0.0
    """Tokens of the answer and, with less weight, of the prompt (`Timing`); 0 if unknown."""
    first_token: float | None = None
    """Seconds to the first token; None if the answer was not streamed."""
    per_token: float | None = None
    """Seconds for each token after the first."""
    others_wait: bool = True
    """Whether other calls wait for a slot."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first limit, and the lowest and the highest limit that a policy may choose."""

    start: int = 2
    min_calls: int = 1
    max_calls: int = 50

    def clamp(self, limit: float) -> float:
        return min(max(limit, float(self.min_calls)), float(self.max_calls))


@dataclass(frozen=True, slots=True)
class Window:
    """Sums over the calls that ended since the limit was last chosen. They are stored as JSON by
    these names."""

    answered: int = 0
    timed_out: int = 0
    refused: int = 0
    """Refused by the server, or broken off with other calls under way."""
    awaited: int = 0
    """Answers at whose end other calls waited for a slot."""
    measured: int = 0
    """Answers that began within the window, and whose time and length are known."""
    in_flight: int = 0
    """Sum over the measured answers: calls under way at the end of each."""
    seconds: float = 0.0
    """Sum over the measured answers."""
    tokens: float = 0.0
    """Sum of `CallSample.weighted_tokens` over the measured answers."""
    timed: int = 0
    """Measured answers that were streamed."""
    first_token: float = 0.0
    """Seconds, summed over the timed answers."""
    per_token: float = 0.0
    """Seconds, summed over the timed answers."""

    def plus(self, sample: CallSample, *, is_new: bool = True) -> Window:
        """Return the window with one more call; `is_new` if the call began within the window."""
        is_answered = sample.end is CallEnd.ANSWERED
        is_broken = sample.end is CallEnd.BROKEN and sample.in_flight > 1
        is_measured = is_answered and is_new and sample.seconds > 0 and sample.weighted_tokens > 0
        is_timed = is_measured and sample.first_token is not None and sample.per_token is not None
        return Window(
            answered=self.answered + is_answered,
            timed_out=self.timed_out + (sample.end is CallEnd.TIMED_OUT),
            refused=self.refused + (is_broken or sample.end is CallEnd.REFUSED),
            awaited=self.awaited + (is_answered and sample.others_wait),
            measured=self.measured + is_measured,
            in_flight=self.in_flight + sample.in_flight * is_measured,
            seconds=self.seconds + sample.seconds * is_measured,
            tokens=self.tokens + sample.weighted_tokens * is_measured,
            timed=self.timed + is_timed,
            first_token=self.first_token + (sample.first_token or 0.0) * is_timed,
            per_token=self.per_token + (sample.per_token or 0.0) * is_timed,
        )

    @property
    def ended_calls(self) -> int:
        """Calls that ended in a way that depends on the server's load."""
        return self.answered + self.timed_out + self.refused

    @property
    def timeout_share(self) -> float:
        """Part of the calls that timed out."""
        return self.timed_out / max(1, self.answered + self.timed_out)

    @property
    def is_refusing(self) -> bool:
        """Whether the server refuses or breaks off more than one call for ten that it answers."""
        return self.refused * 10 > self.answered

    @property
    def mean_in_flight(self) -> float:
        """Calls under way on average; 0 if nothing was measured."""
        return self.in_flight / self.measured if self.measured else 0.0

    @property
    def rate(self) -> float:
        """Tokens a second of all calls together: those of one call, times the calls under way."""
        return self.mean_in_flight * self.tokens / self.seconds if self.measured else 0.0


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The limit of a server, and the window by which the next limit is chosen. It is stored as JSON
    by these names."""

    limit: float
    """Calls that the server may get at once; rounded down where it is used."""
    began: float
    """When the window began, in seconds since the epoch."""
    window: Window = field(default_factory=Window)
    memory: Mapping[str, float] = field(default_factory=dict)
    """What the policy remembers from window to window. Keys of `AdaptivePolicy`:

    `alone`: 1 once the server was measured with one call, or was overloaded.

    `start`: the limit to return to, while the server is being measured with one call.

    `limit`, `calls`, `rate`: limit, mean calls under way and tokens a second of the last window in
    which the server was not slow; a higher limit is on trial against them.

    `rise`: scaling of the last raise (`_scaling`).

    `found`: 1 once a raise was taken back, or the server was slow or overloaded; from then on,
    raises are small.

    `pause`, `rest`: windows for which no raise is tried after the last one that was taken back, and
    how many of these are left.

    `first_token`, `per_token`: the best mean times, in seconds; they are the reference.

    `steps`, `slowness`: steps down in a row, and how slow the server was before them.
    """

    @classmethod
    def first(cls, bounds: Bounds, now: float) -> PolicyState:
        return cls(bounds.clamp(bounds.start), now)

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return asdict(self)

    @classmethod
    def load(cls, values: Mapping[str, Any], bounds: Bounds, now: float) -> PolicyState:
        """Read what `dump` returned. The state of a version with other fields is replaced by a
        first one."""
        names = {each.name for each in fields(Window)}
        if set(values) != {each.name for each in fields(cls)} or set(values["window"]) != names:
            return cls.first(bounds, now)
        limit = bounds.clamp(values["limit"])  # the settings may have changed
        # A time in the future was written before the database's clock was set back.
        began = min(values["began"], now)
        return cls(limit, began, Window(**values["window"]), dict(values["memory"]))


class ConcurrencyPolicy(Protocol):
    """Choose the next limit when a window is over."""

    @property
    def counts_broken_answers(self) -> bool:
        """Whether it lowers the limit when answers are cut or empty."""
        ...

    def is_window_complete(self, state: PolicyState, seconds: float) -> bool:
        """Return whether the window, which is `seconds` long, has enough calls to choose the next
        limit."""
        ...

    def next(self, state: PolicyState) -> tuple[float, Mapping[str, float]]:
        """Return the next limit, and what to remember for the next window."""
        ...


def observe(
    state: PolicyState, sample: CallSample, policy: ConcurrencyPolicy, bounds: Bounds, now: float
) -> PolicyState:
    """Return the state of a server after a call has ended."""
    if now - state.began > max(MIN_WINDOW_AGE, WINDOW_AGE_CALLS * sample.seconds):
        state = replace(state, window=Window(), began=now - sample.seconds)
    # A call that began before the limit was changed ran beside another number of calls: it is not
    # measured.
    window = state.window.plus(sample, is_new=now - sample.seconds >= state.began)
    state = replace(state, window=window)
    if not window.ended_calls or not policy.is_window_complete(state, now - state.began):
        return state
    limit, memory = policy.next(state)
    return PolicyState(bounds.clamp(limit), now, memory=memory)


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Keep the limit as it is."""

    window_seconds: float = 60.0
    counts_broken_answers: bool = False

    def is_window_complete(self, state: PolicyState, seconds: float) -> bool:
        return seconds >= self.window_seconds

    def next(self, state: PolicyState) -> tuple[float, Mapping[str, float]]:
        return state.limit, {}


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """Change the limit in fixed steps (requirement L3): over 10 % time-outs → x 0.7; under 2 % with
    more than 50 answers → x 1.2."""

    window_seconds: float = 10.0
    counts_broken_answers: bool = False

    def is_window_complete(self, state: PolicyState, seconds: float) -> bool:
        return seconds >= self.window_seconds

    def next(self, state: PolicyState) -> tuple[float, Mapping[str, float]]:
        if state.window.timeout_share > 0.10:
            return state.limit * 0.7, {}
        if state.window.timeout_share < 0.02 and state.window.answered > 50:
            return state.limit * 1.2, {}
        return state.limit, {}


@dataclass(frozen=True, slots=True)
class AdaptivePolicy:
    """Raise the limit while that makes the server give more tokens a second in all, and lower it
    when each call gets slow.

    The first calls tell how fast the server is with one call under way. Then each raise is a trial:
    if the rate does not rise with the number of calls, the raise is taken back. The first raises
    are large, later ones small, and after each raise that was taken back the policy rests for
    longer. Slow means three times the time per token, or to the first token, of a call alone. If
    fewer calls do not make the server faster, the cause lies elsewhere (somebody else's load,
    another model): then the present times become the new reference.
    """

    window_seconds: float = 5.0
    """Shortest window, in seconds, once the limit is found."""
    min_scaling: float = 0.15
    """Lowest scaling, which is log(rate after / before) / log(calls after / before), for a raise to
    be kept: 1 if the rate rises as much as the calls, 0 if it does not rise."""
    quadruple_above: float = 0.8
    """Scaling above which the first raises are x 4 instead of x 2."""
    slow: float = 3.0
    """A server is slow when its times are this multiple of the reference."""
    max_steps_down: int = 3
    """Steps down after which the server must have become faster."""
    gain: float = 0.1
    """Part of its slowness that it must have lost by then."""
    max_rest: float = 64.0
    """Longest rest without raises, in windows."""
    counts_broken_answers: bool = True

    def is_window_complete(self, state: PolicyState, seconds: float) -> bool:
        window, limit = state.window, int(state.limit)
        if "alone" not in state.memory:
            return True  # the first call that ends says whether it was alone
        has_enough = window.measured >= limit / 2 or window.ended_calls >= 3 * limit
        if not state.memory.get("found") or window.is_refusing:
            return has_enough or window.ended_calls - window.answered >= 2
        return (
            has_enough
            and seconds >= self.window_seconds
            and window.ended_calls >= min(10, 2 * limit)
        )

    def next(self, state: PolicyState) -> tuple[float, Mapping[str, float]]:
        window, memory, limit = state.window, dict(state.memory), state.limit
        if window.timeout_share > 0.05 or window.is_refusing:
            self._end_trial(memory)
            self._begin_rest(memory)
            return min(limit * 0.7, max(1.0, limit - 1)), memory | {"found": 1.0, "alone": 1.0}
        if not window.measured:
            return limit, memory
        if "alone" not in memory:
            return self._measure_alone(state, memory)
        self._record_best(window, memory)
        slowness = self._slowness(window, memory)
        limit_before = memory.get("limit")
        if limit_before is not None and limit_before < limit:
            if window.mean_in_flight < memory["calls"] * 1.05 and slowness <= 1:
                return limit, memory  # too few calls to tell
            memory["rise"] = _scaling(window, memory)
            if slowness > 1 or memory["rise"] < self.min_scaling:
                return self._undo_raise(limit_before, memory), memory
            memory["rest"] = 0.0
        if slowness > 1:
            return self._lower_or_accept_slowness(limit, slowness, window, memory)
        memory.pop("steps", None)
        memory |= {"limit": limit, "calls": window.mean_in_flight, "rate": window.rate}
        if window.awaited * 2 < window.answered:
            return limit, memory  # no calls wait for a higher limit
        return self._raise_limit(limit, memory), memory

    def _measure_alone(
        self, state: PolicyState, memory: dict[str, float]
    ) -> tuple[float, Mapping[str, float]]:
        """Lower the limit to one call, and restore it when a call alone has been measured."""
        window = state.window
        if window.mean_in_flight > 1 and "start" not in memory:
            return 1.0, memory | {"start": state.limit}
        self._record_best(window, memory)
        start = memory.pop("start", state.limit)
        memory |= {
            "alone": 1.0,
            "limit": state.limit,
            "calls": window.mean_in_flight,
            "rate": window.rate,
        }
        return start, memory

    def _record_best(self, window: Window, memory: dict[str, float]) -> None:
        if window.timed:
            for name in ("first_token", "per_token"):
                mean = getattr(window, name) / window.timed
                memory[name] = min(memory.get(name, mean), mean)

    def _slowness(self, window: Window, memory: Mapping[str, float]) -> float:
        """Return how slow the tokens come, relative to `slow` times the reference; more than 1 is
        too slow."""
        if not window.timed:
            return 0.0
        return max(
            _ratio(getattr(window, name) / window.timed, memory[name]) / self.slow
            for name in ("first_token", "per_token")
        )

    def _raise_limit(self, limit: float, memory: dict[str, float]) -> float:
        if not memory.get("found"):
            # If the rate rose as much as the calls did, there is room for far more.
            return limit * (
                4 if memory.get("rise", 0.0) > self.quadruple_above and limit < 10 else 2
            )
        if memory.get("rest", 0.0) > 0:
            memory["rest"] -= 1
            return limit
        return limit + max(1.0, limit * 0.25)

    def _undo_raise(self, limit_before: float, memory: dict[str, float]) -> float:
        if memory.get("found"):
            self._begin_rest(memory)
        memory["found"] = 1.0
        return limit_before

    def _begin_rest(self, memory: dict[str, float]) -> None:
        """Try no raise for some windows, twice as many each time."""
        memory["pause"] = min(self.max_rest, 2 * memory.get("pause", 1.0))
        memory["rest"] = memory["pause"]

    def _end_trial(self, memory: dict[str, float]) -> None:
        for name in ("limit", "calls", "rate", "start"):
            memory.pop(name, None)

    def _lower_or_accept_slowness(
        self, limit: float, slowness: float, window: Window, memory: dict[str, float]
    ) -> tuple[float, Mapping[str, float]]:
        """Lower the limit; if that has not helped `max_steps_down` times, keep it, and take the
        present times for the reference."""
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


def _scaling(window: Window, memory: Mapping[str, float]) -> float:
    """Return log(rate now / before) / log(calls now / before)."""
    more_calls = math.log(max(window.mean_in_flight / memory["calls"], 1.05))
    return math.log(max(window.rate / memory["rate"], 0.01)) / more_calls


def _ratio(now: float, best: float) -> float:
    return now / best if best > 0 else 1.0
