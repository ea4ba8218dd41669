"""A small HTTP server that speaks the OpenAI API (chat completions, embeddings) and can misbehave.

It answers well unless it was told otherwise: `server.next(rate_limited(7), cut())` is what the
next two requests get. It counts and keeps every request, so that a test can say what was paid for.
Any process on this machine can use it.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.support.llm_batches import BatchDesk

ANSWER = "A summary that a model wrote."
DIMENSIONS = 8


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]


class Exchange(BaseHTTPRequestHandler):
    """One request and what is done about it; behaviours are functions of this."""

    protocol_version = "HTTP/1.1"
    server: _Http

    def do_GET(self) -> None:
        self.server.owner.batches.answer(self, b"")

    def do_DELETE(self) -> None:
        self.server.owner.batches.answer(self, b"")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        content = self.rfile.read(length)
        if "/files" in self.path or "/batches" in self.path:
            self.server.owner.batches.answer(self, content)
            return
        body = json.loads(content)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, body)
        self.server.owner.note(request)(self, request)

    def send(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        claimed_length: int | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(claimed_length or len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if claimed_length is not None:
            self.close_connection = True

    def send_json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), headers=headers)

    def reset(self) -> None:
        """Cut the connection so that the client sees a reset, not an orderly end."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RD)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Say nothing: tests read `requests`."""


Behaviour = Callable[[Exchange, Request], None]


def answers(text: str | None = ANSWER, *, finish_reason: str = "stop") -> Behaviour:
    """A proper chat completion."""

    def behave(exchange: Exchange, request: Request) -> None:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        exchange.send_json(200, _completion(request, [choice]))

    return behave


def embeds(
    dimensions: int = DIMENSIONS,
    *,
    backwards: bool = False,
    model: str | None = None,
    weights: str = "",
) -> Behaviour:
    """Proper embeddings: made of the text's hash. With a `model`, those of that one, whichever is
    asked for; with `weights`, others under the same name."""

    def behave(exchange: Exchange, request: Request) -> None:
        items = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _vector(weights + text, dimensions),
            }
            for index, text in enumerate(request.body["input"])
        ]
        data = items[::-1] if backwards else items
        said = model or request.body["model"]
        usage = {"prompt_tokens": 5 * len(data), "total_tokens": 5 * len(data)}
        body = {"object": "list", "data": data, "model": said, "usage": usage}
        exchange.send_json(200, body)

    return behave


def no_choices() -> Behaviour:
    """A completion that completes nothing."""
    return lambda exchange, request: exchange.send_json(200, _completion(request, []))


def fails(status: int, message: str = "it went wrong", **headers: str) -> Behaviour:
    """An error in the API's form."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange, _: exchange.send_json(status, {"error": {"message": message}}, named)


def rate_limited(seconds: int) -> Behaviour:
    """429 that asks for patience."""
    return fails(429, "slow down", Retry_After=str(seconds))


def says(body: bytes, content_type: str = "application/json") -> Behaviour:
    """200 with any body."""
    return lambda exchange, _: exchange.send(200, body, content_type=content_type)


def cut() -> Behaviour:
    """The connection is reset before a word is said."""
    return lambda exchange, _: exchange.reset()


def cut_in_the_middle() -> Behaviour:
    """The connection ends within the body."""
    return lambda exchange, _: exchange.send(200, b'{"id": "1', claimed_length=500)


def endless(status: int, kind: str = "application/json", part: bytes = b" " * 65536) -> Behaviour:
    """A body that does not end while somebody listens."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.send_response(status)
        exchange.send_header("Content-Type", kind)
        exchange.end_headers()
        exchange.close_connection = True
        try:
            while True:
                exchange.wfile.write(part)
        except OSError:
            return

    return behave


def slow(seconds: float) -> Behaviour:
    """The right answer, too late; ends early when the server stops."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.server.owner.stopped.wait(seconds)
        answers()(exchange, request)

    return behave


def held(until: threading.Event, then: Behaviour) -> Behaviour:
    """An answer that waits for a test."""

    def behave(exchange: Exchange, request: Request) -> None:
        until.wait()
        then(exchange, request)

    return behave


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    owner: LlmServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class LlmServer:
    """Use as a context manager; `url` is what JOBS_LLM_BASE_URL takes."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.batches = BatchDesk()
        """What its Batch API has, and how it misbehaves."""
        self.stopped = threading.Event()
        self._next: deque[Behaviour] = deque()
        self._always: Behaviour | None = None
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), Exchange)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def next(self, *behaviours: Behaviour) -> None:
        """What the next requests get, in order; those after them are answered well."""
        with self._lock:
            self._next.extend(behaviours)

    def always(self, behaviour: Behaviour | None) -> None:
        """What every request gets from now on; None for good answers again."""
        with self._lock:
            self._always = behaviour

    def note(self, request: Request) -> Behaviour:
        """Keep a request and choose what it gets."""
        with self._lock:
            self.requests.append(request)
            if self._next:
                return self._next.popleft()
            if self._always is not None:
                return self._always
        return embeds() if request.path.endswith("/embeddings") else answers()

    def __enter__(self) -> LlmServer:
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


def _completion(request: Request, choices: list[Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.body["model"],
        "choices": choices,
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def _vector(text: str, dimensions: int) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [digest[at % len(digest)] / 255 for at in range(dimensions)]
