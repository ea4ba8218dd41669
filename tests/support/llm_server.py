"""A small HTTP server that speaks the OpenAI API (chat completions, embeddings, batches) and can
misbehave.

It answers well unless it was told otherwise: `server.next(rate_limited(7), cut())` is what the
next two requests get. It keeps every request of a completion or of embeddings, so that a test can
say what was paid for. Any process on this machine can use it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from tests.support.llm_batches import FakeBatchApi
from tests.support.site import Behaviour, Exchange, Request, Site

ANSWER = "A summary that a model wrote."
DIMENSIONS = 8
MODEL = "llama"
"""The model that settings of tests say the server has; it answers for any."""


def answers(text: str | None = ANSWER, *, finish_reason: str = "stop") -> Behaviour:
    """Return a proper chat completion."""

    def behave(exchange: Exchange, request: Request) -> None:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        exchange.send_json(200, _completion(request, [choice]))

    return behave


def says_message(message: Mapping[str, Any]) -> Behaviour:
    """Return a completion with any message."""

    def behave(exchange: Exchange, request: Request) -> None:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        exchange.send_json(200, _completion(request, [choice]))

    return behave


def streams(
    *deltas: Mapping[str, Any],
    chunk_finish_reason: str | None = None,
    finish_reason: str | None = "stop",
    begin: bytes = b"",
    end: bytes = b"data: [DONE]\n\n",
    content_type: str = "text/event-stream",
    claimed_length: int | None = None,
) -> Behaviour:
    """Return a completion as a stream: a chunk for each delta with `chunk_finish_reason`, one with
    the `finish_reason` unless None, and `end`."""

    def chunk(delta: Mapping[str, Any], reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        fields = {"object": "chat.completion.chunk", "model": "m", "choices": [choice]}
        return b"data: " + json.dumps(fields).encode() + b"\n\n"

    chunks = [chunk(each, chunk_finish_reason) for each in deltas]
    last = [] if finish_reason is None else [chunk({}, finish_reason)]
    body = b"".join([begin, *chunks, *last, end])
    return lambda exchange, _: exchange.send(
        200, body, content_type=content_type, claimed_length=claimed_length
    )


def embeds(
    dimensions: int = DIMENSIONS,
    *,
    backwards: bool = False,
    model: str | None = None,
    weights: str = "",
    max_texts: int | None = None,
    too_many_status: int = 400,
    max_characters: int | None = None,
) -> Behaviour:
    """Return embeddings that are made of the text's hash. With a `model`, they are of that one,
    whichever is asked for. `weights` stands for other weights of the same model: it changes the
    vectors. More than `max_texts` texts are refused with `too_many_status`, and one of more than
    `max_characters` with 400."""

    def behave(exchange: Exchange, request: Request) -> None:
        texts = request.json["input"]
        if max_texts is not None and len(texts) > max_texts:
            exchange.send_json(too_many_status, {"error": {"message": "the batch is too large"}})
            return
        if max_characters is not None and any(len(each) > max_characters for each in texts):
            exchange.send_json(400, {"error": {"message": "an input is too long"}})
            return
        items = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _vector(weights + text, dimensions),
            }
            for index, text in enumerate(texts)
        ]
        data = items[::-1] if backwards else items
        model_name = model or request.json["model"]
        usage = {"prompt_tokens": 5 * len(data), "total_tokens": 5 * len(data)}
        body = {"object": "list", "data": data, "model": model_name, "usage": usage}
        exchange.send_json(200, body)

    return behave


def no_choices() -> Behaviour:
    """Return a completion that completes nothing."""
    return lambda exchange, request: exchange.send_json(200, _completion(request, []))


def fails(status: int, message: str = "it went wrong", **headers: str) -> Behaviour:
    """Return an error in the API's form."""
    http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange, _: exchange.send_json(
        status, {"error": {"message": message}}, http_headers
    )


def rate_limited(seconds: int) -> Behaviour:
    """Answer 429 with a Retry-After."""
    return fails(429, "slow down", Retry_After=str(seconds))


def says(body: bytes, content_type: str = "application/json") -> Behaviour:
    """Answer 200 with any body."""
    return lambda exchange, _: exchange.send(200, body, content_type=content_type)


def cut_in_the_middle() -> Behaviour:
    """End the connection within the body."""
    return lambda exchange, _: exchange.send(
        200, b'{"id": "1', content_type="application/json", claimed_length=500
    )


class FakeLlmServer(Site):
    """A server of the OpenAI API that answers as a test says.

    Use as a context manager; `url` is what JOBS_LLM_BASE_URL takes.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.batches = FakeBatchApi()
        """What its Batch API has, and how it misbehaves."""

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def handle(self, exchange: Exchange, request: Request) -> None:
        if "/files" in request.path or "/batches" in request.path:
            self.batches.answer(exchange, request.body)
        else:
            super().handle(exchange, request)

    def answer(self, exchange: Exchange, request: Request) -> None:
        behave = embeds() if request.path.endswith("/embeddings") else answers()
        behave(exchange, request)


def _completion(request: Request, choices: list[Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.json["model"],
        "choices": choices,
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def _vector(text: str, dimensions: int) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [digest[index % len(digest)] / 255 for index in range(dimensions)]
