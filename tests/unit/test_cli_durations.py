"""Durations as a user writes and reads them."""

import time

import pytest

from switchyard.cli.base.durations import (
    age,
    duration_text,
    now,
    parse_duration,
    reset_age_clock,
    set_age_clock,
)
from switchyard.cli.base.errors import WrongUsage


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("0.5s", 0.5), ("250ms", 0.25),
     ("7", 7), (" 3 ".strip(), 3), ("1H", 3600)],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "10x", "-5s", "5 m", "1e3s", "ten", "inf", "nan"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [(0, "0 s", "0 s"), (0.44, "440 ms", "440 ms"), (9, "9 s", "9 s"), (9.5, "9.5 s", "9.5 s"),
     (0.9999, "1 s", "1 s"), (5.0000001, "5 s", "5 s"), (9.97, "10 s", "10 s"),
     (59, "59 s", "59 s"), (440, "7 min 20 s", "7 min"), (3600, "1 h", "1 h"),
     (5400, "1 h 30 min", "1 h"), (172800, "2 d", "2 d")],
)  # fmt: skip
def test_durations_are_shown_with_two_units_or_one(seconds: float, long: str, short: str) -> None:
    assert duration_text(seconds) == long
    assert duration_text(seconds, units=1) == short


def test_ages_of_past_and_future_times() -> None:
    assert age(None) == ""
    reset_age_clock()
    set_age_clock(lambda: 160)
    assert age(100) == "1 min"
    assert age(220) == "in 1 min"


def test_a_reset_age_clock_is_that_of_the_host() -> None:
    reset_age_clock()
    set_age_clock(lambda: 160)
    reset_age_clock()
    assert now() == pytest.approx(time.time(), abs=60)
