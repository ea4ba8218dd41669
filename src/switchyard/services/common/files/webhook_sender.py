"""Sending to an address that a user has named, by the rules of `services.common.files.safe_http`:
to the open internet alone, and to where the name led when it was checked.

Of the answer, its status is all that is read: what else it says may be endless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpcore

from switchyard.services.common.durations import parse_retry_after
from switchyard.services.common.files.safe_http import (
    FetchFailed,
    FetchRefused,
    GuardedBackend,
    SsrfGuard,
    checked_url,
    header_of,
)

_TAKEN = range(200, 300)
_MOVED = range(300, 400)
_GONE = 410


async def post(
    url: str, body: bytes, *, headers: Mapping[str, str], timeout: float, guard: SsrfGuard
) -> int:
    """Post a body (http or https), and return the status, of 200 to 299, all within `timeout`
    seconds.

    Raises FetchRefused where another try is no use: the address is none of the open internet, leads
    elsewhere or is gone (410). Raises FetchFailed for every other answer, and for none.
    """
    target = checked_url(url)
    header_fields = [("Host", target.netloc.decode()), *headers.items()]
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout)
    limit = asyncio.timeout(timeout)
    try:
        async with (
            limit,
            httpcore.AsyncConnectionPool(network_backend=GuardedBackend(guard)) as pool,
            pool.stream(
                "POST",
                str(target),
                headers=header_fields,
                content=body,
                extensions={"timeout": timeouts},
            ) as response,
        ):
            return _check_status(response)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise FetchFailed(f"{target.host} has not answered within {timeout:g} s") from error
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise FetchFailed(f"{target.host}: {type(error).__name__}") from error


def _check_status(response: httpcore.Response) -> int:
    status = response.status
    if status in _TAKEN:
        return status
    reason = f"the server answers {status}"
    if status in _MOVED:
        raise FetchRefused(f"{reason}, and redirects are not followed: name the address itself")
    if status == _GONE:
        raise FetchRefused(reason, status=status)
    after = parse_retry_after(header_of(response, b"retry-after"))
    raise FetchFailed(reason, after=after, status=status)
