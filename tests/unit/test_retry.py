"""The retry decision after an attempt, as tables."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.common.durations import MAX_RETRY_DELAY
from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.jobs.outcomes import Discard, Done, Job, Next, Retry, Snooze
from switchyard.services.engine.jobs.retry import (
    Delayed,
    Died,
    Failure,
    RetryPolicy,
    Succeeded,
    decide,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POLICY = RetryPolicy.from_levels()
ERROR = Failure.from_error(RuntimeError("boom"))
CRASH = Failure("ProcessCrashed", "killed", crashed=True)


def decide_with_defaults(
    ending: object, attempts: int = 0, max_attempts: int = 3, crashes: int = 0
):
    return decide(
        ending,
        attempts=attempts,
        max_attempts=max_attempts,
        policy=POLICY,
        now=NOW,
        crashes=crashes,
    )


def test_done_succeeds_with_its_result() -> None:
    assert decide_with_defaults(Done({"pages": 3})) == Succeeded({"pages": 3})


def test_next_succeeds_with_the_jobs_that_follow() -> None:
    following = [Job("embed_content", {"id": 1})]
    assert decide_with_defaults(Next(following, {"pages": 3})) == Succeeded(
        {"pages": 3}, tuple(following)
    )


@pytest.mark.parametrize(
    ("attempts", "level"), [(0, 5), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300)]
)
@pytest.mark.parametrize("ending", [ERROR, Retry("later")])
def test_a_failure_waits_at_the_level_of_its_backoff(ending, attempts: int, level: int) -> None:
    decision = decide_with_defaults(ending, attempts, max_attempts=1000)
    assert isinstance(decision, Delayed)
    assert (decision.level, decision.attempts, decision.counts) == (level, attempts + 1, True)
    assert decision.not_before is None


def test_with_the_default_three_attempts_the_delays_are_five_and_ten_seconds() -> None:
    decisions = [decide_with_defaults(ERROR, attempts) for attempts in range(3)]
    assert [d.level for d in decisions if isinstance(d, Delayed)] == [5, 10]
    assert isinstance(decisions[2], Died)


@pytest.mark.parametrize("ending", [ERROR, Retry("later"), Retry("later", after=3600)])
def test_the_last_failed_attempt_is_exhausted(ending) -> None:
    decision = decide_with_defaults(ending, attempts=2)
    assert isinstance(decision, Died)
    assert (decision.reason, decision.attempts) == (Reason.EXHAUSTED, 3)


@pytest.mark.parametrize(
    ("ending", "error_type"),
    [
        (Failure.from_error(PermanentError("corrupt")), "PermanentError"),
        (Discard("not wanted"), "Discard"),
        (None, "InvalidOutcome"),
        (42, "InvalidOutcome"),
        (Done, "InvalidOutcome"),
        (Done(None), "InvalidOutcome"),  # type: ignore[arg-type]
        (Next(None), "InvalidOutcome"),  # type: ignore[arg-type]
        (Next([{"job_type": "noop"}]), "InvalidOutcome"),  # type: ignore[list-item]
    ],
)
def test_a_permanent_failure_is_dead_at_once(ending, error_type: str) -> None:
    decision = decide_with_defaults(ending)
    assert isinstance(decision, Died)
    assert (decision.reason, decision.attempts) == (Reason.PERMANENT, 1)
    assert decision.failure.error_type == error_type


@pytest.mark.parametrize(
    ("ending", "attempts", "max_attempts", "crashes", "reason"),
    [
        (CRASH, 0, 3, 0, None),
        (CRASH, 1, 3, 0, Reason.CRASHED),
        (CRASH, 0, 1, 0, Reason.CRASHED),
        # Its worker died while it ran, and then it killed a process of its own.
        (CRASH, 0, 3, 1, Reason.CRASHED),
        (CRASH, 0, 3, 4, Reason.CRASHED),
        # Deaths of workers and other failures do not prove that the job is the cause.
        (Failure("ValueError", "no"), 0, 3, 4, None),
        (Snooze(1), 0, 3, 4, None),
    ],
)
def test_a_job_that_crashes_again_is_dead(
    ending: object, attempts: int, max_attempts: int, crashes: int, reason: Reason | None
) -> None:
    decision = decide_with_defaults(ending, attempts, max_attempts, crashes)
    assert (decision.reason if isinstance(decision, Died) else None) == reason


@pytest.mark.parametrize(
    ("after", "level", "total_wait"),
    [
        (None, 5, None),
        (1, 5, None),
        (7, 10, None),
        (10, 10, None),
        (14, 10, 14),
        (16, 20, None),
        (60, 40, 60),
        (299, 300, None),
        (300, 300, None),
        (301, 300, 301),
        (3600, 300, 3600),
        (1e18, 300, MAX_RETRY_DELAY),
        (float("inf"), 300, MAX_RETRY_DELAY),
        (float("nan"), 5, None),
        (-1, 5, None),
    ],
)
def test_a_requested_wait_uses_the_level_that_returns_the_job_first(
    after: float | None, level: int, total_wait: float | None
) -> None:
    decision = decide_with_defaults(Retry("busy", after=after))
    assert isinstance(decision, Delayed)
    assert decision.level == level
    not_before = None if total_wait is None else NOW + timedelta(seconds=total_wait)
    assert decision.not_before == not_before


def test_a_requested_wait_does_not_shorten_the_backoff() -> None:
    decision = decide_with_defaults(Retry("busy", after=1), attempts=4, max_attempts=9)
    assert isinstance(decision, Delayed)
    assert decision.level == 80


@pytest.mark.parametrize("attempts", [0, 2, 50])
@pytest.mark.parametrize("after", [0, 5, 4000])
def test_a_snooze_uses_up_no_attempt(attempts: int, after: float) -> None:
    decision = decide_with_defaults(Snooze(after, "quota"), attempts)
    assert isinstance(decision, Delayed)
    assert (decision.attempts, decision.counts) == (attempts, False)
    assert decision.failure.message == "quota"


def test_backoff_starts_at_five_seconds_doubles_and_ends_at_five_minutes() -> None:
    delays = [POLICY.backoff(attempt) for attempt in (1, 2, 3, 4, 5, 6, 7, 8, 1000)]
    assert delays == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def raise_error(text: str) -> int:
    raise ValueError(text)


def test_a_failure_has_type_message_and_traceback_of_the_error() -> None:
    with pytest.raises(ValueError, match="no such page") as raised:
        raise_error("no such page")
    failure = Failure.from_error(raised.value)
    assert (failure.error_type, failure.message) == ("ValueError", "no such page")
    assert "in raise_error" in failure.traceback
    assert not failure.permanent
    assert not failure.crashed


def test_an_error_without_a_message_has_its_type_as_message() -> None:
    assert Failure.from_error(TimeoutError()).message == "TimeoutError"


def test_an_error_whose_str_fails_becomes_a_failure() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert Failure.from_error(Broken()).error_type == "Broken"


def http_error(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "https://example.org")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError("refused", request=request, response=response)


def test_the_retry_after_of_an_http_answer_is_honoured() -> None:
    assert Failure.from_error(http_error(429, **{"Retry-After": "42"})).after == 42
    assert Failure.from_error(http_error(503)).after is None
    assert Failure.from_error(RetryableError("busy", after=9)).after == 9
    assert Failure.from_error(httpx.ConnectError("refused")).after is None


@pytest.mark.parametrize(
    "error", [http_error(500), http_error(404), httpx.ReadTimeout("slow"), MemoryError(), OSError()]
)
def test_http_errors_time_outs_and_exhausted_resources_are_retried(error: Exception) -> None:
    assert isinstance(decide_with_defaults(Failure.from_error(error)), Delayed)
