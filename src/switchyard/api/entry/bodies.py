"""Limits on what is sent to the service: how many bytes, and how slowly.

Counted as they come in, so that a body without a length is held to the same limit.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard.api.http.problems import Problem, render
from switchyard.services.settings import Settings

UPLOADS = frozenset(
    {
        "/documents",
        "/extract/text",
        "/extract/references",
        "/parse/references",
        "/process/references",
        "/backfills/inputs",
    }
)
"""Paths that take files, and read them piece by piece. What is sent anywhere else is read into
memory as a whole, before it is known who sends it."""
MULTIPART_OVERHEAD = 1024 * 1024
"""Bytes for the form around a file."""
SLOWEST_UPLOAD = 64 * 1024
"""Bytes a second: an upload gets the time that its limit takes at this speed."""
DRAIN_BYTES, DRAIN_SECONDS = 32 * 1024 * 1024, 3.0
"""What is read of a body that was refused already, at most."""


class BodyLimits:
    """Refuses bodies that are too large or come too slowly."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._max_body = settings.api_max_body
        self._max_upload = settings.max_document_bytes + MULTIPART_OVERHEAD
        self._body_timeout = settings.api_body_timeout
        self._idle_timeout = settings.api_idle_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = scope["path"] in UPLOADS
        most = self._max_upload if upload else self._max_body
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > most:
            if "expect" not in Headers(scope=scope):  # else it waits to be told
                await _drain(receive)
            refusal = render(_too_large(most), scope["state"]["request_id"])
            await refusal(scope, receive, send)
            return
        seconds = most / SLOWEST_UPLOAD if upload else self._body_timeout
        limited = _LimitedBody(receive, most, self._idle_timeout, time.monotonic() + seconds)
        await self._app(scope, limited, send)


class _LimitedBody:
    """`receive` of one request, until its body is complete."""

    def __init__(self, receive: Receive, most: int, idle: float, deadline: float) -> None:
        self._receive = receive
        self._most = most
        self._idle = idle
        self._deadline = deadline
        self._size = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        patience = min(self._idle, max(0.0, self._deadline - time.monotonic()))
        try:
            message = await asyncio.wait_for(self._receive(), patience)
        except TimeoutError as error:
            raise Problem(
                "request-timeout", "send faster", headers={"Connection": "close"}
            ) from error
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._size > self._most:
                await _drain(self._receive)
                raise _too_large(self._most)
        return message


async def _drain(receive: Receive) -> None:
    """Read on for a while: a client that is cut off while it sends does not see the answer."""
    size = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return  # long enough: it is cut off


def _too_large(most: int) -> Problem:
    return Problem(
        "too-large", f"at most {most:,} bytes are taken here", headers={"Connection": "close"}
    )
