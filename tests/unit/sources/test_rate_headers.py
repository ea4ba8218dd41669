"""Rate limits are read from a server's answer."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from switchyard.services.pipeline.sources.rate_headers import demanded_pause, pause_when_used_up

NOW = 1_767_600_000.0
DATE_AHEAD = formatdate(NOW + 500, usegmt=True)
"""The Date header of a server whose clock is 500 seconds ahead of ours."""


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"x-ratelimit-remaining": "1", "x-ratelimit-reset": str(NOW + 9)}, None),
        ({"x-ratelimit-remaining": "0"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 9:.0f}"}, 10),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, 10),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"}, 2),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW - 9:.0f}"}, 1),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 10**6:.0f}"}, 3600),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9" * 400}, None),
        (
            {
                "x-ratelimit-remaining": "0",
                "x-ratelimit-reset": f"{NOW + 509:.0f}",
                "date": DATE_AHEAD,
            },
            10,
        ),
        (
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 9:.0f}", "date": "?"},
            10,
        ),
        ({"ratelimit": '"api";r=0;t=57'}, 58),
        ({"ratelimit": '"api";r=3;t=57'}, None),
        ({"ratelimit": "x" * 10_000}, None),
    ],
)
def test_the_remaining_requests_are_read_from_the_headers(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert pause_when_used_up(headers, now=NOW) == seconds


@pytest.mark.parametrize(
    ("status", "headers", "body", "seconds"),
    [
        (200, {"retry-after": "5"}, b"", None),
        (404, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, b"", None),
        (429, {}, b"", 60),
        (429, {"retry-after": "5"}, b"", 5),
        (429, {"retry-after": "soon"}, b"", 60),
        (429, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, b"", 10),
        (429, {"retry-after": "5", "ratelimit": "r=0;t=9"}, b"", 5),
        (503, {}, b"", None),
        (503, {"retry-after": "5"}, b"", 5),
        (403, {}, b"no right to it", None),
        (403, {"retry-after": "5"}, b"", 5),
        (403, {}, b'{"message": "You have exceeded a secondary rate limit."}', 60),
        (500, {"retry-after": "5"}, b"", None),
    ],
)
def test_a_temporary_refusal_is_distinguished_from_all_others(
    status: int, headers: dict[str, str], body: bytes, seconds: float | None
) -> None:
    assert demanded_pause(status, headers, body, otherwise=60, now=NOW) == seconds
