"""Moments: the times that are accepted from outside, and how stored ones are shown.

Python's calendar goes from year 1 to 9999 of each time zone. So a time near either end exists in
one zone and not in another, where showing, comparing or adding to it fails; and one record that
can't be shown makes a whole listing fail. No such time is accepted (`check_moment`, `parse_moment`;
`broker.message.Moment` in models), and one that is stored nevertheless is shown as the nearest
moment (`to_datetime`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime(9998, 12, 31, tzinfo=UTC)
"""The first and the last moment. A year is left after the last, for durations added to it."""
_FIRST, _LAST = EARLIEST.timestamp(), LATEST.timestamp()


def check_moment(value: datetime) -> datetime:
    """Check a time with a zone and return it unchanged. Raises ValueError for one that can't be
    written in every zone."""
    if not EARLIEST <= value <= LATEST:
        raise ValueError("must be between the years 1 and 9998, in UTC")
    return value


def nearest_moment(value: datetime) -> datetime:
    """Return the nearest moment to a time with a zone."""
    return max(EARLIEST, min(value, LATEST))


def parse_moment(text: str) -> datetime | None:
    """Parse a moment in ISO 8601, such as a header's; None where the text is no time, has no zone,
    or is beyond the calendar."""
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else check_moment(moment)
    except ValueError:
        return None


def to_datetime(seconds: float) -> datetime:
    """Convert seconds since the epoch to a time in UTC, at most the nearest moment; NaN gives the
    earliest. Never raises."""
    if not seconds >= _FIRST:  # NaN, too
        return EARLIEST
    return LATEST if seconds > _LAST else datetime.fromtimestamp(seconds, UTC)


def format_local(seconds: float, *, zoned: bool = False) -> str:
    """Return seconds since the epoch as text in this host's time zone: `2026-01-05 09:00:00`, with
    `zoned` also the zone's name. Never raises."""
    time_format = "%Y-%m-%d %H:%M:%S %Z" if zoned else "%Y-%m-%d %H:%M:%S"
    return time.strftime(time_format, time.localtime(to_datetime(seconds).timestamp()))
