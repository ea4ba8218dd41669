"""The rules by which a server gets more or fewer requests at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from switchyard.services.llm.concurrency_policy import (
    AdaptivePolicy,
    Bounds,
    CallSample,
    ConcurrencyPolicy,
    Ended,
    Fixed,
    ServerPace,
    StepPolicy,
    observe,
)

BOUNDS = Bounds(start=16, least=5, most=50)


def after(
    rule: ConcurrencyPolicy,
    pace: ServerPace,
    *,
    answered: int = 0,
    timed_out: int = 0,
    refused: int = 0,
    in_flight: int | None = None,
    first_token: float = 0.1,
    per_token: float = 0.02,
) -> ServerPace:
    """What is known when a window with these calls is over."""
    busy = int(pace.limit) if in_flight is None else in_flight
    samples = [
        *[CallSample(Ended.TIMED_OUT, busy)] * timed_out,
        *[CallSample(Ended.REFUSED, busy)] * refused,
        *[CallSample(Ended.ANSWERED, busy, first_token, per_token)] * answered,
    ]
    for place, sample in enumerate(samples):
        last = place == len(samples) - 1
        now = pace.began + (rule.window if last else 0)
        pace = observe(pace, sample, rule, BOUNDS, now)
    return pace


@pytest.mark.parametrize(
    ("answered", "timed_out", "expected"),
    [
        (89, 11, 16 * 0.7),
        (90, 10, 16),
        (51, 0, 16 * 1.2),
        (50, 0, 16),
        (99, 1, 16 * 1.2),
        (98, 2, 16),
        (0, 1, 16 * 0.7),
    ],
)
def test_the_steps_are_those_of_requirement_l3(
    answered: int, timed_out: int, expected: float
) -> None:
    pace = after(StepPolicy(), ServerPace.first(BOUNDS, 0), answered=answered, timed_out=timed_out)
    assert pace.limit == pytest.approx(expected)


@pytest.mark.parametrize("rule", [StepPolicy(), AdaptivePolicy(), Fixed()])
def test_the_bounds_hold_whatever_happens(rule: ConcurrencyPolicy) -> None:
    pace = ServerPace.first(BOUNDS, 0)
    for _ in range(50):
        pace = after(rule, pace, timed_out=100)
        assert pace.limit >= 5
    for _ in range(200):
        pace = after(rule, pace, answered=100)
        assert pace.limit <= 50


def test_nothing_changes_within_a_window() -> None:
    pace = observe(
        ServerPace.first(BOUNDS, 0), CallSample(Ended.TIMED_OUT, 1), StepPolicy(), BOUNDS, 9.9
    )
    assert pace.limit == 16


def test_an_adaptive_limit_grows_while_it_is_used_and_the_server_keeps_its_pace() -> None:
    rule = AdaptivePolicy()
    pace = ServerPace.first(BOUNDS, 0)
    seen = []
    for _ in range(4):
        pace = after(rule, pace, answered=20)
        seen.append(int(pace.limit))
    assert seen == [24, 36, 50, 50]
    idle = after(rule, ServerPace.first(BOUNDS, 0), answered=20, in_flight=3)
    assert idle.limit == 16, "nobody wants more"


@pytest.mark.parametrize(("first_token", "per_token"), [(0.1, 0.06), (0.4, 0.02)])
def test_it_shrinks_when_tokens_come_slowly(first_token: float, per_token: float) -> None:
    rule = AdaptivePolicy()
    pace = after(rule, ServerPace.first(BOUNDS, 0), answered=20)
    slower = after(rule, pace, answered=20, first_token=first_token, per_token=per_token)
    assert slower.limit == pytest.approx(pace.limit * 0.9)


def test_long_answers_do_not_look_like_load() -> None:
    """The times of tokens do not follow an answer's length, as its whole time does."""
    rule = AdaptivePolicy()
    pace = after(rule, ServerPace.first(BOUNDS, 0), answered=20, per_token=0.02)
    assert after(rule, pace, answered=20, per_token=0.02).limit > pace.limit


def test_a_slowness_that_giving_way_does_not_mend_becomes_the_measure() -> None:
    rule = AdaptivePolicy()
    pace = after(rule, ServerPace.first(BOUNDS, 0), answered=20)
    for _ in range(6):
        pace = after(rule, pace, answered=20, per_token=0.08)
    settled = after(rule, pace, answered=20, per_token=0.08)
    assert settled.limit > pace.limit
    assert pace.limit > 24 * 0.9**4


def test_refusals_and_timeouts_shrink_it_at_once() -> None:
    rule = AdaptivePolicy()
    start = ServerPace.first(BOUNDS, 0)
    assert after(rule, start, answered=20, refused=5).limit == pytest.approx(16 * 0.7)
    assert after(rule, start, answered=18, timed_out=2).limit == pytest.approx(16 * 0.7)
    assert after(rule, start, refused=10).limit == pytest.approx(16 * 0.7)


def test_what_is_kept_is_read_again_and_nonsense_begins_anew() -> None:
    pace = after(AdaptivePolicy(), ServerPace.first(BOUNDS, 0), answered=20)
    assert ServerPace.load(pace.dump(), BOUNDS, 99) == pace
    assert ServerPace.load({}, BOUNDS, 99) == ServerPace.first(BOUNDS, 99)
    narrower = replace(BOUNDS, most=20)
    assert ServerPace.load(pace.dump(), narrower, 99).limit == 20, "settings that changed"
