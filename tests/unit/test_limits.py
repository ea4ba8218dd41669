"""Named limits: what a job needs, and the window that keeps a rate; no ledger is needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from switchyard.services.common.settings import KeyedLimitOverride
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.limits import Limit, LimitRefused, demands_of
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import Registry, RegistryError, job, job_type_of
from switchyard.services.engine.records.limits import (
    LimitSize,
    PermitRequest,
    RateWindow,
    backoff_level,
)
from switchyard.testing import run_job

NOW = 1_800_000_000.5
LEVELS = (5.0, 10.0, 20.0, 40.0)


class Ask(BaseModel):
    account: str = "acme"
    max_tokens: int = 100
    text: str = ""


def needs(limit: Limit, payload: Ask | None = None, **numbers: Any) -> list[tuple[Any, ...]]:
    given = {limit.name: KeyedLimitOverride.model_validate(numbers)} if numbers else {}
    found = demands_of([limit], payload or Ask(), given)
    return [(each.key, each.size, each.tokens) for each in found]


# --- what a job needs -----------------------------------------------------------------------------


def test_a_key_is_a_field_of_the_payload_or_a_function_of_it() -> None:
    room = LimitSize(concurrency=2)
    assert needs(Limit("openai", concurrency=2)) == [("", room, 0)]
    assert needs(Limit("openai", concurrency=2, key="account")) == [("acme", room, 0)]
    by_function = Limit("openai", concurrency=2, key=lambda payload: payload.account[:2])
    assert needs(by_function) == [("ac", room, 0)]


def test_a_long_key_is_known_by_its_hash() -> None:
    limit = Limit("openai", concurrency=2, key="account")
    ((key, *_),) = needs(limit, Ask(account="x" * 1000))
    assert key.startswith("sha256:")
    assert len(key) < 120


def test_tokens_are_a_field_a_function_or_a_quarter_of_the_payloads_characters() -> None:
    def tokens(**given: Any) -> int:
        ((_, _, number),) = needs(
            Limit("openai", tokens_per_minute=1000, **given), Ask(text="x" * 400)
        )
        return int(number)

    assert tokens(tokens="max_tokens") == 100
    assert tokens(tokens=lambda payload: payload.max_tokens * 2) == 200
    assert 100 < tokens() < 130


def test_663_tokens_cannot_pass_a_limit_of_100() -> None:
    limit = Limit("openai", tokens_per_minute=100, tokens="max_tokens")
    with pytest.raises(LimitRefused, match="663 tokens cannot pass the limit openai of 100"):
        needs(limit, Ask(max_tokens=663))


def test_a_function_that_fails_or_answers_nonsense_refuses_the_job() -> None:
    with pytest.raises(LimitRefused, match="ZeroDivisionError"):
        needs(Limit("openai", concurrency=1, key=lambda _: 1 / 0))
    with pytest.raises(LimitRefused, match="not a number"):
        needs(Limit("openai", tokens_per_minute=9, tokens=lambda _: float("nan")))


def test_settings_give_other_numbers_lift_them_and_know_single_keys() -> None:
    limit = Limit("openai", concurrency=2, per_minute=10, key="account")
    assert needs(limit, concurrency=5) == [("acme", LimitSize(5, 10), 0)]
    assert needs(limit, per_minute=None) == [("acme", LimitSize(2), 0)]
    assert needs(limit, concurrency=None, per_minute=None) == []
    special = {"acme": {"concurrency": 1}}
    assert needs(limit, concurrency=5, keys=special) == [("acme", LimitSize(1, 10), 0)]
    assert needs(limit, Ask(account="b"), concurrency=5, keys=special) == [
        ("b", LimitSize(5, 10), 0)
    ]


# --- declarations ---------------------------------------------------------------------------------


def declared(*limits: Limit, name: str = "asks") -> Any:
    async def handler(payload: Ask, ctx: JobContext) -> Outcome:
        ctx.report_usage(tokens=7)
        return Done()

    handler.__annotations__ = {"payload": Ask, "ctx": JobContext}
    return job(name, worker="llm", lanes=("hot",), limits=limits)(handler)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([Limit("openai")], "limits nothing"),
        ([Limit("Open AI", concurrency=1)], "lower-case"),
        ([Limit("openai", concurrency=0)], "1 or more"),
        ([Limit("openai", concurrency=1, key="nobody")], "no field 'nobody'"),
        ([Limit("openai", concurrency=1), Limit("openai", per_minute=1)], "twice"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(limits: list[Limit], said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        declared(*limits)


def test_two_types_that_name_a_limit_mean_the_same_room() -> None:
    first = job_type_of(declared(Limit("openai", concurrency=1), name="first"))
    same = job_type_of(declared(Limit("openai", concurrency=1), name="same"))
    other = job_type_of(declared(Limit("openai", concurrency=2), name="other"))
    registry = Registry([first, same])
    with pytest.raises(RegistryError, match="other numbers in 'other' than in 'first'"):
        registry.add(other)


async def test_a_test_of_a_handler_sees_needs_use_and_refusal() -> None:
    limit = Limit("openai", tokens_per_minute=100, key="account", tokens="max_tokens")
    run = await run_job(declared(limit), {"max_tokens": 60})
    assert [(need.name, need.key, need.tokens) for need in run.needs] == [("openai", "acme", 60)]
    assert (run.state, run.used_tokens) == ("succeeded", 7)
    refused = await run_job(declared(limit), {"max_tokens": 663})
    assert (refused.state, refused.reason) == ("dead", "permanent")
    assert refused.failure is not None
    assert "663 tokens" in refused.failure.message


# --- the window -----------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0, 30), min_size=1, max_size=60),
    st.integers(1, 7),
    st.integers(1, 40),
)
def test_no_minute_has_more_than_its_rate(
    pauses: list[float], per_minute: int, tokens_each: int
) -> None:
    room = LimitSize(per_minute=per_minute, tokens_per_minute=100)
    window, now = RateWindow(), NOW
    started: list[float] = []
    for pause in pauses:
        now += pause
        window = RateWindow.load(window.dump(), now)
        if not window.wait(now, room, 1, tokens_each):
            window = window.plus(now, 1, tokens_each)
            started.append(now)
    for first in started:
        within = [each for each in started if first <= each < first + 60]
        assert len(within) <= per_minute
        assert len(within) * tokens_each <= 100


def test_who_waits_is_told_when_there_is_room() -> None:
    room = LimitSize(per_minute=2)
    window = RateWindow().plus(NOW, 1, 0).plus(NOW + 10, 1, 0)
    wait = window.wait(NOW + 20, room, 1, 0)
    assert 40 <= wait <= 41.5
    later = NOW + 20 + wait
    assert RateWindow.load(window.dump(), later).wait(later, room, 1, 0) == 0
    assert 50 <= window.wait(NOW + 20, room, 2, 0) <= 51.5
    # Three more than two minutes hold.
    assert 110 <= window.wait(NOW + 20, room, 4, 0) <= 131.5


def test_a_clock_that_is_set_back_lets_nobody_wait_for_the_time_it_showed() -> None:
    room = LimitSize(per_minute=2)
    window = RateWindow().plus(NOW, 1, 10).plus(NOW + 3600, 1, 0).plus(NOW + 3601, 1, 5)
    now = NOW + 30
    window = RateWindow.load(window.dump(), now)
    assert (window.jobs, window.tokens) == (3, 15)  # none is forgotten
    wait = window.wait(now, room, 1, 0)
    assert 59 < wait <= 61
    assert RateWindow.load(window.dump(), now + wait).wait(now + wait, room, 1, 0) == 0


def test_actual_use_corrects_the_estimate_in_its_own_second() -> None:
    room = LimitSize(tokens_per_minute=100)
    window = RateWindow().plus(NOW, 1, 90)
    assert window.wait(NOW + 1, room, 1, 20) > 0
    assert window.corrected(int(NOW), NOW + 1, -60).wait(NOW + 1, room, 1, 20) == 0
    # What was used beyond the estimate a long time ago counts now.
    assert RateWindow().corrected(int(NOW), NOW + 100, 500).tokens == 500
    assert RateWindow().corrected(int(NOW), NOW + 100, -500).tokens == 0


def test_a_job_comes_back_by_itself_late_when_it_can_be_called_else_a_bit_later_each_time() -> None:
    def level(body: bytes | None, times: int) -> float:
        request = PermitRequest(
            "hold", "holder", (), "job", 0, 0, "hot.llm", 0, body, LEVELS, 0, 15
        )
        return backoff_level(request, times)

    assert [level(b"{}", times) for times in (0, 1, 9)] == [40, 40, 40]
    assert [level(None, times) for times in (0, 1, 2, 3, 9)] == [5, 10, 20, 40, 40]
