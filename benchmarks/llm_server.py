"""An OpenAI-compatible server that behaves like one with continuous batching. It has no model.

python -m benchmarks.llm_server --port 9000 --scale 10

Requests that run share the machine: with few of them each token takes one step, beyond the `knee`
all get slower, and what comes beyond `at_once` waits in the server's own queue. When that is full,
the answer is 503. It can limit requests a minute (429 with `x-ratelimit-*`), give up on what waited
too long (504), cut streams, grow slow, and go away. It counts all that it did: `GET /stats`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import uvicorn

from benchmarks.llm_batch import Batch, Full, Machine

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

MAX_BODY = 4 * 1024 * 1024
CHUNKS = 8
"""Parts in which a streamed answer is sent, at most."""
MAX_WAIT = 60.0
"""Seconds that the server's thread gets to begin and to end, on a machine however busy."""
PROMPT_SHARE = 100
"""Tokens of a prompt that take as long as one of an answer."""


@dataclass
class Counts:
    """What happened since the start."""

    answered: int = 0
    refused: int = 0
    limited: int = 0
    given_up: int = 0
    """504: waited too long in its queue."""
    abandoned: int = 0
    """The client went away before its answer was whole."""
    cut: int = 0
    most: int = 0
    """The most requests that were here at once, waiting ones included."""
    by_question: Counter[str] = field(default_factory=Counter)
    """How often each question was run."""


