"""Write the events of a stream of the Responses API.

The worker sends the server's events as lines of JSON, best effort. These events are passed on as
they are; those that are missing once the answer is complete are made from the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.api.http.openai_errors import error_of
from switchyard.api.http.problems import Problem
from switchyard.services.llm.answer_follower import LlmText
from switchyard.services.llm.response_stream import CREATED, EVENT_NAME

MAX_LINE = 1024 * 1024
"""Maximum characters of one event. A worker's are shorter; a longer one is forged, and ends the
live part."""


@dataclass(slots=True)
class _SentItem:
    """An item of the output, as far as its events were sent."""

    texts: dict[int, str] = field(default_factory=dict)
    """The text so far, by the index of its part."""
    ended_parts: set[int] = field(default_factory=set)
    arguments: str = ""
    """Arguments of a function call, as far as they were sent."""
    has_ended: bool = False

    def is_beginning_of(self, item: Mapping[str, Any]) -> bool:
        """Return whether what was sent is the beginning of an item of the answer."""
        parts = _parts(item)
        for index, text in self.texts.items():
            if index >= len(parts) or not str(parts[index].get("text", "")).startswith(text):
                return False
        return str(item.get("arguments", "")).startswith(self.arguments)


@dataclass(slots=True)
class ResponseEventWriter:
    """Write one answer as a stream's events."""

    job_id: str
    _line_beginning: str = ""
    """The beginning of a line whose end has not come yet."""
    _received: int = 0
    """Characters of the lines so far."""
    _is_live: bool = True
    """False once a piece was left out, or the answer began anew: what is missing is sent at the
    end."""
    _sent_events: int = 0
    _items: dict[int, _SentItem] = field(default_factory=dict)

    def text(self, piece: LlmText) -> Iterator[bytes]:
        """Write the events that a piece of the lines completes, if it follows the pieces before
        it."""
        if piece.offset != self._received:
            self._is_live = False
        if not self._is_live:
            return
        self._received += len(piece.text)
        *lines, self._line_beginning = (self._line_beginning + piece.text).split("\n")
        self._is_live = len(self._line_beginning) <= MAX_LINE
        for line in lines:
            yield from self._pass_on(line)

    def end(self, response: Mapping[str, Any]) -> Iterator[bytes]:
        """Write what is missing of the complete answer, and the end."""
        output = [each for each in response.get("output", ()) if isinstance(each, dict)]
        for index, sent in self._items.items():
            if index >= len(output) or not sent.is_beginning_of(output[index]):
                text = "the answer began anew after a failure, and is another one now: ask again"
                yield self.error(Problem("model-failed", text))
                return
        if not self._sent_events:
            yield from self._begin({**response, "status": "in_progress", "output": []})
        for index, item in enumerate(output):
            sent_item = self._items.get(index)
            if sent_item is None or not sent_item.has_ended:
                yield from self._end_item(index, item, sent_item)
        yield self._event(f"response.{response.get('status')}", response=response)

    def error(self, problem: Problem) -> bytes:
        """Write the error with which a stream that has begun breaks off: as the event of this API,
        and as the `error` that OpenAI's clients raise."""
        error = error_of(problem.content)[1]["error"]
        fields = {name: error.get(name) for name in ("code", "message", "param")}
        return self._event("error", **fields, error=error)

    def _pass_on(self, line: str) -> Iterator[bytes]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            self._is_live = False
            return
        event_type = event.pop("type", None) if isinstance(event, dict) else None
        if not isinstance(event_type, str) or not EVENT_NAME.fullmatch(event_type):
            return
        event.pop("sequence_number", None)
        if event_type == CREATED:
            if not self._sent_events:
                yield from self._begin(event.get("response"))
            return
        if not self._sent_events:
            yield from self._begin(
                {"id": f"resp-{self.job_id}", "object": "response", "output": []}
            )
        self._remember(event_type, event)
        yield self._event(event_type, **event)

    def _remember(self, event_type: str, event: Mapping[str, Any]) -> None:
        """Remember what was sent of an item, to go on from there at the end."""
        index = event.get("output_index")
        if not isinstance(index, int):
            return
        sent = self._items.setdefault(index, _SentItem())
        part_index, delta = event.get("content_index"), event.get("delta")
        match event_type:
            case "response.output_item.done":
                sent.has_ended = True
            case "response.content_part.added" if isinstance(part_index, int):
                sent.texts.setdefault(part_index, "")
            case "response.output_text.delta" if isinstance(part_index, int) and isinstance(
                delta, str
            ):
                sent.texts[part_index] = sent.texts.get(part_index, "") + delta
            case "response.content_part.done" if isinstance(part_index, int):
                sent.ended_parts.add(part_index)
            case "response.function_call_arguments.delta" if isinstance(delta, str):
                sent.arguments += delta

    def _begin(self, response: Any) -> Iterator[bytes]:
        for event_type in (CREATED, "response.in_progress"):
            yield self._event(event_type, response=response)

    def _end_item(
        self, index: int, item: Mapping[str, Any], sent: _SentItem | None
    ) -> Iterator[bytes]:
        item_place = {"output_index": index, "item_id": item.get("id")}
        parts, arguments = _parts(item), item.get("arguments")
        is_call = item.get("type") == "function_call" and isinstance(arguments, str)
        if sent is None:
            sent = _SentItem()
            emptied_fields: dict[str, Any] = {"content": []} if parts else {}
            emptied_fields |= {"arguments": ""} if is_call else {}
            added = {**item, **emptied_fields}
            yield self._event("response.output_item.added", output_index=index, item=added)
        for part_index, part in enumerate(parts):
            if part_index not in sent.ended_parts:
                part_place = {**item_place, "content_index": part_index}
                yield from self._end_part(part_place, part, sent.texts.get(part_index))
        if is_call:
            if arguments_left := str(arguments)[len(sent.arguments) :]:
                yield self._event(
                    "response.function_call_arguments.delta", **item_place, delta=arguments_left
                )
            call = {"name": item.get("name"), "arguments": arguments}
            yield self._event("response.function_call_arguments.done", **item_place, **call)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end_part(
        self, part_place: Mapping[str, Any], part: Mapping[str, Any], sent_text: str | None
    ) -> Iterator[bytes]:
        text = part.get("text")
        is_text = part.get("type") == "output_text" and isinstance(text, str)
        if sent_text is None:
            emptied_part = {**part, "text": ""} if is_text else part
            yield self._event("response.content_part.added", **part_place, part=emptied_part)
        if is_text:
            if text_left := str(text)[len(sent_text or "") :]:
                yield self._event(
                    "response.output_text.delta", **part_place, delta=text_left, logprobs=[]
                )
            yield self._event("response.output_text.done", **part_place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **part_place, part=part)

    def _event(self, event_type: str, **fields: Any) -> bytes:
        data = json.dumps({"type": event_type, "sequence_number": self._sent_events, **fields})
        self._sent_events += 1
        return f"event: {event_type}\ndata: {data}\n\n".encode()


def _parts(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = item.get("content")
    return [x for x in content if isinstance(x, dict)] if isinstance(content, list) else []
