"""How long somebody asks to wait: the Retry-After header of a response, bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_RETRY_DELAY = 7 * 24 * 3600.0
"""Seconds; whoever asks for a longer delay, a handler or a server, gets this one."""


def bounded_delay(seconds: object) -> float:
    """Return a delay that a clock can hold, in seconds; 0 for what is no number."""
    if not isinstance(seconds, int | float) or seconds != seconds:  # NaN
        return 0.0
    return float(min(max(seconds, 0), LONGEST_RETRY_DELAY))


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that an HTTP error's response asks to wait (RFC 9110: seconds or a date).

    Works for httpx and for every library whose errors carry a `response` with `headers`.
    """
    headers = getattr(getattr(error, "response", None), "headers", None)
    value = headers.get("retry-after") if headers is not None else None
    return parse_retry_after(str(value)) if value else None


def parse_retry_after(value: str) -> float | None:
    """Return the seconds of a Retry-After header; None when it makes no sense. Never negative, nor
    more than LONGEST_RETRY_DELAY."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return bounded_delay(int(text[:12]))
    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return bounded_delay((when - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None  # what the standard library raises for one nonsense or another
