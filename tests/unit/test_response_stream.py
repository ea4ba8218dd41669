"""Streams of the Responses API: read from a server, and written to a client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from switchyard.api.llm import response_events
from switchyard.api.llm.response_events import ResponseEventWriter
from switchyard.services.llm import response_stream
from switchyard.services.llm.answer_follower import LlmText
from switchyard.services.llm.completion_reader import CompletionReader
from switchyard.services.llm.llm_errors import (
    EmptyLlmAnswer,
    InvalidLlmResponse,
    LlmCut,
    LlmLimited,
)
from switchyard.services.llm.response_stream import ResponseStreamReader, read_response_stream

TEXT = "The sea rises."
PART = {"type": "output_text", "text": TEXT, "annotations": []}
ITEM = {"id": "m1", "type": "message", "role": "assistant", "content": [PART]}
CALL = {"id": "f1", "type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
ANSWER = {"id": "resp_1", "object": "response", "status": "completed", "output": [ITEM, CALL]}
PART_POSITION = {"output_index": 0, "item_id": "m1", "content_index": 0}


def make_event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


CREATED = make_event(
    "created", response={**ANSWER, "status": "in_progress", "instructions": "x" * 999}
)
ADDED = make_event("output_item.added", output_index=0, item={**ITEM, "content": []})
PART_ADDED = make_event("content_part.added", **PART_POSITION, part={**PART, "text": ""})
DELTAS = [
    make_event("output_text.delta", **PART_POSITION, delta=each) for each in ("The sea ", "rises.")
]
TEXT_DONE = make_event("output_text.done", **PART_POSITION, text=TEXT)
PART_DONE = make_event("content_part.done", **PART_POSITION, part=PART)
ITEM_DONE = make_event("output_item.done", output_index=0, item=ITEM)
COMPLETED = make_event("completed", response=ANSWER)
FIRST_EVENTS = [CREATED, make_event("in_progress", response={}), ADDED, PART_ADDED]
MESSAGE_EVENTS = [*FIRST_EVENTS, *DELTAS, TEXT_DONE, PART_DONE, ITEM_DONE]


async def read_events(
    events: Sequence[object], end: bytes = b"", size: int = 7
) -> tuple[list[dict[str, Any]], Any]:
    """Read a stream; return the events that are passed on, and the response."""
    lines: list[str] = []
    body = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events) + end

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    response = await ResponseStreamReader(lines.append).read(chunks())
    return [json.loads(line) for line in "".join(lines).splitlines()], response


def write_events(pieces: Sequence[LlmText], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Write a stream; return the events that a client gets."""
    writer = ResponseEventWriter("job-1")
    frames = [frame for piece in pieces for frame in writer.text(piece)]
    frames += writer.end(answer)
    events = []
    for frame in frames:
        name, data = frame.decode().removesuffix("\n\n").split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    return events


def to_lines(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in events)


def output_text(events: Sequence[dict[str, Any]]) -> str:
    return "".join(x["delta"] for x in events if x["type"] == "response.output_text.delta")


async def test_events_are_passed_on_from_the_first_output_and_the_response_is_returned() -> None:
    lines: list[str] = []

    async def chunks() -> AsyncIterator[bytes]:
        for each in FIRST_EVENTS:
            yield b"event: x\ndata: %b\n\n" % json.dumps(each).encode()
        assert lines == []
        yield b"data: %b\n\n" % json.dumps(DELTAS[0]).encode()
        assert len(lines) == 1
        assert len(lines[0]) < 2_000, "no long line is sent before the first output"
        for each in (DELTAS[1], COMPLETED):
            yield b"data: %b\n\n" % json.dumps(each).encode()
        raise AssertionError("read beyond the end")

    response = await ResponseStreamReader(lines.append).read(chunks())
    assert response == ANSWER
    passed_on = [json.loads(line)["type"] for line in "".join(lines).splitlines()]
    assert passed_on == [x["type"] for x in (CREATED, ADDED, PART_ADDED, *DELTAS)]


