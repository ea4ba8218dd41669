"""Post to an address that a user has named, by the rules of `services.common.files.safe_http`: only
to public addresses, and only to those that were checked.

Only the status of the answer is read: its body may be endless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpcore

from switchyard.services.common.files.safe_http import (
    FetchFailed,
    FetchRefused,
    SsrfGuard,
    guarded_pool,
    parse_url,
    requested_delay,
)

_ACCEPTED = range(200, 300)
_REDIRECT = range(300, 400)
_GONE = 410


async def post(
    url: str, body: bytes, *, headers: Mapping[str, str], timeout: float, guard: SsrfGuard
) -> int:
    """Post a body (http or https), and return the status, 200 to 299, all within `timeout`
    seconds.

    Raises FetchRefused where another try is no use: the address is not public, redirects, or is
    gone (410). Raises FetchFailed for every other status, and for no answer.
    """
    target = parse_url(url)
    header_fields = [("Host", target.netloc.decode()), *headers.items()]
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout)
    limit = asyncio.timeout(timeout)
    try:
        async with (
            limit,
            await guarded_pool(guard) as pool,
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
    if status in _ACCEPTED:
        return status
    reason = f"the server answers {status}"
    if status in _REDIRECT:
        raise FetchRefused(f"{reason}, and redirects are not followed: name the address itself")
    if status == _GONE:
        raise FetchRefused(reason, status=status)
    raise FetchFailed(reason, after=requested_delay(response), status=status)
