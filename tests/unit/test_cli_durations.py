"""Durations as a user writes and reads them."""

import time

import pytest

from switchyard.cli.base.durations import (
    age,
    duration,
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
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.44, "0.4s"), (59, "59s"), (90, "90s"), (3600, "1h"), (5400, "90m"),
     (7200, "2h"), (86400, "1d"), (172800, "2d")],
)  # fmt: skip
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ages_look_back_and_ahead() -> None:
    assert age(None) == ""
    reset_age_clock()
    set_age_clock(lambda: 160)
    assert age(100) == "60s"
    assert age(220) == "in 60s"


def test_a_command_begins_by_the_clock_of_its_own_host() -> None:
    reset_age_clock()
    set_age_clock(lambda: 160)
    reset_age_clock()
    assert now() == pytest.approx(time.time(), abs=60)
