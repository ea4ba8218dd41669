"""Read a streamed answer of OpenAI's Responses API: pass its events on as they come, and return the
response that the last one has.

An event is passed on as JSON in one line. What the SDK would make of it is not needed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from switchyard.services.llm.completion_reader import (
    MAX_ENDPOINT_ANSWER,
    CompletionReader,
    body_or_stream,
    encodable_answer,
    event_data,
    field_of,
    parse_json,
    stream_error,
)
from switchyard.services.llm.llm_errors import EmptyLlmAnswer, InvalidLlmResponse, LlmCut

CREATED = "response.created"
EVENT_NAME = re.compile(r"[a-z][a-z0-9_.]{0,99}")
"""Pattern of the types of events that are passed on."""
MAX_EVENTS = 8 * MAX_ENDPOINT_ANSWER
"""Bytes of all events of a stream: each has an envelope, and the text comes several times."""
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Events with the whole response. The job's result has it: they are not passed on."""
_REPEATED = frozenset({"response.in_progress", "response.queued"})
"""Events that repeat the response as it was created: our API writes them for its clients."""
_SHORT_FIELDS = ("id", "object", "created_at", "status", "model")
"""Fields of a created response that are passed on. Others, such as instructions and tools, can be
long, and come from the client."""


async def read_response_stream(
    response: Any, reader: CompletionReader, on_line: Callable[[str], None]
) -> Any:
    """Read the answer in the SDK's HTTP response: a body, or a stream whose events `on_line` gets.
    `reader` records when its parts came. Raises InvalidLlmResponse, LlmLimited, EmptyLlmAnswer,
    LlmCut."""
    answer = await body_or_stream(response, (b"event:", b"data:"), MAX_ENDPOINT_ANSWER)
    if isinstance(answer, bytes):
        return reader.parse_body(answer, has_texts=True)
    return await ResponseStreamReader(on_line, reader.record_token).read(answer)


@dataclass(slots=True)
class ResponseStreamReader:
    """Reads one stream."""

    on_line: Callable[[str], None]
    """Gets each event as a line of JSON. Events before the first piece of output are held back and
    passed on with it: sent on their own, they would delay that piece."""
    on_token: Callable[[], None] = lambda: None
    """Called for each piece of output."""
    _held_lines: list[str] = field(default_factory=list)
    _has_output: bool = False
    _has_events: bool = False

    async def read(self, parts: AsyncIterator[bytes]) -> Any:
        """Return the response. Raises InvalidLlmResponse, LlmLimited, EmptyLlmAnswer, LlmCut."""
        size = 0
        async for data in event_data(parts):
            size += len(data)
            if size > MAX_EVENTS:
                raise InvalidLlmResponse(
                    f"the model server's answer is longer than {MAX_EVENTS:,} bytes"
                )
            if not data.strip():
                continue
            if data.startswith(b"[DONE]"):
                break
            event = parse_json(data)
            kind = field_of(event, "type")
            if kind in _TERMINAL:
                response = field_of(event, "response")
                if error := field_of(response, "error"):
                    raise stream_error(error, has_begun=self._has_output)
                return encodable_answer(response)
            if error := field_of(event, "error") or (event if kind == "error" else None):
                raise stream_error(error, has_begun=self._has_output)
            self._has_events = True
            if isinstance(kind, str) and EVENT_NAME.fullmatch(kind) and kind not in _REPEATED:
                self._pass_on(kind, event)
        if not self._has_events:
            raise EmptyLlmAnswer("the model server's answer is empty")
        raise LlmCut("the model server's answer ends in the middle")

    def _pass_on(self, kind: str, event: dict[str, Any]) -> None:
        if kind == CREATED:
            response = event.get("response")
            short_response = {name: field_of(response, name) for name in _SHORT_FIELDS}
            event = {"type": kind, "response": {**short_response, "output": []}}
        line = json.dumps(encodable_answer(event)) + "\n"
        if kind.endswith(".delta"):
            self.on_token()
        self._has_output = self._has_output or kind.endswith((".delta", ".done"))
        self._held_lines.append(line)
        if self._has_output:
            self.on_line("".join(self._held_lines))
            self._held_lines.clear()
