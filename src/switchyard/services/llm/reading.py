"""Reading a server's answer, whole or as a stream: everything it sends is checked here.

The SDK does not check what a server sends, so every step is. What is read is bounded in size.
It is read as JSON (`cast_to=object`): the SDK would make objects of it first, and takes a minute
and two gigabytes for those of an answer of four megabytes of `{}`, in which nothing else runs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.services.llm.errors import LlmNonsense, LlmRefused, LlmUnavailable

MAX_ANSWER = 2_000_000
"""Bytes or characters of an answer."""
_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
"""What reasoning models say first where their server does not take it out."""
_COUNTS = ("prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said."""

    text: str
    model: str
    """The model that answered, as the server names it."""
    finish_reason: str | None
    """`stop`, or `length` when the answer was cut at its limit."""
    usage: Mapping[str, int]
    """Tokens: prompt_tokens, completion_tokens, and cached_tokens of the prompt where the server
    tells; empty when it does not count."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How quickly the answer came, in seconds."""

    first_token: float
    per_token: float


@dataclass(slots=True)
class Reading:
    """An answer as it comes in; `tell` gets each piece of text."""

    asked_for: str
    """The model."""
    tell: Callable[[str], None] | None = None
    _pieces: list[str] = field(default_factory=list)
    _refusals: list[str] = field(default_factory=list)
    _length: int = 0
    _chunks: int = 0
    _began: float = field(default_factory=time.monotonic)
    _first: float | None = None
    _last: float = 0.0
    _finish_reason: str | None = None
    _model: str | None = None
    _usage: dict[str, int] = field(default_factory=dict)

    async def read(self, stream: Any) -> Answer:
        """The answer of the SDK's stream. Raises LlmNonsense, LlmRefused, LlmUnavailable."""
        if "event-stream" not in stream.response.headers.get("content-type", ""):
            # Not every server streams.
            return self._whole(await _bounded(stream.response.aiter_bytes()))
        async for chunk in stream:
            self._take(chunk)
        if self._finish_reason is None:
            if not self._chunks:
                raise LlmNonsense("the model server's answer is empty")
            raise LlmUnavailable("the model server's answer ends in the middle")
        return self._answer("".join(self._pieces))

    @property
    def timing(self) -> Timing | None:
        """None where the answer did not come in pieces."""
        tokens = self._usage.get("completion_tokens") or self._chunks
        if self._first is None or tokens < 2:
            return None
        return Timing(self._first - self._began, (self._last - self._first) / (tokens - 1))

    def _take(self, chunk: Any) -> None:
        self._note(field_of(chunk, "model"), field_of(chunk, "usage"))
        choices = field_of(chunk, "choices")
        if not isinstance(choices, list):
            raise LlmNonsense("the model server's answer has no choices")
        if not choices:
            return  # the last one, with the usage
        delta = field_of(choices[0], "delta")
        text, refusal = field_of(delta, "content"), field_of(delta, "refusal")
        reason = field_of(choices[0], "finish_reason")
        if isinstance(reason, str):
            self._finish_reason = reason
        if isinstance(refusal, str):
            self._grow(len(refusal))
            self._refusals.append(refusal)
        thought = field_of(delta, "reasoning_content")
        if any(isinstance(each, str) and each for each in (text, thought)):
            self._last = time.monotonic()
            self._first = self._first or self._last
            self._chunks += 1
        if isinstance(text, str) and text:
            self._grow(len(text))
            self._pieces.append(text)
            if self.tell is not None:
                self.tell(text)

    def _whole(self, body: bytes) -> Answer:
        try:
            completion = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise LlmNonsense("the model server's answer is not JSON") from error
        return self.whole(completion)

    def whole(self, completion: Any) -> Answer:
        """The answer of a completion as JSON has it. Raises LlmNonsense, LlmRefused."""
        choices = field_of(completion, "choices")
        if not isinstance(choices, list) or not choices:
            raise LlmNonsense("the model server's answer has no choices")
        self._note(field_of(completion, "model"), field_of(completion, "usage"))
        message = field_of(choices[0], "message")
        reason = field_of(choices[0], "finish_reason")
        self._finish_reason = reason if isinstance(reason, str) else None
        text, refusal = field_of(message, "content"), field_of(message, "refusal")
        for each in (text, refusal):
            self._grow(len(each) if isinstance(each, str) else 0)
        if isinstance(refusal, str):
            self._refusals.append(refusal)
        answer = self._answer(text if isinstance(text, str) else "")
        if self.tell is not None:
            self.tell(answer.text)
        return answer

    def counted(self, answer: object) -> Answer:
        """What an answer without text, as one of vectors, says of itself."""
        self._note(field_of(answer, "model"), field_of(answer, "usage"))
        return Answer("", self._model or self.asked_for, None, dict(self._usage))

    def _answer(self, text: str) -> Answer:
        refusal = "".join(self._refusals)
        if self._finish_reason == "content_filter" or (refusal and not text):
            said = f"the model declines to answer: {refusal or 'content filter'}"
            raise LlmRefused(readable(said[:500]), may_cost=True)
        text = _THINKING.sub("", readable(text)).strip()
        if not text:
            raise LlmNonsense("the model server's answer is empty")
        return Answer(text, self._model or self.asked_for, self._finish_reason, dict(self._usage))

    def _note(self, model: object, usage: object) -> None:
        if isinstance(model, str) and model:
            self._model = readable(model[:200])
        for name in _COUNTS:
            self._count(name, field_of(usage, name))
        self._count(
            "cached_tokens", field_of(field_of(usage, "prompt_tokens_details"), "cached_tokens")
        )

    def _count(self, name: str, value: object) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40:
            self._usage[name] = value

    def _grow(self, by: int) -> None:
        self._length += by
        if self._length > MAX_ANSWER:
            raise LlmNonsense(f"the model server's answer is longer than {MAX_ANSWER:,} characters")


def readable(text: str) -> str:
    """Text that can be written: halves of surrogate pairs joined, where JSON or a stream has cut
    between them, and those without the other half replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def field_of(value: object, name: str) -> Any:
    """A field of what a server has sent as JSON; None where there is none."""
    return value.get(name) if isinstance(value, dict) else None


def is_cut(error: Exception) -> bool:
    """Whether an error is one of the HTTP client that the SDK brings: the connection ended."""
    return "TransportError" in {each.__name__ for each in type(error).__mro__}


async def _bounded(parts: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > MAX_ANSWER:
            raise LlmNonsense(f"the model server's answer is longer than {MAX_ANSWER:,} bytes")
    return bytes(body)
