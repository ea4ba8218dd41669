"""Server-sent events as an answer that ends with its client.

Starlette notices only at the next write that a client has gone; here both are watched at once,
and a client that does not read is given up after a while.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE = "text/event-stream"
STUCK_AFTER = 20.0
"""Seconds that one write may wait for a client that does not read."""
HEARTBEAT = b": still here\n\n"


def frame(event: str, data: Any, *, event_id: str | None = None) -> bytes:
    """One event. Data is JSON in one line."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {event}\ndata: {json.dumps(data, default=str)}\n\n".encode()


class EventStream(Response):
    """Sends what a generator yields, until it ends or the client goes away."""

    media_type = MEDIA_TYPE

    def __init__(
        self, frames: AsyncGenerator[bytes, None], *, closing: Callable[[], None] | None = None
    ) -> None:
        """`closing` is called at the end, also where the client has gone before the beginning."""
        self._closing = closing
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._closing is not None:
                self._closing()
            leaving.cancel()
            sending.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            ended = await asyncio.gather(sending, return_exceptions=True)
        error = ended[0]
        if isinstance(error, Exception) and not isinstance(error, OSError | TimeoutError):
            raise error

    async def _send(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            async for each in frames:
                async with asyncio.timeout(STUCK_AFTER):
                    await send({"type": "http.response.body", "body": each, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
