"""Properties of every retry decision, whatever a handler returns or raises."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.services.common.durations import MAX_RETRY_DELAY, parse_retry_after
from switchyard.services.engine.jobs.outcomes import Discard, Done, Job, Next, Retry, Snooze
from switchyard.services.engine.jobs.retry import (
    Delayed,
    Died,
    Failure,
    RetryPolicy,
    Succeeded,
    decide,
)
from switchyard.services.pipeline.sources.rate_headers import pause_when_used_up

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

seconds = st.one_of(
    st.none(), st.floats(), st.integers(), st.sampled_from([0, 5, 5.001, 300, 10**400])
)
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.integers()),
    st.just(Done),
    st.just(object()),
)
failures = st.builds(
    Failure,
    error_type=st.text(),
    message=st.text(),
    permanent=st.booleans(),
    crashed=st.booleans(),
    after=seconds,
)
outcomes = st.one_of(
    st.builds(Done, anything),
    st.builds(Next, st.one_of(st.lists(st.builds(Job, st.text(), st.just({}))), anything)),
    st.builds(Retry, st.text(), seconds),
    st.builds(Retry, anything, anything),
    st.builds(Snooze, seconds),
    st.builds(Snooze, anything, anything),
    st.builds(Discard, anything),
)
levels = st.lists(st.floats(0.001, 1000), min_size=1, max_size=8, unique=True).map(sorted)
policies = levels.map(RetryPolicy.from_levels)
counts = st.integers(0, 2000)
limits = st.integers(1, 1000)


@given(st.one_of(outcomes, failures, anything), counts, limits, policies)
def test_any_ending_leads_to_a_decision(ending, attempts, max_attempts, policy) -> None:
    decision = decide(ending, attempts=attempts, max_attempts=max_attempts, policy=policy, now=NOW)
    assert isinstance(decision, Succeeded | Delayed | Died)
    if not isinstance(decision, Succeeded):
        assert isinstance(decision.failure.message, str)


@given(st.one_of(outcomes, failures, anything), counts, limits, policies)
def test_no_job_exceeds_its_attempts(ending, attempts, max_attempts, policy) -> None:
    decision = decide(ending, attempts=attempts, max_attempts=max_attempts, policy=policy, now=NOW)
    if isinstance(decision, Delayed):
        assert decision.counts == (not isinstance(ending, Snooze))
        assert decision.attempts == attempts + decision.counts
        assert not decision.counts or decision.attempts < max_attempts
    elif isinstance(decision, Died):
        assert decision.attempts == attempts + 1


@given(st.one_of(st.builds(Retry, st.just(""), seconds), st.builds(Snooze, seconds)), policies)
def test_a_delay_shorter_than_requested_is_continued(ending, policy) -> None:
    decision = decide(ending, attempts=0, max_attempts=3, policy=policy, now=NOW)
    assert isinstance(decision, Delayed)
    assert decision.level in policy.levels
    wanted_delay = ending.after if ending.after is not None and ending.after == ending.after else 0
    wanted_delay = min(max(wanted_delay, 0), MAX_RETRY_DELAY)
    if decision.counts:
        wanted_delay = max(wanted_delay, policy.backoff(1))
    if decision.level >= wanted_delay:
        assert decision.not_before is None
        assert not [level for level in policy.levels if wanted_delay <= level < decision.level]
    else:
        assert decision.not_before == NOW + timedelta(seconds=wanted_delay)


@given(st.floats(0, 1), policies)
def test_a_wait_over_several_levels_is_shorter_than_on_one_and_long_enough(
    fraction, policy
) -> None:
    wanted_delay = fraction * policy.levels[-1]
    remaining, waits = wanted_delay, list[float]()
    while not waits or remaining > 0:
        waits.append(policy.first_level(remaining))
        remaining -= waits[-1]
    assert remaining <= 0
    assert len(waits) == 1 or sum(waits) < policy.level(wanted_delay)
    assert len(waits) <= 25  # each but the last is at least half of the remaining wait


@given(policies, st.integers(1, 10_000))
def test_backoff_never_shrinks_and_stays_within_the_levels(policy, attempt) -> None:
    assert policy.levels[0] <= policy.backoff(attempt) <= policy.backoff(attempt + 1)
    assert policy.backoff(attempt) <= policy.levels[-1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("120", 120),
        (" 7 ", 7),
        ("0", 0),
        ("999999999999999999999", MAX_RETRY_DELAY),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_DELAY),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, expected: float | None) -> None:
    assert parse_retry_after(value, date="") == expected


def test_a_date_without_the_servers_clock_is_counted_from_now() -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 57 <= (parse_retry_after(in_a_minute, date="today") or 0) <= 60


@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0000"])
def test_a_date_is_counted_by_the_clock_of_the_server_that_sent_it(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own zone does not matter, also where the date names none."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        seconds = parse_retry_after(
            f"Fri, 02 Jan 2099 00:01:00 {zone}", date="Fri, 02 Jan 2099 00:00:00 GMT"
        )
        headers = {
            "x-ratelimit-remaining": "0",
            "x-ratelimit-reset": "4070908859",
            "date": f"Fri, 01 Jan 2099 00:00:00 {zone}",
        }
        assert (seconds, pause_when_used_up(headers, now=0.0)) == (60.0, 60.0)
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.one_of(st.text(), st.from_regex(r"\w{3}, \d+ \w{3} \d+ \d+:\d+:\d+ ?[-+\w]*")))
def test_any_retry_after_is_a_valid_delay_or_none(value: str) -> None:
    delay = parse_retry_after(value, date=value)
    assert delay is None or 0 <= delay <= MAX_RETRY_DELAY
