"""Read a server's rate limits from its answer. Pure, so that the rules are tested as a table.

It understands RFC 9110's `Retry-After`; the `x-ratelimit-…` headers of GitHub and of servers that
copied it; and the `RateLimit` header of the IETF's draft, as the Hugging Face hub sends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from switchyard.services.common.durations import parse_http_date, parse_retry_after
from switchyard.services.pipeline.sources.throttle import MAX_PAUSE

_MIN_EPOCH_SECONDS = 1_000_000_000
"""A reset above this is a time in seconds since the epoch, below it a number of seconds."""
_MARGIN = 1.0
"""Seconds that are added to a reset, as servers count whole seconds."""
_REMAINING = ("x-ratelimit-remaining", "x-rate-limit-remaining")
_RESET = ("x-ratelimit-reset", "x-rate-limit-reset")


def demanded_pause(
    status: int, headers: Mapping[str, str], body: bytes, *, otherwise: float, now: float
) -> float | None:
    """Return the seconds of the pause that a server demands; None where it has refused the request
    for another reason.

    `otherwise` is the pause if the server does not say how long; `now` is in seconds since the
    epoch.
    """
    retry_after = parse_retry_after(headers.get("retry-after", ""), date=headers.get("date", ""))
    pause = retry_after if retry_after is not None else pause_when_used_up(headers, now=now)
    if status == 429:
        return otherwise if pause is None else pause
    if status == 503:
        return retry_after
    if status == 403:  # GitHub's, for both of its limits
        if pause is None and b"rate limit" in body[:2000].lower():
            return otherwise
        return pause
    return None


def pause_when_used_up(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the seconds until the server's limit is reset if this request has used it up; None if
    requests are left, or the server does not say."""
    if any(headers.get(name, "").strip() == "0" for name in _REMAINING):
        reset_text = next((headers[name] for name in _RESET if name in headers), "").strip()
        if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", reset_text):
            reset = float(reset_text)
            seconds_left = (
                reset - _server_time(headers, now) if reset > _MIN_EPOCH_SECONDS else reset
            )
            return min(max(seconds_left, 0.0) + _MARGIN, MAX_PAUSE)
    draft_limit = re.search(r";\s*r=0\s*;\s*t=(\d{1,9})", headers.get("ratelimit", "")[:1000])
    return None if draft_limit is None else min(int(draft_limit[1]) + _MARGIN, MAX_PAUSE)


def _server_time(headers: Mapping[str, str], now: float) -> float:
    """Return the time of the server's clock, to which its resets refer; ours may differ."""
    date = parse_http_date(headers.get("date", ""))
    return now if date is None else date.timestamp()
