"""Limits on a connection, below the application: how long a header may be and may take, how many
requests may wait in it, and how long its client may take to read an answer.

uvicorn with httptools reads a header of any length, for as long as its sender likes, goes on
reading a body whose request was answered already, and waits for ever for a client that does not
read. Everyone who can open a connection could use that, before any key is checked.
"""

from __future__ import annotations

import re
import socket
from asyncio import TimerHandle, Transport
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import structlog
from uvicorn.middleware.proxy_headers import _TrustedHosts
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from switchyard.api.addresses import client_at

MAX_HEADER_BYTES = 32 * 1024
"""Bytes of a request line with its headers, and of the text between two parts of a chunked body."""
MAX_HEADERS = 100
HEADER_SECONDS = 10.0
"""Seconds from the first byte of a request, or from the connection, to the end of the header."""
LINGER_BYTES, LINGER_SECONDS = 4 * 1024 * 1024, 2.0
"""How much of a body is still read, and for how long, after its request was answered: a client that
is cut off while it sends does not see the answer."""
SINGLE_HEADERS = frozenset({b"content-type", b"idempotency-key"})
"""Headers that a request must not have twice: nothing says which of them would count."""
HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")
"""The values that a `Host` header may have."""
BODY_PENDING = "body_pending"
"""Key in the state of a request: a function that returns whether some of its body has not come."""
MAX_CONNECTIONS, MAX_CONNECTIONS_PER_CLIENT = 2_000, 1_000
"""Connections that are open at once in one process, and those of one address (of IPv6: one /64); a
further one is closed without an answer. Only the first limit holds for trusted proxies, which speak
for many clients."""
MAX_PIPELINED = 16
"""Requests that may wait in a connection behind the current one. A hundred kilobytes hold thousands
of requests, each of which takes a hundred times its size in memory."""
WRITE_BUFFER_BYTES = 64 * 1024
"""Bytes of an answer that wait in this process; as many may wait in the kernel. More are made when
the client has read."""
WRITE_TIMEOUT = 20.0
"""Seconds in which a client must read some of the bytes that wait for it."""
MIN_READ_RATE = 1024
"""Bytes per second that a client must read over WRITE_TIMEOUT, if so many wait for it."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. `bounded_http` makes the class of a server, which counts its connections."""

    max_connections: int | None = None
    """None stands for MAX_CONNECTIONS."""
    proxies = _TrustedHosts([])
    from_client: Counter[str]
    """Connections from each client's address."""
    _in_header = True
    """Whether the next byte belongs to a header, or comes before one."""
    _unparsed = 0
    """Bytes since the parser last completed a header or a part of a body."""
    _header_timer: TimerHandle | None = None
    _running: RequestResponseCycle | None = None
    """The request that is being answered, or was answered last."""
    _lingering: int | None = None
    """Bytes that are still read and discarded; None while requests are read."""

    _written_bytes = 0
    """Bytes of answers that were written to the transport."""
    _write_timer: TimerHandle | None = None
    _client = ""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client is not None else ""
        self._client = "" if host in self.proxies else client_at(host)
        if self._client:
            self.from_client[self._client] += 1
        max_connections = MAX_CONNECTIONS if self.max_connections is None else self.max_connections
        if (
            len(self.connections) > max_connections
            or self.from_client[self._client] > MAX_CONNECTIONS_PER_CLIENT
        ):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _limit_unsent_bytes(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        if self._client:
            self.from_client[self._client] -= 1
            if not self.from_client[self._client]:
                del self.from_client[self._client]
        super().connection_lost(exc)
        # uvicorn only tells the last request, which waits behind the one that runs.
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
            self._start_header_timer()
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEADER_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a part of an answer, which its client must read in time."""
        self.transport.write(data)
        self._written_bytes += len(data)
        if self._write_timer is None and self.transport.get_write_buffer_size():
            self._start_write_timer()

    def _start_write_timer(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        must_be_read = (
            self._written_bytes - waiting + min(waiting, int(WRITE_TIMEOUT * MIN_READ_RATE))
        )
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self._check_reading, must_be_read)

    def _check_reading(self, must_be_read: int) -> None:
        """Cut the connection where the client has read fewer bytes, of all that were written, than
        it had to by now."""
        self._write_timer = None
        waiting = self.transport.get_write_buffer_size()
        if self._written_bytes - waiting < must_be_read:
            structlog.get_logger("api").info("client too slow", client=self._client, unread=waiting)
            self.transport.abort()
        elif waiting:
            self._start_write_timer()

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(
                HEADER_SECONDS, self._refuse, HTTPStatus.REQUEST_TIMEOUT
            )

    def _stop_header_timer(self) -> None:
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
        self._stop_header_timer()
        self._in_header = False
        if self.transport.is_closing():
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS)
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        if not self._names_one_host() or self._repeats_a_header():
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        self._unparsed = 0
        super().on_headers_complete()
        cycle = self.cycle
        cycle.transport = _AnswerTransport(self)
        self.scope["state"][BODY_PENDING] = lambda: cycle.more_body

    def _names_one_host(self) -> bool:
        # RFC 9112, 3.2: of two Host headers, a proxy in front may use one, the application another.
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1:
            return not hosts and self.parser.get_http_version() == "1.0"
        return HOST.fullmatch(hosts[0]) is not None

    def _repeats_a_header(self) -> bool:
        names = [name for name, _ in self.headers if name in SINGLE_HEADERS]
        return len(names) > len(set(names))

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
    def is_body_pending(self) -> bool:
        """Whether a part of the body of the current request has not come yet."""
        # With others in the pipeline, the bytes that come belong to the last of them.
        return not self._in_header and not self.pipeline

    def on_response_complete(self) -> None:
        pending = self.is_body_pending
        if self._running is not None:
            self._running.body = bytearray()  # drop the part that came and was not read
        super().on_response_complete()
        if pending and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._lingering = LINGER_BYTES
            self.loop.call_later(LINGER_SECONDS, self.transport.close)


class _AnswerTransport(Transport):
    """The transport for the answer to a request. Closing it while the request still comes in would
    reset the connection before the answer is read, so `BoundedHttp` lingers, and closes it."""

    def __init__(self, protocol: BoundedHttp) -> None:
        super().__init__()
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._protocol.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        cycle = self._protocol.cycle
        if not (cycle.response_complete and self._protocol.is_body_pending):
            self._protocol.transport.close()


def bounded_http(
    *, max_connections: int | None = None, proxies: Iterable[str] = ()
) -> type[BoundedHttp]:
    """Make the protocol of one server, for `max_connections` connections at once."""

    class Connection(BoundedHttp):
        """A connection of this server."""

    Connection.max_connections = max_connections
    Connection.from_client = Counter()
    Connection.proxies = _TrustedHosts(list(proxies))
    return Connection


def _limit_unsent_bytes(transport: Transport) -> None:
    """Let the kernel buffer no more of an answer than can be sent soon: otherwise it would accept
    megabytes for a client that does not read, which would look like progress."""
    client_socket = transport.get_extra_info("socket")
    if client_socket is None or client_socket.family not in (socket.AF_INET, socket.AF_INET6):
        return
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # not on every system
    if option is not None:
        client_socket.setsockopt(socket.IPPROTO_TCP, option, WRITE_BUFFER_BYTES)