@pytest.mark.parametrize(
    ("events", "end", "error"),
    [
        ([], b"", EmptyLlmAnswer),
        ([], b"data: [DONE]\n\n", EmptyLlmAnswer),
        (FIRST_EVENTS, b"", LlmCut),
        (MESSAGE_EVENTS, b"data: [DONE]\n\n", LlmCut),
        (FIRST_EVENTS, b"data: {\n\n", InvalidLlmResponse),
        ([*FIRST_EVENTS, {"type": "error", "code": "server_error", "message": "m"}], b"", LlmCut),
        ([{"error": {"type": "rate_limit_error", "message": "slow"}}], b"", LlmLimited),
        (
            [
                make_event(
                    "failed", response={"error": {"code": "rate_limit_exceeded", "message": "m"}}
                )
            ],
            b"",
            LlmLimited,
        ),
    ],
)
async def test_a_stream_without_its_end_is_an_error(
    events: list[Any], end: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await read_events(events, end)


async def test_a_stream_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_stream, "MAX_EVENTS", 10_000)
    with pytest.raises(InvalidLlmResponse, match="longer than"):
        await read_events([DELTAS[0]] * 200)


async def test_invalid_events_are_not_passed_on() -> None:
    invalid: list[Any] = [{"type": "x\nevent: y"}, {"type": 3}, [1], "text", {"no": "type"}]
    passed_on, response = await read_events([*invalid, DELTAS[0], COMPLETED])
    assert passed_on == [DELTAS[0]]
    assert response == ANSWER
    hostile: list[dict[str, Any]] = [
        {"type": "x\nevent: y"},
        {"type": 3},
        {},
        {**DELTAS[0], "output_index": "x"},
    ]
    events = write_events([LlmText(to_lines(*hostile), 0)], ANSWER)
    assert "x\nevent: y" not in [each["type"] for each in events]


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_the_servers_events_reach_the_client_unchanged(size: int) -> None:
    begin_events = [CREATED, ADDED, PART_ADDED]
    text = to_lines(*begin_events, *DELTAS, TEXT_DONE, PART_DONE, ITEM_DONE)
    pieces = [LlmText(text[start : start + size], start) for start in range(0, len(text), size)]
    events = write_events(pieces, ANSWER)
    for each in events:
        del each["sequence_number"]
    assert events[0] == CREATED
    assert events[1]["type"] == "response.in_progress"
    assert events[2 : len(MESSAGE_EVENTS)] == MESSAGE_EVENTS[2:]
    assert [each["type"].removeprefix("response.") for each in events[len(MESSAGE_EVENTS) :]] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[-1] == COMPLETED


@pytest.mark.parametrize("count", range(len(MESSAGE_EVENTS)))
def test_missing_events_are_made_from_the_answer(count: int) -> None:
    sent = [each for each in MESSAGE_EVENTS if each["type"] != "response.in_progress"][:count]
    text = to_lines(*sent)
    events = write_events([LlmText(text, 0), LlmText("{}\n", len(text) + 1)], ANSWER)
    kinds = [each["type"].removeprefix("response.") for each in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert output_text(events) == TEXT
    for kind in ("created", "content_part.added", "content_part.done", "completed"):
        assert kinds.count(kind) == 1
    assert kinds.count("output_item.done") == 2


def test_an_answer_that_differs_from_the_streamed_text_is_an_error() -> None:
    text = to_lines(CREATED, ADDED, PART_ADDED, DELTAS[0])
    pieces = [LlmText(text, 0), LlmText(text, 0)]
    assert output_text(write_events(pieces, ANSWER)) == TEXT  # the same text was sent again
    other_item = {**ITEM, "content": [{**PART, "text": "It falls."}]}
    for output in ([other_item], [CALL], []):
        events = write_events(pieces, {**ANSWER, "output": output})
        assert events[-1]["type"] == "error"
        assert "began anew" in events[-1]["message"]
        assert events[-1]["error"]["code"] == events[-1]["code"] == "model_failed"


def test_a_line_that_is_too_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_events, "MAX_LINE", 1_000)
    events = write_events([LlmText("x" * 600, start) for start in (0, 600, 1_200)], ANSWER)
    assert events[-1]["type"] == "response.completed"
    after_a_broken_line = write_events([LlmText("nothing\n" + to_lines(*DELTAS), 0)], ANSWER)
    assert output_text(after_a_broken_line) == TEXT


@pytest.mark.parametrize("byte_order_mark", [b"", b"\xef\xbb\xbf"])
async def test_a_stream_with_a_wrong_content_type_is_recognised_by_its_first_bytes(
    byte_order_mark: bytes,
) -> None:
    body = byte_order_mark + b"".join(
        b"event: x\ndata: %b\n\n" % json.dumps(each).encode()
        for each in [*MESSAGE_EVENTS, COMPLETED]
    )
    response = httpx.Response(200, headers={"content-type": "text/plain"}, content=body)
    lines: list[str] = []
    assert await read_response_stream(response, CompletionReader("m"), lines.append) == ANSWER
    assert lines
