"""Times as the client takes them: moments, days, and how long ago or from now they are."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

from switchyard.services.common.durations import DURATION_HELP, parse_seconds

Time = datetime | timedelta | str
"""A datetime with a time zone, one in ISO 8601, or a duration (`1h30m`): how long ago it was, or
how long from now it will be, by this host's clock."""
Day = date | timedelta | str
"""A day in UTC, one in ISO 8601, a moment on it, or a duration: how long ago it was."""


def past_param(name: str, value: Time | None) -> str | None:
    """Return a time as the API takes it; a duration counts back from now. Raises ValueError, which
    names the argument."""
    return None if value is None else _moment(name, value, -1).isoformat()


def future_param(name: str, value: Time | None) -> str | None:
    """Return a time as the API takes it; a duration counts from now on. Raises ValueError, which
    names the argument."""
    return None if value is None else _moment(name, value, 1).isoformat()


def day(name: str, value: Day | None) -> str | None:
    """Return a day as the API takes it. Raises ValueError, naming the argument."""
    if value is None:
        return None
    if isinstance(value, str):
        with suppress(ValueError):  # else it is a moment or a duration
            value = date.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return _moment(name, value, -1).astimezone(UTC).date().isoformat()


def _moment(name: str, value: object, sign: int) -> datetime:
    moment: object = value
    try:
        if isinstance(moment, str):
            moment = _parse_time(moment)
        if isinstance(moment, timedelta):
            moment = datetime.now(UTC) + sign * moment
    except (ValueError, OverflowError):
        moment = None
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment
    raise ValueError(
        f"{name} is {str(value)[:100]!r}: give a datetime with a time zone, such a time in ISO "
        f"8601, or a duration, as a timedelta or as text, {DURATION_HELP}"
    )


def _parse_time(text: str) -> datetime | timedelta:
    try:
        return timedelta(seconds=parse_seconds(text))
    except ValueError:
        return datetime.fromisoformat(text.strip())
