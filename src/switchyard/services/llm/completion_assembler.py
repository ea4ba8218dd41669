"""Assemble a server's answer with all of its fields from its chunks: choices, tool calls, log
probabilities, and fields that only some servers have.

Servers repeat some fields of a choice in every chunk (`role`, `id`, `name`), and send others in
pieces. Only fields of `_JOINED_FIELDS` are joined; of all others, the last value counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_CHOICES = 128
MAX_DEPTH = 20
"""Maximum levels of a chunk; one with more is refused."""
_JOINED_FIELDS = frozenset(
    {
        "content",
        "refusal",
        "reasoning",
        "reasoning_content",
        "arguments",
        "input",
        "text",
        "data",
        "transcript",
        "signature",
    }
)
_TOP_LEVEL = ("id", "created", "model", "system_fingerprint", "service_tier", "usage")


class CompletionAssembler:
    """Assemble one answer. `count` is called with the size of each value that is kept, and raises
    when the answer is too large."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add_chunk(self, chunk: dict[str, Any]) -> None:
        """Add a chunk of a stream. Raises ValueError for one that can't be part of an answer."""
        self._add_fields(chunk)
        for choice in _objects(chunk.get("choices")):
            assembled = self._get_or_add_choice(choice)
            # `message`: some servers stream a whole answer as a single event.
            message = choice.get("delta") or choice.get("message")
            if isinstance(message, dict):
                self._join(assembled["message"], message, MAX_DEPTH)
            self._add_choice_fields(assembled, choice)

    def add_whole(self, completion: dict[str, Any]) -> None:
        """Add an answer that was not streamed. Raises ValueError."""
        self._add_fields(completion)
        for choice in _objects(completion.get("choices")):
            assembled = self._get_or_add_choice(choice)
            if isinstance(choice.get("message"), dict):
                assembled["message"] = self._copy_counted(choice["message"], MAX_DEPTH)
            self._add_choice_fields(assembled, choice)

    def completion(self, finish: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Return the answer in the form of a chat completion; `finish` may change each choice."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            message = choice["message"]
            message.setdefault("role", "assistant")
            message.setdefault("content", None)
            calls = message.get("tool_calls")
            for call in _objects(calls):
                call.pop("index", None)  # part of chunks alone
            if isinstance(calls, list) and not calls:
                del message["tool_calls"]
            finish(choice)
        return {"object": "chat.completion", **self._fields, "choices": choices}

    def _add_fields(self, chunk: dict[str, Any]) -> None:
        for name in _TOP_LEVEL:
            if chunk.get(name) is not None:
                self._fields[name] = self._copy_counted(chunk[name], MAX_DEPTH)

    def _get_or_add_choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        index = choice.get("index")
        if not isinstance(index, int) or isinstance(index, bool):
            index = 0
        if not 0 <= index < MAX_CHOICES:
            raise ValueError(f"a choice has the index {index}")
        empty: dict[str, Any] = {"index": index, "message": {}, "finish_reason": None}
        return self._choices.setdefault(index, empty)

    def _add_choice_fields(self, assembled: dict[str, Any], choice: dict[str, Any]) -> None:
        for name, value in choice.items():
            if name in ("index", "delta", "message") or value is None:
                continue
            if name == "logprobs" and isinstance(value, dict):
                self._join(assembled.setdefault("logprobs", {}), value, MAX_DEPTH)
            else:
                assembled[name] = self._copy_counted(value, MAX_DEPTH)

    def _join(self, assembled: dict[str, Any], piece: dict[str, Any], levels: int) -> None:
        """Add the fields of a piece to the fields of earlier pieces."""
        if levels == 0:
            raise ValueError("a chunk has too many levels")
        for name, value in piece.items():
            earlier = assembled.get(name)
            if value is None:
                assembled.setdefault(name, None)
            elif isinstance(earlier, str) and isinstance(value, str):
                if name in _JOINED_FIELDS:
                    self._count(len(value))
                    assembled[name] = earlier + value
                elif value:
                    assembled[name] = self._copy_counted(value, levels)
            elif isinstance(earlier, dict) and isinstance(value, dict):
                self._join(earlier, value, levels - 1)
            elif isinstance(earlier, list) and isinstance(value, list):
                self._join_lists(earlier, value, levels - 1)
            else:
                assembled[name] = self._copy_counted(value, levels)

    def _join_lists(self, assembled: list[Any], pieces: list[Any], levels: int) -> None:
        for piece in pieces:
            index = piece.get("index") if isinstance(piece, dict) else None
            earlier = next(
                (
                    entry
                    for entry in reversed(assembled)
                    if isinstance(entry, dict) and entry.get("index") == index
                ),
                None,
            )
            if index is None or earlier is None or _is_next_call(earlier, piece):
                assembled.append(self._copy_counted(piece, levels))
            else:
                self._join(earlier, piece, levels)

    def _copy_counted(self, value: Any, levels: int) -> Any:
        """Copy a value, and count its size."""
        if levels == 0:
            raise ValueError("a chunk has too many levels")
        if isinstance(value, dict):
            self._count(len(value) * 4)
            return {name: self._copy_counted(each, levels - 1) for name, each in value.items()}
        if isinstance(value, list):
            self._count(len(value))
            return [self._copy_counted(each, levels - 1) for each in value]
        self._count(len(value) if isinstance(value, str) else 1)
        return value


def _is_next_call(earlier: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Return whether a piece begins another tool call although it has the same index: Ollama gives
    all of them the index 0. A new id alone is no sign: vLLM has made one for each piece."""
    function, known_id, new_id = piece.get("function"), earlier.get("id"), piece.get("id")
    is_named = isinstance(function, dict) and bool(function.get("name"))
    return is_named and bool(known_id) and bool(new_id) and known_id != new_id


def _objects(values: Any) -> list[dict[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
