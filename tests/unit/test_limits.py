"""Named limits without a ledger: what a job needs of them, and the window of a rate."""

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


class AskPayload(BaseModel):
    account: str = "acme"
    max_tokens: int = 100
    text: str = ""


def needs_of(
    limit: Limit, payload: AskPayload | None = None, **override: Any
) -> list[tuple[Any, ...]]:
    overrides = {limit.name: KeyedLimitOverride.model_validate(override)} if override else {}
    demands = demands_of([limit], payload or AskPayload(), overrides)
    return [(each.key, each.size, each.tokens) for each in demands]


# --- what a job needs -----------------------------------------------------------------------------


def test_a_key_is_a_field_of_the_payload_or_a_function_of_it() -> None:
    size = LimitSize(concurrency=2)
    assert needs_of(Limit("openai", concurrency=2)) == [("", size, 0)]
    assert needs_of(Limit("openai", concurrency=2, key="account")) == [("acme", size, 0)]
    by_function = Limit("openai", concurrency=2, key=lambda payload: payload.account[:2])
    assert needs_of(by_function) == [("ac", size, 0)]


def test_a_long_key_is_replaced_by_its_hash() -> None:
    limit = Limit("openai", concurrency=2, key="account")
    ((key, *_),) = needs_of(limit, AskPayload(account="x" * 1000))
    assert key.startswith("sha256:")
    assert len(key) < 120


def test_tokens_are_a_field_a_function_or_a_quarter_of_the_payloads_characters() -> None:
    def token_need(**options: Any) -> int:
        ((_, _, number),) = needs_of(
            Limit("openai", tokens_per_minute=1000, **options), AskPayload(text="x" * 400)
        )
        return int(number)

    assert token_need(tokens="max_tokens") == 100
    assert token_need(tokens=lambda payload: payload.max_tokens * 2) == 200
    assert 100 < token_need() < 130


def test_663_tokens_cannot_pass_a_limit_of_100() -> None:
    limit = Limit("openai", tokens_per_minute=100, tokens="max_tokens")
    with pytest.raises(LimitRefused, match="663 tokens cannot pass the limit openai of 100"):
        needs_of(limit, AskPayload(max_tokens=663))


def test_a_function_that_fails_or_returns_no_number_refuses_the_job() -> None:
    with pytest.raises(LimitRefused, match="ZeroDivisionError"):
        needs_of(Limit("openai", concurrency=1, key=lambda _: 1 / 0))
    with pytest.raises(LimitRefused, match="not a number"):
        needs_of(Limit("openai", tokens_per_minute=9, tokens=lambda _: float("nan")))


def test_settings_override_limits_remove_them_and_override_single_keys() -> None:
    limit = Limit("openai", concurrency=2, per_minute=10, key="account")
    assert needs_of(limit, concurrency=5) == [("acme", LimitSize(5, 10), 0)]
    assert needs_of(limit, per_minute=None) == [("acme", LimitSize(2), 0)]
    assert needs_of(limit, concurrency=None, per_minute=None) == []
    overrides_by_key = {"acme": {"concurrency": 1}}
    assert needs_of(limit, concurrency=5, keys=overrides_by_key) == [("acme", LimitSize(1, 10), 0)]
    assert needs_of(limit, AskPayload(account="b"), concurrency=5, keys=overrides_by_key) == [
        ("b", LimitSize(5, 10), 0)
    ]


# --- declarations ---------------------------------------------------------------------------------


