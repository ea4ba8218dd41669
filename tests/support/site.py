"""A small real HTTP server that can misbehave, in place of the servers of sources.

`site.next(throttled(7), cut())` sets the answers to the next two requests; the others are answered
by a page in `pages` or a subclass's `answer`. It records every request with its time.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    """A recorded request."""

    path: str
    parameters: dict[str, str]
    at: float = field(compare=False)
    """Seconds, on the monotonic clock."""
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Names in lower case."""
    body: bytes = field(default=b"", compare=False)
    """The body of a POST."""

    @property
    def json(self) -> Any:
        """The decoded JSON of the body."""
        return json.loads(self.body)


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer; a Behaviour is a function of it."""

    protocol_version = "HTTP/1.1"
    server: _Http

    def do_GET(self) -> None:
        self._handle(b"")

    def do_DELETE(self) -> None:
        self._handle(b"")

    def do_POST(self) -> None:
        self._handle(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _handle(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        parameters = {name: values[0] for name, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(parts.path, parameters, time.monotonic(), headers, body)
        self.server.owner.handle(self, request)

    def send(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "text/plain",
        headers: Mapping[str, str] | None = None,
        claimed_length: int | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if status != 304:
            self.send_header("Content-Length", str(claimed_length or len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if claimed_length is not None:
            self.close_connection = True

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send(status, body, content_type="application/json", headers=headers)

    def reset(self) -> None:
        """Cut the connection so that the client sees a reset, not an orderly end."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RD)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Say nothing: tests read `requests`."""


Behaviour = Callable[[Exchange, Request], None]


def answer_well(exchange: Exchange, request: Request) -> None:
    """Answer as the server that it stands for would."""
    exchange.server.owner.answer(exchange, request)


def says(
    body: bytes | str | dict | list,
    content_type: str | None = None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Behaviour:
    """Answer with any body; what is neither bytes nor text, as JSON."""
    kind = content_type or ("text/plain" if isinstance(body, bytes | str) else "application/json")
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    content = body
    return lambda exchange, _: exchange.send(status, content, content_type=kind, headers=headers)


def with_etag(body: bytes | str | dict | list, etag: str, **answer_options: Any) -> Behaviour:
    """Answer with a body and an ETag, or with 304 if the client has that ETag."""
    answer_options["headers"] = {"ETag": etag, **answer_options.get("headers", {})}

    def behave(exchange: Exchange, request: Request) -> None:
        if request.headers.get("if-none-match") == etag:
            exchange.send(304, b"", headers=answer_options["headers"])
        else:
            says(body, **answer_options)(exchange, request)

    return behave


def throttled(seconds: int | None, status: int = 429) -> Behaviour:
    """Answer 429, too many requests; with Retry-After, unless None."""
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    return says(b"Rate exceeded.", status=status, headers=headers)


def fails(status: int) -> Behaviour:
    """Answer with an error of the server itself."""
    return says(b"<h1>Oops</h1>", "text/html", status=status)


def moved(to: str, status: int = 301) -> Behaviour:
    """Answer with a redirect."""
    return says(b"", status=status, headers={"Location": to})


def cut() -> Behaviour:
    """Reset the connection before any answer."""
    return lambda exchange, _: exchange.reset()


def cut_in_the_middle() -> Behaviour:
    """End the connection within the body."""
    return lambda exchange, _: exchange.send(
        200, b"<?xml version='1.0'?><feed", content_type="application/xml", claimed_length=999
    )


def endless(
    status: int = 200, kind: str = "text/html", part: bytes = b"<p>and so on</p>" * 4096
) -> Behaviour:
    """Send a body that does not end while the client reads."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.send_response(status)
        exchange.send_header("Content-Type", kind)
        exchange.end_headers()
        exchange.close_connection = True
        try:
            while not exchange.server.owner.stopped.is_set():
                exchange.wfile.write(part)
        except OSError:
            return

    return behave


def packed(layers: int = 3) -> Behaviour:
    """Send a JSON text of 64 MB, compressed `layers` times to a few hundred bytes."""

    def behave(exchange: Exchange, request: Request) -> None:
        body = b'"' + b"x" * (64 * 1024 * 1024) + b'"'
        for _ in range(layers):
            body = gzip.compress(body, 9)
        headers = {"Content-Encoding": ", ".join(["gzip"] * layers)}
        says(body, headers=headers)(exchange, request)

    return behave


def slow(seconds: float) -> Behaviour:
    """Give the right answer after a delay, which ends early when the server stops."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.server.owner.stopped.wait(seconds)
        answer_well(exchange, request)

    return behave


def held(until: threading.Event, then: Behaviour) -> Behaviour:
    """Answer with `then` once the test has set `until`."""

    def behave(exchange: Exchange, request: Request) -> None:
        until.wait()
        then(exchange, request)

    return behave


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    owner: Site

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away: some tests are about them."""


class Site:
    """Use as a context manager; `origin` is its address."""

    def __init__(self, port: int = 0) -> None:
        """Listen on `port`; 0: any free one."""
        self.pages: dict[str, Behaviour] = {}
        """Answers by path."""
        self.requests: list[Request] = []
        self.most_at_once = 0
        """Requests that were under way at the same time."""
        self.stopped = threading.Event()
        self._under_way = 0
        self._next: deque[Behaviour] = deque()
        self._always: Behaviour | None = None
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", port), Exchange)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def paths(self) -> list[str]:
        """The paths of all requests, in order."""
        return [request.path for request in self.requests]

    def next(self, *behaviours: Behaviour) -> None:
        """Set the answers to the next requests, in order; later ones are answered well."""
        with self._lock:
            self._next.extend(behaviours)

    def always(self, behaviour: Behaviour | None) -> None:
        """Set the answer to every request from now on; None for good answers again."""
        with self._lock:
            self._always = behaviour

    def handle(self, exchange: Exchange, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            behave = self._next.popleft() if self._next else self._always or self.answer
        try:
            behave(exchange, request)
        finally:
            with self._lock:
                self._under_way -= 1

    def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer as the server that it stands for would."""
        missing = says({"message": "Not Found"}, status=404)
        self.pages.get(request.path, missing)(exchange, request)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
