"""The limits that a server reports: the `x-ratelimit-…` headers."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_WAIT = 120.0
"""Seconds that a header is believed: limits are by the minute, and clocks differ."""

_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def quota_wait(headers: Mapping[str, str]) -> float:
    """Return the seconds until a server takes requests and tokens again, by the headers of its
    answer; 0 while it does, or where the headers make no sense."""
    waits = [
        _seconds(headers.get(f"x-ratelimit-reset-{what}", ""))
        for what in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{what}", "").strip() == "0"
    ]
    return min(max(waits, default=0.0), MAX_WAIT)


def _seconds(text: str) -> float:
    """Read a duration: `6m0.5s`, `20ms`, or a plain number of seconds."""
    text = text.strip()[:40]
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return float(text)
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return 0.0
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
