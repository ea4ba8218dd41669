"""What follows from an attempt: the retry decision, as tables."""

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


def decided(ended: object, attempts: int = 0, max_attempts: int = 3, crashes: int = 0):
    return decide(
        ended,
        attempts=attempts,
        max_attempts=max_attempts,
        policy=POLICY,
        now=NOW,
        crashes=crashes,
    )


def test_done_succeeds_with_its_result() -> None:
    assert decided(Done({"pages": 3})) == Succeeded({"pages": 3})


def test_next_succeeds_with_the_jobs_that_follow() -> None:
    following = [Job("embed_content", {"id": 1})]
    assert decided(Next(following, {"pages": 3})) == Succeeded({"pages": 3}, tuple(following))


@pytest.mark.parametrize(
    ("attempts", "level"), [(0, 5), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300)]
)
@pytest.mark.parametrize("ended", [ERROR, Retry("later")])
def test_a_failure_waits_at_the_level_of_its_backoff(ended, attempts: int, level: int) -> None:
    decision = decided(ended, attempts, max_attempts=1000)
    assert isinstance(decision, Delayed)
    assert (decision.level, decision.attempts, decision.counts) == (level, attempts + 1, True)
    assert decision.not_before is None


def test_with_the_default_three_attempts_the_delays_are_five_and_ten_seconds() -> None:
    decisions = [decided(ERROR, attempts) for attempts in range(3)]
    assert [d.level for d in decisions if isinstance(d, Delayed)] == [5, 10]
    assert isinstance(decisions[2], Died)


@pytest.mark.parametrize("ended", [ERROR, Retry("later"), Retry("later", after=3600)])
def test_the_last_failed_attempt_is_exhausted(ended) -> None:
    decision = decided(ended, attempts=2)
    assert isinstance(decision, Died)
    assert (decision.reason, decision.attempts) == (Reason.EXHAUSTED, 3)


@pytest.mark.parametrize(
    ("ended", "error_type"),
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
def test_what_no_attempt_can_mend_is_dead_at_once(ended, error_type: str) -> None:
    decision = decided(ended)
    assert isinstance(decision, Died)
    assert (decision.reason, decision.attempts) == (Reason.PERMANENT, 1)
    assert decision.failure.error_type == error_type


@pytest.mark.parametrize(
    ("ended", "attempts", "max_attempts", "crashes", "reason"),
    [
        (CRASH, 0, 3, 0, None),
        (CRASH, 1, 3, 0, Reason.CRASHED),
        (CRASH, 0, 1, 0, Reason.CRASHED),
        # It was there when its worker died, and then killed a process of its own.
        (CRASH, 0, 3, 1, Reason.CRASHED),
        (CRASH, 0, 3, 4, Reason.CRASHED),
        # Deaths of workers alone, and other failures, prove nothing.
        (Failure("ValueError", "no"), 0, 3, 4, None),
        (Snooze(1), 0, 3, 4, None),
    ],
)
def test_a_job_that_crashes_twice_is_dead_and_one_that_saw_others_crash_is_not(
    ended: object, attempts: int, max_attempts: int, crashes: int, reason: Reason | None
) -> None:
    decision = decided(ended, attempts, max_attempts, crashes)
    assert (decision.reason if isinstance(decision, Died) else None) == reason


@pytest.mark.parametrize(
    ("after", "level", "waits_on"),
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
def test_a_wish_to_wait_takes_the_level_from_which_it_is_back_first(
    after: float | None, level: int, waits_on: float | None
) -> None:
    decision = decided(Retry("busy", after=after))
    assert isinstance(decision, Delayed)
    assert decision.level == level
    not_before = None if waits_on is None else NOW + timedelta(seconds=waits_on)
    assert decision.not_before == not_before


def test_a_wish_to_wait_does_not_shorten_the_backoff() -> None:
    decision = decided(Retry("busy", after=1), attempts=4, max_attempts=9)
    assert isinstance(decision, Delayed)
    assert decision.level == 80


@pytest.mark.parametrize("attempts", [0, 2, 50])
@pytest.mark.parametrize("after", [0, 5, 4000])
def test_a_snooze_uses_up_no_attempt(attempts: int, after: float) -> None:
    decision = decided(Snooze(after, "quota"), attempts)
    assert isinstance(decision, Delayed)
    assert (decision.attempts, decision.counts) == (attempts, False)
    assert decision.failure.message == "quota"


def test_backoff_starts_at_five_seconds_doubles_and_ends_at_five_minutes() -> None:
    delays = [POLICY.backoff(attempt) for attempt in (1, 2, 3, 4, 5, 6, 7, 8, 1000)]
    assert delays == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def int_of_page(text: str) -> int:
    raise ValueError(text)


def test_a_failure_keeps_what_is_needed_to_understand_it() -> None:
    with pytest.raises(ValueError, match="no such page") as raised:
        int_of_page("no such page")
    failure = Failure.from_error(raised.value)
    assert (failure.error_type, failure.message) == ("ValueError", "no such page")
    assert "in int_of_page" in failure.traceback
    assert not failure.permanent
    assert not failure.crashed


def test_an_error_without_words_is_called_by_its_type() -> None:
    assert Failure.from_error(TimeoutError()).message == "TimeoutError"


def test_an_error_that_can_not_be_read_is_a_failure_all_the_same() -> None:
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
def test_answers_time_outs_and_exhausted_resources_are_retried(error: Exception) -> None:
    assert isinstance(decided(Failure.from_error(error)), Delayed)
