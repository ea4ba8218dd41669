"""The chunks of OpenAI's streams, written from the pieces of an answer and its end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.api.http.openai_errors import error_of
from switchyard.api.http.problems import Problem
from switchyard.services.llm.answer_follower import LlmText


@dataclass(slots=True)
class ChunkWriter:
    """Write one answer as the chunks of OpenAI's streams: the text as it comes, and tool calls,
    further choices and log probabilities when the answer is complete."""

    job_id: str
    model: str
    shows_usage: bool = False
    _created: int = field(default_factory=lambda: int(time.time()))
    _sent_pieces: list[str] = field(default_factory=list)
    _sent_length: int = 0
    """Characters of the text in `_sent_pieces`."""
    _is_live: bool = True
    """False once a piece is missing, or the answer has begun anew: what is missing is sent at the
    end."""

    def text(self, piece: LlmText) -> Iterator[bytes]:
        """Write a piece of the text, if it follows the pieces before it."""
        if piece.offset != self._sent_length:
            self._is_live = False
        if not self._is_live:
            return
        delta: dict[str, Any] = {"content": piece.text}
        if not self._sent_pieces:
            delta = {"role": "assistant", **delta}
        self._sent_pieces.append(piece.text)
        self._sent_length += len(piece.text)
        yield self._chunk({"index": 0, "delta": delta, "finish_reason": None})

    def end(self, completion: Mapping[str, Any]) -> Iterator[bytes]:
        """Write what is missing of the complete answer, and the end."""
        sent_text = "".join(self._sent_pieces)
        choices = completion.get("choices", [])
        first_text = choices[0]["message"].get("content") if choices else None
        if sent_text and not (
            isinstance(first_text, str) and first_text.lstrip().startswith(sent_text)
        ):
            text = "the answer began anew after a failure, and is another one now: ask again"
            yield self.error(Problem("model-failed", text))
            return
        for choice in choices:
            delta = dict(choice["message"])
            if choice["index"] == 0 and sent_text:
                del delta["role"]
                delta["content"] = str(first_text).lstrip()[len(sent_text) :]
                if not delta["content"]:
                    del delta["content"]
            tool_calls = delta.get("tool_calls")
            if isinstance(tool_calls, list):
                delta["tool_calls"] = [
                    {"index": number, **call} for number, call in enumerate(tool_calls)
                ]
            other_fields = {
                name: value
                for name, value in choice.items()
                if name not in ("index", "message", "finish_reason")
            }
            if delta or other_fields:
                yield self._chunk(
                    {
                        "index": choice["index"],
                        "delta": delta,
                        "finish_reason": None,
                        **other_fields,
                    }
                )
            end_of_choice = {"delta": {}, "finish_reason": choice["finish_reason"]}
            yield self._chunk({"index": choice["index"], **end_of_choice})
        if self.shows_usage:
            yield self._chunk(None, usage=completion.get("usage"))
        yield b"data: [DONE]\n\n"

    def error(self, problem: Problem) -> bytes:
        """Write the error with which a stream that has begun breaks off."""
        return _data_event(error_of(problem.content)[1])

    def _chunk(self, choice: Mapping[str, Any] | None, **other_fields: Any) -> bytes:
        return _data_event(
            {
                "id": f"chatcmpl-{self.job_id}",
                "object": "chat.completion.chunk",
                "created": self._created,
                "model": self.model,
                "choices": [] if choice is None else [choice],
                **other_fields,
            }
        )


def text_chunks(completion: Mapping[str, Any], *, shows_usage: bool) -> Iterator[bytes]:
    """Write a complete completion of texts as the chunks of a stream."""
    common_fields = {name: completion.get(name) for name in ("id", "object", "created", "model")}
    for choice in completion.get("choices", ()):
        yield _data_event({**common_fields, "choices": [choice]})
    if shows_usage:
        yield _data_event({**common_fields, "choices": [], "usage": completion.get("usage")})
    yield b"data: [DONE]\n\n"


def _data_event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