def declare_job(*limits: Limit, name: str = "asks") -> Any:
    async def handler(payload: AskPayload, ctx: JobContext) -> Outcome:
        ctx.report_usage(tokens=7)
        return Done()

    handler.__annotations__ = {"payload": AskPayload, "ctx": JobContext}
    return job(name, worker="llm", lanes=("hot",), limits=limits)(handler)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ([Limit("openai")], "limits nothing"),
        ([Limit("Open AI", concurrency=1)], "lower-case"),
        ([Limit("openai", concurrency=0)], "1 or more"),
        ([Limit("openai", concurrency=1, key="nobody")], "no field 'nobody'"),
        ([Limit("openai", concurrency=1), Limit("openai", per_minute=1)], "twice"),
    ],
)
def test_an_invalid_declaration_is_refused(limits: list[Limit], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        declare_job(*limits)


def test_two_job_types_must_declare_a_shared_limit_with_the_same_numbers() -> None:
    first = job_type_of(declare_job(Limit("openai", concurrency=1), name="first"))
    same = job_type_of(declare_job(Limit("openai", concurrency=1), name="same"))
    other = job_type_of(declare_job(Limit("openai", concurrency=2), name="other"))
    registry = Registry([first, same])
    with pytest.raises(RegistryError, match="other numbers in 'other' than in 'first'"):
        registry.add(other)


async def test_run_job_reports_needs_usage_and_refusal() -> None:
    limit = Limit("openai", tokens_per_minute=100, key="account", tokens="max_tokens")
    run = await run_job(declare_job(limit), {"max_tokens": 60})
    assert [(need.name, need.key, need.tokens) for need in run.needs] == [("openai", "acme", 60)]
    assert (run.state, run.used_tokens) == ("succeeded", 7)
    refused = await run_job(declare_job(limit), {"max_tokens": 663})
    assert (refused.state, refused.reason) == ("dead", "permanent")
    assert refused.failure is not None
    assert "663 tokens" in refused.failure.message


# --- the window -----------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0, 30), min_size=1, max_size=60),
    st.integers(1, 7),
    st.integers(1, 40),
)
def test_no_minute_exceeds_the_rate(pauses: list[float], per_minute: int, tokens_each: int) -> None:
    size = LimitSize(per_minute=per_minute, tokens_per_minute=100)
    window, now = RateWindow(), NOW
    started: list[float] = []
    for pause in pauses:
        now += pause
        window = RateWindow.load(window.dump(), now)
        if not window.wait(now, size, 1, tokens_each):
            window = window.plus(now, 1, tokens_each)
            started.append(now)
    for first in started:
        in_one_minute = [each for each in started if first <= each < first + 60]
        assert len(in_one_minute) <= per_minute
        assert len(in_one_minute) * tokens_each <= 100


def test_the_wait_ends_when_the_window_has_room() -> None:
    size = LimitSize(per_minute=2)
    window = RateWindow().plus(NOW, 1, 0).plus(NOW + 10, 1, 0)
    wait = window.wait(NOW + 20, size, 1, 0)
    assert 40 <= wait <= 41.5
    after_wait = NOW + 20 + wait
    assert RateWindow.load(window.dump(), after_wait).wait(after_wait, size, 1, 0) == 0
    assert 50 <= window.wait(NOW + 20, size, 2, 0) <= 51.5
    # Four more jobs take two more minutes.
    assert 110 <= window.wait(NOW + 20, size, 4, 0) <= 131.5


def test_after_a_clock_was_set_back_no_wait_is_longer_than_a_minute() -> None:
    size = LimitSize(per_minute=2)
    window = RateWindow().plus(NOW, 1, 10).plus(NOW + 3600, 1, 0).plus(NOW + 3601, 1, 5)
    now = NOW + 30
    window = RateWindow.load(window.dump(), now)
    assert (window.jobs, window.tokens) == (3, 15)  # none is forgotten
    wait = window.wait(now, size, 1, 0)
    assert 59 < wait <= 61
    assert RateWindow.load(window.dump(), now + wait).wait(now + wait, size, 1, 0) == 0


def test_actual_usage_corrects_the_estimate_in_its_second() -> None:
    size = LimitSize(tokens_per_minute=100)
    window = RateWindow().plus(NOW, 1, 90)
    assert window.wait(NOW + 1, size, 1, 20) > 0
    assert window.corrected(int(NOW), NOW + 1, -60).wait(NOW + 1, size, 1, 20) == 0
    # Usage beyond an estimate that has left the window counts from now on.
    assert RateWindow().corrected(int(NOW), NOW + 100, 500).tokens == 500
    assert RateWindow().corrected(int(NOW), NOW + 100, -500).tokens == 0


def test_a_job_that_can_be_woken_comes_back_late_and_others_later_each_time() -> None:
    def backoff(body: bytes | None, refusals: int) -> float:
        request = PermitRequest(
            "hold", "holder", (), "job", 0, 0, "hot.llm", 0, body, LEVELS, 0, 15
        )
        return backoff_level(request, refusals)

    assert [backoff(b"{}", refusals) for refusals in (0, 1, 9)] == [40, 40, 40]
    assert [backoff(None, refusals) for refusals in (0, 1, 2, 3, 9)] == [5, 10, 20, 40, 40]
