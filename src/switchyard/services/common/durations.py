"""Parse durations as people write them (`10s`, `5m`, `2h30m`, `7d`) and as servers do
(`Retry-After`); compute pauses between polls."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

DAY = 86_400.0
"""Seconds."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
MAX_DURATION = 100 * 365 * DAY
"""Longest duration, in seconds. A longer one is a mistake, and a much longer one is beyond the
calendar."""
DURATION_HELP = "for example 10s, 5m, 2h30m or 7d"


def parse_seconds(text: str) -> float:
    """Return the seconds of `10s`, `5m`, `1h30m`; a bare number is seconds. Raises ValueError."""
    bare = text[:100].strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", bare):
        seconds = float(bare)
    elif not bare or _PART.sub("", bare):
        raise ValueError(
            f"{text[:100]!r} is not a duration: write a number with ms, s, m, h or d, "
            f"{DURATION_HELP}"
        )
    else:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(bare))
    if seconds > MAX_DURATION:
        raise ValueError(f"{text[:100]!r} is longer than 100 years")
    return seconds


def duration_text(seconds: float, *, units: int = 2) -> str:
    """Write a duration for people with its two largest units, such as `3 h 20 min`, or with
    `units=1` as `3 h`; below a second as `250 ms`. A negative one is 0."""
    seconds = max(0.0, seconds)
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    tenths = round(seconds, 1)
    if tenths < 10 and tenths % 1:
        return f"{tenths:.1f} s"
    whole = round(seconds)
    for size, unit, small_size, small_unit in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // small_size if units > 1 else 0
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


MAX_RETRY_DELAY = 7 * DAY
"""Longest delay, in seconds; a longer one that a handler or a server asks for is cut to this."""


def bounded_delay(seconds: object) -> float:
    """Return the delay in seconds, from 0 to MAX_RETRY_DELAY; 0 for a value that is no number."""
    if not isinstance(seconds, int | float) or seconds != seconds:  # NaN
        return 0.0
    return float(min(max(seconds, 0), MAX_RETRY_DELAY))


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that an HTTP error's response asks to wait (RFC 9110: seconds or a date).

    Works for httpx and for every library whose errors carry a `response` with `headers`.
    """
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None or not (value := headers.get("retry-after")):
        return None
    return parse_retry_after(str(value), date=str(headers.get("date", "")))


def parse_retry_after(value: str, *, date: str) -> float | None:
    """Return the seconds of a Retry-After header; None when it is invalid. Never negative, nor
    more than MAX_RETRY_DELAY.

    `date` is the response's Date header: a Retry-After that is a date is by the server's clock,
    from which this host's may differ.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return bounded_delay(int(text[:12]))
    when = parse_http_date(text)
    if when is None:
        return None
    return bounded_delay((when - (parse_http_date(date) or datetime.now(UTC))).total_seconds())


def parse_http_date(text: str) -> datetime | None:
    """Return the moment of a header such as Date, which is UTC where it names no zone; None when
    it is no date."""
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None  # errors of the standard library for invalid dates


class PollPauses:
    """The pauses between two polls, in seconds: from `first` to `longest`, each 1.5 times the one
    before, until `timeout` seconds are over; None: without end."""

    def __init__(self, first: float, longest: float, timeout: float | None = None) -> None:
        self._first, self._longest = first, longest
        self._until = float("inf") if timeout is None else time.monotonic() + timeout
        self._pause = first

    def restart(self) -> None:
        """Begin with the shortest pause again, after something has happened."""
        self._pause = self._first

    def next(self) -> float | None:
        """Return the pause until the next poll; None once the timeout is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            return None
        pause, self._pause = self._pause, min(self._pause * 1.5, self._longest)
        return min(pause, left)
