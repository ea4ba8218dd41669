"""Lengths of time as people write them: `10s`, `5m`, `2h30m`, `7d`."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
MAX_DURATION = 100 * 365 * 86400.0
"""Seconds; more is a mistake, and no date."""
DURATION_HELP = "for example 10s, 5m, 2h30m or 7d"


def seconds_of(text: str) -> float:
    """Seconds of `10s`, `5m`, `1h30m`; a bare number is seconds. Raises ValueError."""
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
