"""Send server-sent events until the client goes away, or its key is revoked.

Starlette notices only at the next write that a client has gone; here both are watched at once. A
client that does not read is cut off by its connection (middleware/connections.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import SwitchyardError

MEDIA_TYPE = "text/event-stream"
ADMISSION_INTERVAL = 0.75
"""Seconds between checks whether the key still lets the client in. As keys are cached, a revoked
one is noticed within two seconds."""
HEARTBEAT = b": still here\n\n"


class StreamAdmission(Protocol):
    """Checks whether a request that was let in would be let in again."""

    @property
    def identity(self) -> Hashable:
        """What let the request in, such as the hash of its key. Of requests with the same identity,
        all are let in or none."""

    async def check(self) -> None:
        """Raise Problem if the request would not be let in, SwitchyardError if that can't be
        checked."""


def admission_of(scope: Scope) -> StreamAdmission | None:
    """Return the check that let this request in; None where nothing was checked."""
    admission: StreamAdmission | None = scope.get("state", {}).get("admission")
    return admission


@dataclass(slots=True)
class _WatchedIdentity:
    """Checks that all streams with one identity share."""

    checking: asyncio.Task[None]
    streams: int = 0


class AdmissionWatch:
    """Checks again and again what has let in the streams of a process: once for all streams with
    the same identity, as a browser with fifty pages has fifty of them."""

    def __init__(self) -> None:
        self._watched: dict[Hashable, _WatchedIdentity] = {}

    async def wait_for_refusal(self, admission: StreamAdmission) -> None:
        """Return when the client of a stream would no longer be let in."""
        identity = admission.identity
        watched = self._watched.get(identity)
        if watched is None:
            watched = _WatchedIdentity(asyncio.create_task(_check(admission)))
            self._watched[identity] = watched
        watched.streams += 1
        try:
            await asyncio.shield(watched.checking)
        finally:
            watched.streams -= 1
            # A stream that begins after a refusal, such as with a new key, is checked again.
            is_over = watched.checking.done() or not watched.streams
            if is_over and self._watched.get(identity) is watched:
                del self._watched[identity]
            if not watched.streams:
                await end_tasks(watched.checking)


async def _check(admission: StreamAdmission) -> None:
    """Return when the client would no longer be let in."""
    while True:
        await asyncio.sleep(ADMISSION_INTERVAL)
        try:
            await admission.check()
        except (HTTPException, SwitchyardError) as error:
            log = structlog.get_logger("api")
            log.info("streams ended: their key lets nobody in", why=str(error))
            return


def frame(event: str, data: Any, *, event_id: str | None = None) -> bytes:
    """Encode one event. Its data is JSON in one line."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {event}\ndata: {json.dumps(data, default=str)}\n\n".encode()


class EventStream(Response):
    """Sends the frames of a generator until it ends, its client goes away, or the key is no longer
    valid."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        closing: Callable[[], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`closing` is called at the end, also where the client has gone before the beginning;
        `headers` are sent besides the usual ones."""
        self._closing = closing
        self._has_begun = False
        super().__init__(headers={"X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        refusal = asyncio.create_task(_wait_for_refusal(scope))
        tasks = (sending, disconnect, refusal)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._closing is not None:
                self._closing()
            await end_tasks(*tasks)
        for each in tasks:
            error = None if each.cancelled() else each.exception()
            if error is not None and not isinstance(error, OSError):
                raise error
        if sending.cancelled() and self._has_begun:
            # Ended in order, as a client that is cut off would reconnect at once.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            self._has_begun = True
            async for each in frames:
                await send({"type": "http.response.body", "body": each, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone; its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def _wait_for_refusal(scope: Scope) -> None:
    """Return when the client would no longer be let in; never where nothing was checked."""
    admission = admission_of(scope)
    if admission is None:
        await asyncio.Event().wait()
        return
    watch: AdmissionWatch = scope["state"]["admission_watch"]
    await watch.wait_for_refusal(admission)
