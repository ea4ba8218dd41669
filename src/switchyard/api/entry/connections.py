"""Limits on a connection before there is a request: how long its header may be and may take.

uvicorn with httptools reads a header of any length, for as long as its sender likes, and goes on
reading a body whose request was answered already. Both belong to whoever can open a connection,
before any key is asked for; so they are bounded here, below the application.
"""

from __future__ import annotations

import re
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES = 32 * 1024
"""Of a request line with its headers, and of what stands between two parts of a chunked body."""
MAX_HEADERS = 100
HEADER_SECONDS = 10.0
"""From the first byte of a request, or from the connection, to the end of the header."""
LINGER_BYTES, LINGER_SECONDS = 1024 * 1024, 2.0
"""What is still read of a body whose request was answered: a client that is cut off while it
sends does not see the answer."""
HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")
"""What a `Host` header may say."""
UNREAD = "unread"
"""In the state of a request: asks whether some of its body has not come yet."""
MAX_CONNECTIONS = 2_000
"""Open at once in one process; a further one is closed unheard."""


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    _in_header = True
    """Whether the next byte belongs to a header, or comes before one."""
    _unparsed = 0
    """Bytes since the parser last brought something to an end: a header, or a part of a body."""
    _header_timer: TimerHandle | None = None
    _running: RequestResponseCycle | None = None
    """The request that is being answered, or was last."""
    _lingering: int | None = None
    """Bytes that are still read and thrown away; None while requests are read."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_has_come()
        super().connection_lost(exc)
        # uvicorn tells the request that came last, which waits behind the one that runs.
        self.pipeline.clear()
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._lingering is not None:
            self._lingering -= len(data)
            if self._lingering < 0:
                self.transport.close()
            return
        if self._in_header:
            self._await_header()
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEADER_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _await_header(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(
                HEADER_SECONDS, self._refuse, HTTPStatus.REQUEST_TIMEOUT
            )

    def _header_has_come(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer outside of the application, which has not been told of a request, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                % (status, status.phrase.encode())
            )
        self.transport.close()

    # --- what the parser finds ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_header = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._header_has_come()
        self._in_header = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        if not self._names_one_host():
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        self._unparsed = 0
        super().on_headers_complete()
        cycle = self.cycle
        cycle.transport = _Answered(self)
        self.scope["state"][UNREAD] = lambda: cycle.more_body

    def _names_one_host(self) -> bool:
        # RFC 9112, 3.2: what stands before this server may go by another one than the application.
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1:
            return not hosts and self.parser.get_http_version() == "1.0"
        return HOST.fullmatch(hosts[0]) is not None

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._in_header = True
        if not self.transport.is_closing():
            super().on_message_complete()

    @property
    def is_unread(self) -> bool:
        """Whether the body of the request that is being answered has not come whole."""
        # With others in the pipeline, what is being read belongs to the last of these.
        return not self._in_header and not self.pipeline

    def on_response_complete(self) -> None:
        unread = self.is_unread
        super().on_response_complete()
        if unread and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._lingering = LINGER_BYTES
            self.loop.call_later(LINGER_SECONDS, self.transport.close)


class _Answered(Transport):
    """A connection, for whoever answers a request. It is not closed at once behind an answer whose
    request still comes in, which would reset it before the answer is read: `BoundedHttp` lingers,
    and closes it."""

    def __init__(self, protocol: BoundedHttp) -> None:
        super().__init__()
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        cycle = self._protocol.cycle
        if not (cycle.response_complete and self._protocol.is_unread):
            self._protocol.transport.close()
