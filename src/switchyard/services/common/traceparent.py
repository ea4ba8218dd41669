"""Read the W3C `traceparent`, which names a trace. One from outside is only accepted in the form of
W3C Trace Context; any other counts as missing."""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def valid_traceparent(value: str | None) -> str | None:
    """Return the value if W3C Trace Context allows it; else None."""
    return value if value is not None and _TRACEPARENT.fullmatch(value) else None


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace id of a traceparent: 32 hexadecimal digits; None if it is invalid."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    return match[1] if match else None
