"""Limits for bodies of requests and answers: how many bytes, how slowly, and how much memory all of
them take at once.

Bytes are counted as they come in, so that a body without a length has the same limit. A body is
only read for a request that was let in: `http.routing` checks the key before.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard.api.addresses import client_at
from switchyard.api.http.problems import Problem, render, try_later
from switchyard.api.http.routing import CHECK_LENGTH, GuardedRoute
from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.shares import Shares

STREAMED_TYPES = frozenset({"multipart/form-data", "text/plain"})
"""Bodies that routes for files read piece by piece. Others are read into memory as a whole."""
MULTIPART_OVERHEAD = 1024 * 1024
"""Bytes for the form around a file."""
MIN_UPLOAD_RATE = 64 * 1024
"""Bytes per second: an upload gets the time that a body as large as its limit takes at this
speed."""
DRAIN_BYTES, DRAIN_SECONDS = 32 * 1024 * 1024, 3.0
"""Most bytes of a refused body that are still read, and most seconds for which it is read."""
PIECE_BYTES = 32 * 1024
"""Size of the pieces in which answers are given to the connection, each when the piece before was
sent. Answers of one piece are not counted."""
JSON_MARKS = (b",", b"[", b"{", b":")
BYTES_PER_BYTE, BYTES_PER_MARK = 2, 64
"""Bytes of memory that JSON takes while it is processed: for each byte of its text, and for each
mark, as every value is an object with a place in a list or dict. `[[],[],…` takes the most: 64
bytes for 3 bytes of text, which are counted as 134."""


class BodyMemory:
    """The memory of a process for bodies and answers in flight, shared between clients."""

    def __init__(self, max_bytes: int) -> None:
        self.all = Shares(max_bytes)
        self.without_key = Shares(max(1, max_bytes // 2), parent=self.all, name="without a key")
        """A part of `all` for all requests without a key, such as those of webhooks, whose sender
        only the body names. In `all` they count as one client; among themselves, they count by
        address."""

    def count_for(self, scope: Scope) -> HeldMemory:
        """Begin to count memory for the client that makes this request."""
        principal_id = scope["state"].get("principal_id")
        if principal_id is not None:
            return HeldMemory(self.all, f"key {principal_id}")
        client = scope.get("client")
        return HeldMemory(self.without_key, client_at(client[0]) if client else "")


class HeldMemory:
    """The memory that one request has taken."""

    def __init__(self, shares: Shares, client: str) -> None:
        self._shares = shares
        self._client = client
        self._bytes = 0

    def take(self, size: int) -> None:
        """Take memory for `size` bytes. Raises Problem (503)."""
        if size and not self._shares.take(self._client, size):
            raise try_later("overloaded", "too many and too large requests at once: send fewer")
        self._bytes += size

    def release(self) -> None:
        if self._bytes:
            self._shares.give_back(self._client, self._bytes)
            self._bytes = 0


class BodyLimits:
    """Refuses bodies that are too large or too slow, and bodies and answers that take too much
    memory together."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self.memory = BodyMemory(settings.api_max_in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _LimitedBody(scope, receive, self._settings, self.memory)
        scope["state"][CHECK_LENGTH] = body.check_length
        answer = _LimitedAnswer(scope, receive, send, self.memory)
        try:
            await self._app(scope, body, answer)
        finally:
            body.release()
            answer.release()


class _LimitedBody:
    """`receive` of one request, until its body is complete."""

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, memory: BodyMemory
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._settings = settings
        self._memory = memory
        self._held: HeldMemory | None = None
        self._size = 0
        self._is_complete = False

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()
        held = self._set_limits()
        if self._is_streamed:
            held.release()  # the part before was processed
        timeout = min(self._settings.api_idle_timeout, self._deadline - time.monotonic())
        try:
            async with asyncio.timeout(max(0.0, timeout)):
                message = await self._receive()
        except TimeoutError as error:
            raise Problem(
                "request-timeout", "send faster", headers={"Connection": "close"}
            ) from error
        if message["type"] == "http.request":
            part = message.get("body", b"")
            self._size += len(part)
            self._is_complete = not message.get("more_body", False)
            if self._size > self._max_bytes:
                await _drain(self._receive)
                raise _too_large(self._max_bytes)
            held.take(len(part) if self._is_streamed else _size_in_memory(part))
        return message

    async def check_length(self) -> None:
        """Raise Problem (413) if the header says that the body is too long."""
        self._set_limits()
        headers = Headers(scope=self._scope)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            if "expect" not in headers:  # else it has not sent the body yet
                await _drain(self._receive)
            raise _too_large(self._max_bytes)

    def _set_limits(self) -> HeldMemory:
        """Set this body's limits, and begin to count it: its route and its client are known now."""
        if self._held is not None:
            return self._held
        headers = Headers(scope=self._scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        route = self._scope.get("route")
        guarded_route = route if isinstance(route, GuardedRoute) else None
        takes_files = guarded_route is not None and guarded_route.takes_files
        self._is_streamed = takes_files and kind in STREAMED_TYPES
        self._max_bytes, seconds = self._settings.api_max_body, self._settings.api_body_timeout
        if self._is_streamed:
            self._max_bytes = self._settings.max_document_bytes + MULTIPART_OVERHEAD
            seconds = self._max_bytes / MIN_UPLOAD_RATE
        if guarded_route is not None and guarded_route.max_body is not None:
            self._max_bytes = min(self._max_bytes, guarded_route.max_body)
        self._deadline = time.monotonic() + seconds
        self._held = self._memory.count_for(self._scope)
        return self._held

    def release(self) -> None:
        if self._held is not None:
            self._held.release()


class _LimitedAnswer:
    """`send` of one request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, memory: BodyMemory) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._memory = memory
        self._held: HeldMemory | None = None
        self._head: Message | None = None
        """The head, which is sent with the first part of the body: until then, another answer is
        possible."""
        self._is_refused = False

    async def __call__(self, message: Message) -> None:
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            self._head = message
            return
        body = message.get("body", b"")
        if self._head is not None:
            if len(body) > PIECE_BYTES:
                self._held = self._memory.count_for(self._scope)
                try:
                    self._held.take(len(body))
                except Problem as problem:
                    self._is_refused = True
                    refusal = render(problem, self._scope["state"]["request_id"])
                    await refusal(self._scope, self._receive, self._send)
                    return
            head, self._head = self._head, None
            await self._send(head)
        if len(body) <= PIECE_BYTES:
            await self._send(message)
            return
        left = memoryview(body)
        while len(left) > PIECE_BYTES:
            await self._send({**message, "body": left[:PIECE_BYTES], "more_body": True})
            left = left[PIECE_BYTES:]
        await self._send({**message, "body": left})

    def release(self) -> None:
        if self._held is not None:
            self._held.release()


def _size_in_memory(part: bytes) -> int:
    marks = sum(part.count(mark) for mark in JSON_MARKS)
    return BYTES_PER_BYTE * len(part) + BYTES_PER_MARK * marks


async def _drain(receive: Receive) -> None:
    """Read the body for a while, as a client that is cut off while it sends does not see the
    answer."""
    size = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return  # after that, the client is cut off


def _too_large(max_bytes: int) -> Problem:
    return Problem(
        "too-large", f"at most {max_bytes:,} bytes are taken here", headers={"Connection": "close"}
    )
