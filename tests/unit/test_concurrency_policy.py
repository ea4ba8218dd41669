"""Policies that choose how many requests a server gets at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from switchyard.services.llm.concurrency_policy import (
    AdaptivePolicy,
    Bounds,
    CallEnd,
    CallSample,
    ConcurrencyPolicy,
    FixedPolicy,
    PolicyState,
    StepPolicy,
    observe,
)

BOUNDS = Bounds(start=16, min_calls=5, max_calls=50)
SMALL_BOUNDS = Bounds(start=2, min_calls=1, max_calls=50)
ANSWER_TOKENS = 100


def run_window(
    policy: ConcurrencyPolicy,
    state: PolicyState,
    *,
    answered: int = 0,
    timed_out: int = 0,
    refused: int = 0,
    broken: int = 0,
    in_flight: int | None = None,
    first_token: float = 0.1,
    per_token: float = 0.02,
    others_wait: bool = True,
    bounds: Bounds = BOUNDS,
) -> PolicyState:
    """Return the state at the end of a window with these calls."""
    busy = int(state.limit) if in_flight is None else in_flight
    seconds = first_token + per_token * ANSWER_TOKENS
    answer = CallSample(
        CallEnd.ANSWERED,
        busy,
        seconds,
        ANSWER_TOKENS,
        first_token,
        per_token,
        others_wait=others_wait,
    )
    samples = [
        *[CallSample(CallEnd.TIMED_OUT, busy)] * timed_out,
        *[CallSample(CallEnd.REFUSED, busy)] * refused,
        *[CallSample(CallEnd.BROKEN, busy)] * broken,
        *[answer] * answered,
    ]
    window = state
    for calls_left, sample in zip(reversed(range(len(samples))), samples, strict=True):
        state = observe(state, sample, policy, bounds, window.began + (9.9 if calls_left else 10))
        if state.began != window.began:
            break
    return state


def state_after_warm_up(limit: int = 16, *, bounds: Bounds = BOUNDS) -> PolicyState:
    """Return the state of a server that has just got this limit, and was as quick with one call."""
    state = run_window(AdaptivePolicy(), PolicyState.first(bounds, 0), answered=1, bounds=bounds)
    state = run_window(AdaptivePolicy(), state, answered=20, in_flight=1, bounds=bounds)
    return replace(state, limit=float(limit))


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
    state = run_window(
        StepPolicy(), PolicyState.first(BOUNDS, 0), answered=answered, timed_out=timed_out
    )
    assert state.limit == pytest.approx(expected)


@pytest.mark.parametrize("policy", [StepPolicy(), AdaptivePolicy(), FixedPolicy()])
def test_the_bounds_hold_whatever_happens(policy: ConcurrencyPolicy) -> None:
    state = PolicyState.first(BOUNDS, 0)
    for _ in range(50):
        state = run_window(policy, state, timed_out=100)
        assert state.limit >= 5
    for _ in range(200):
        state = run_window(policy, state, answered=100)
        assert state.limit <= 50


def test_nothing_changes_within_a_window() -> None:
    state = observe(
        PolicyState.first(BOUNDS, 0), CallSample(CallEnd.TIMED_OUT, 1), StepPolicy(), BOUNDS, 9.9
    )
    assert state.limit == 16


def test_the_first_calls_measure_the_server_with_one_call_under_way() -> None:
    state = run_window(
        AdaptivePolicy(), PolicyState.first(SMALL_BOUNDS, 0), answered=1, bounds=SMALL_BOUNDS
    )
    assert state.limit == 1
    state = run_window(AdaptivePolicy(), state, answered=1, bounds=SMALL_BOUNDS)
    assert state.limit == 2


def test_an_adaptive_limit_grows_while_it_is_used_and_all_tokens_come_faster() -> None:
    policy, state, limits = AdaptivePolicy(), state_after_warm_up(bounds=SMALL_BOUNDS, limit=2), []
    for _ in range(4):
        state = run_window(policy, state, answered=40, bounds=SMALL_BOUNDS)
        limits.append(int(state.limit))
    assert limits == [8, 32, 50, 50]
    without_waiting = run_window(
        policy, state_after_warm_up(), answered=40, in_flight=3, others_wait=False
    )
    assert without_waiting.limit == 16, "no call waits for a higher limit"


@pytest.mark.parametrize(("first_token", "per_token"), [(0.1, 0.04), (2.1, 0.02)])
def test_a_raise_that_brings_no_more_tokens_is_taken_back(
    first_token: float, per_token: float
) -> None:
    """The second call shares the server with the first, or waits for it."""
    policy, state = AdaptivePolicy(), state_after_warm_up(bounds=SMALL_BOUNDS, limit=2)

    def run_next_window(state: PolicyState) -> PolicyState:
        first, token = (first_token, per_token) if state.limit > 1 else (0.1, 0.02)
        return run_window(
            policy, state, answered=20, bounds=SMALL_BOUNDS, first_token=first, per_token=token
        )

    state = run_next_window(state)
    assert state.limit == 1
    trials = 0
    for _ in range(50):
        state = run_next_window(state)
        trials += state.limit > 1
    assert 1 <= trials <= 5, "the pause after a trial in vain grows"


@pytest.mark.parametrize(("first_token", "per_token"), [(0.1, 0.07), (0.4, 0.02)])
def test_the_limit_shrinks_when_tokens_come_slowly(first_token: float, per_token: float) -> None:
    policy = AdaptivePolicy()
    state = run_window(policy, state_after_warm_up(), answered=40, others_wait=False)
    assert state.limit == 16
    slower = run_window(policy, state, answered=40, first_token=first_token, per_token=per_token)
    assert slower.limit == pytest.approx(state.limit * 0.9)


def test_times_that_a_lower_limit_does_not_improve_become_the_reference() -> None:
    policy = AdaptivePolicy()
    state = run_window(policy, state_after_warm_up(), answered=40, others_wait=False)
    for _ in range(6):
        state = run_window(policy, state, answered=40, per_token=0.08)
    assert state.limit > 16 * 0.9**4
    assert run_window(policy, state, answered=40, per_token=0.08).limit >= state.limit


def test_refusals_timeouts_and_cut_answers_shrink_the_limit_at_once() -> None:
    policy, start = AdaptivePolicy(), state_after_warm_up()
    for refused, timed_out, broken in ((5, 0, 0), (0, 2, 0), (0, 0, 5)):
        state = run_window(
            policy, start, answered=20, refused=refused, timed_out=timed_out, broken=broken
        )
        assert state.limit == pytest.approx(16 * 0.7)
    assert run_window(policy, start, refused=10).limit == pytest.approx(16 * 0.7)
    with_one_call = run_window(policy, start, broken=5, in_flight=1)
    assert with_one_call == start, "with one call it is no sign of too many"


def test_after_an_overload_no_raise_is_tried_for_some_windows() -> None:
    policy = AdaptivePolicy()
    state = run_window(
        policy,
        state_after_warm_up(4, bounds=SMALL_BOUNDS),
        answered=2,
        broken=4,
        bounds=SMALL_BOUNDS,
    )
    assert int(state.limit) == 2
    limits = []
    for _ in range(4):
        state = run_window(policy, state, answered=20, bounds=SMALL_BOUNDS)
        limits.append(int(state.limit))
    assert limits == [2, 2, 3, 4]


def test_an_old_window_is_forgotten() -> None:
    """One single call an hour after a burst is no sign that the burst was answered well."""
    policy, state = AdaptivePolicy(), state_after_warm_up()
    sample = CallSample(CallEnd.ANSWERED, 16, 2.0, ANSWER_TOKENS, 0.1, 0.02)
    for _ in range(7):
        state = observe(state, sample, policy, BOUNDS, state.began + 3)
    quiet = replace(sample, in_flight=1, others_wait=False)
    later = observe(state, quiet, policy, BOUNDS, state.began + 3600)
    assert later.limit == 16
    assert later.window.answered == 1


def test_a_server_that_does_not_stream_is_measured_by_whole_answers() -> None:
    policy, state = AdaptivePolicy(), PolicyState.first(SMALL_BOUNDS, 0)
    for _ in range(12):
        sample = CallSample(CallEnd.ANSWERED, int(state.limit), 2.0, ANSWER_TOKENS)
        state = observe(state, sample, policy, SMALL_BOUNDS, state.began + 10)
    assert state.limit > 8


def test_a_stored_state_is_loaded_and_an_invalid_one_is_replaced() -> None:
    state = run_window(AdaptivePolicy(), state_after_warm_up(25), answered=40)
    assert PolicyState.load(state.dump(), BOUNDS, 99) == state
    assert PolicyState.load({}, BOUNDS, 99) == PolicyState.first(BOUNDS, 99)
    narrower = replace(BOUNDS, max_calls=20)
    assert PolicyState.load(state.dump(), narrower, 99).limit == 20, "settings that changed"