class App:
    """The HTTP side, as an ASGI application."""

    def __init__(
        self, machine: Machine | None = None, *, seed: int = 1, holds: bool = False
    ) -> None:
        """One that `holds` answers nothing before `let_go`: requests gather."""
        self.machine = machine or Machine()
        self._let_go: Future[None] | None = Future() if holds else None
        self.counts = Counts()
        self._batch: Batch | None = None
        self._here: set[object] = set()
        self._running: list[_Answer] = []
        self._began = time.monotonic()
        self._dice = random.Random(seed)
        self._recent: deque[float] = deque()

    @property
    def batch(self) -> Batch:
        if self._batch is None:
            self._batch = Batch(self.machine, asyncio.get_running_loop().time)
            self._began = time.monotonic()
        return self._batch

    def let_go(self) -> None:
        """Answer what is here and what comes; from any thread."""
        if self._let_go is not None:
            self._let_go.set_result(None)

    def stats(self) -> dict[str, Any]:
        """What it did; `use` is the part of its power that was in use since the start."""
        batch = self.batch
        batch.count_up()
        elapsed = (time.monotonic() - self._began) * self.machine.scale
        return vars(self.counts) | {
            "here": len(self._here),
            "running": batch.running,
            "waiting": batch.waiting,
            "seconds": elapsed,
            "use": batch.busy / elapsed if elapsed else 0.0,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "GET", "/stats":
                await _json(send, 200, self.stats())
            case "GET", "/v1/models":
                await _json(send, 200, {"object": "list", "data": []})
            case "POST", "/slow":
                self.batch.slow_down(float(json.loads(await _body(receive))["times"]))
                await _json(send, 200, {})
            case "POST", "/v1/chat/completions":
                await self._complete(json.loads(await _body(receive)), receive, send)
            case _:
                await _error(send, 404, "there is no such address")

    async def _complete(self, asked: dict[str, Any], receive: Receive, send: Send) -> None:
        request = object()
        self._here.add(request)
        self.counts.most = max(self.counts.most, len(self._here))

        async def tell(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._here.discard(request)  # who has the end may ask again before this goes on
            await send(message)

        answering = asyncio.create_task(self._answer(asked, tell))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.counts.abandoned += 1
                answering.cancel()
            await asyncio.gather(answering, return_exceptions=answering.cancelling() > 0)
        finally:
            leaving.cancel()
            self._here.discard(request)

    async def _answer(self, asked: dict[str, Any], send: Send) -> None:
        if self._let_go is not None:
            await asyncio.shield(asyncio.wrap_future(self._let_go))  # others wait for it, too
        headers = self._count_request()
        if headers is None:
            self.counts.limited += 1
            wait = max(1, round((60 / self.machine.scale) - (time.monotonic() - self._recent[0])))
            spent = {"x-ratelimit-remaining-requests": "0", "retry-after": str(wait)}
            await _error(send, 429, "too many requests in this minute", spent)
            return
        try:
            await self.batch.enter()
        except Full:
            self.counts.refused += 1
            await _error(send, 503, "full", {"retry-after": str(self.machine.retry_after)})
            return
        except TimeoutError:
            self.counts.given_up += 1
            await _error(send, 504, "it waited too long")
            return
        try:
            await self._run(asked, send, headers)
        finally:
            self.batch.leave()

    async def _run(self, asked: dict[str, Any], send: Send, headers: dict[str, str]) -> None:
        question = json.dumps([asked.get("model"), asked.get("messages")], sort_keys=True)
        self.counts.by_question[question] += 1
        prompt, tokens = len(question) // 4, self._length(question, asked)
        cut_at = self._dice.random() * tokens if self._dice.random() < self.machine.cut else None
        answer = _Answer(asked, send, headers, prompt, tokens)
        self._running.append(answer)
        try:
            await self._write(answer, tokens, prompt, cut_at)
        finally:
            self._running.remove(answer)

    async def _write(self, answer: _Answer, tokens: int, prompt: int, cut_at: float | None) -> None:
        bears = self.machine.bears
        if bears is not None and len(self._running) > bears:
            self._running[-1 - bears].is_interrupted = True
        await self.batch.make(1 + prompt / PROMPT_SHARE)
        made, part = 1, max(1, tokens // CHUNKS)
        await answer.token(made)
        while made < tokens:
            step = min(part, tokens - made)
            await self.batch.make(step)
            made += step
            if answer.is_interrupted or (cut_at is not None and made >= cut_at):
                self.counts.cut += 1
                await answer.cut(marked=self.machine.marks_cuts)
                return
            await answer.token(made)
        await answer.end()
        self.counts.answered += 1

    def _length(self, question: str, asked: dict[str, Any]) -> int:
        """Tokens of the answer: the same question has the same."""
        typical = random.Random(question).lognormvariate(-0.125, 0.5) * self.machine.tokens
        return max(1, min(int(typical), int(asked.get("max_tokens") or 1_000_000)))

    def _count_request(self) -> dict[str, str] | None:
        """Headers that say what is left of this minute; None when nothing is."""
        limit = self.machine.per_minute
        if limit is None:
            return {}
        now, minute = time.monotonic(), 60 / self.machine.scale
        while self._recent and self._recent[0] <= now - minute:
            self._recent.popleft()
        if len(self._recent) >= limit:
            return None
        self._recent.append(now)
        return {
            "x-ratelimit-limit-requests": str(limit),
            "x-ratelimit-remaining-requests": str(limit - len(self._recent)),
            "x-ratelimit-reset-requests": f"{minute - (now - self._recent[0]):.3f}s",
        }


@dataclass
class _Answer:
    """One answer on its way, whole or as a stream."""

    asked: dict[str, Any]
    send: Send
    headers: dict[str, str]
    prompt: int
    tokens: int
    begun: bool = False
    told: int = 0
    is_interrupted: bool = False
    """Another request has taken its place."""

    @property
    def streams(self) -> bool:
        return bool(self.asked.get("stream"))

    async def token(self, made: int) -> None:
        """So many tokens are there."""
        if not self.streams:
            return
        text = " ".join(f"word{at}" for at in range(self.told, made)) + " "
        self.told = made
        await self._event(self._chunk({"content": text}, None))

    async def end(self) -> None:
        usage = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt + self.tokens,
        }
        if not self.streams:
            text = " ".join(f"word{at}" for at in range(self.tokens))
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = self._envelope("chat.completion", [choice]) | {"usage": usage}
            await _json(self.send, 200, body, self.headers)
            return
        await self._event(self._chunk({}, "stop"))
        if (self.asked.get("stream_options") or {}).get("include_usage"):
            await self._event(self._envelope("chat.completion.chunk", []) | {"usage": usage})
        await self._send(b"data: [DONE]\n\n", more=False)

    async def cut(self, *, marked: bool) -> None:
        """End a stream with its mark, or the connection in the middle of the body."""
        if marked and self.streams:
            await self._send(b"data: [DONE]\n\n", more=False)
            return
        if not self.streams:
            await _start(self.send, 200, {"content-length": "100000"})
        raise ConnectionError("cut on purpose")

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        named = {"id": "chatcmpl-1", "object": kind, "created": int(time.time())}
        return named | {"model": self.asked.get("model"), "choices": choices}

    async def _event(self, value: dict[str, Any]) -> None:
        await self._send(f"data: {json.dumps(value)}\n\n".encode(), more=True)

    async def _send(self, body: bytes, *, more: bool) -> None:
        if not self.begun:
            self.begun = True
            await _start(self.send, 200, self.headers | {"content-type": "text/event-stream"})
        await self.send({"type": "http.response.body", "body": body, "more_body": more})


async def _body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body") or len(body) > MAX_BODY:
            return body


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _start(send: Send, status: int, headers: dict[str, str]) -> None:
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": named})


async def _json(send: Send, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
    body = json.dumps(value).encode()
    own = {"content-type": "application/json", "content-length": str(len(body))}
    await _start(send, status, own | (headers or {}))
    await send({"type": "http.response.body", "body": body})


async def _error(
    send: Send, status: int, message: str, headers: dict[str, str] | None = None
) -> None:
    await _json(send, status, {"error": {"message": message, "type": "server"}}, headers)


class _Uvicorn(uvicorn.Server):
    """Says when it listens; whoever runs it is not to wait for clients at its end."""

    def __init__(self, app: App, listening: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        )
        self.is_up = threading.Event()
        self._socket = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self.server_state.connections):
            # uvicorn would answer 500 to a request that has no answer yet.
            connection.transport.abort()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # accepted last; else it would stay open, and never answer

    def work(self) -> None:
        asyncio.run(self.serve([self._socket]))


@contextmanager
def serving(
    machine: Machine | None = None, *, port: int = 0, holds: bool = False
) -> Iterator[tuple[str, App]]:
    """The server in a thread of this process: the address for JOBS_LLM_BASE_URL, and the
    application with its counts. Leaving ends it as a kill would: connections are cut."""
    app = App(machine, holds=holds)
    listening = socket.create_server(("127.0.0.1", port), backlog=2048)
    server = _Uvicorn(app, listening)
    thread = threading.Thread(target=server.work, daemon=True)
    thread.start()
    try:
        if not server.is_up.wait(MAX_WAIT):
            raise TimeoutError(f"the server does not listen after {MAX_WAIT:g} s")
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", app
    finally:
        server.should_exit = server.force_exit = True
        thread.join(MAX_WAIT)
        listening.close()
        if thread.is_alive():
            raise TimeoutError(f"the server has not ended after {MAX_WAIT:g} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9000)
    for name, default in asdict(Machine()).items():
        kind = int if name in ("per_minute", "bears") else type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    options = vars(parser.parse_args())
    with serving(port=options.pop("port"), machine=Machine(**options)) as (url, _):
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
