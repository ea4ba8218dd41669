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
PLACE = {"output_index": 0, "item_id": "m1", "content_index": 0}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


CREATED = event("created", response={**ANSWER, "status": "in_progress", "instructions": "x" * 999})
ADDED = event("output_item.added", output_index=0, item={**ITEM, "content": []})
PART_ADDED = event("content_part.added", **PLACE, part={**PART, "text": ""})
DELTAS = [event("output_text.delta", **PLACE, delta=each) for each in ("The sea ", "rises.")]
TEXT_DONE = event("output_text.done", **PLACE, text=TEXT)
PART_DONE = event("content_part.done", **PLACE, part=PART)
ITEM_DONE = event("output_item.done", output_index=0, item=ITEM)
COMPLETED = event("completed", response=ANSWER)
BEGIN = [CREATED, event("in_progress", response={}), ADDED, PART_ADDED]
MESSAGE = [*BEGIN, *DELTAS, TEXT_DONE, PART_DONE, ITEM_DONE]


async def read(
    events: Sequence[object], end: bytes = b"", size: int = 7
) -> tuple[list[dict[str, Any]], Any]:
    """Read a stream; return the events that are passed on, and the response."""
    lines: list[str] = []
    body = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events) + end

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    response = await ResponseStreamReader(lines.append).read(parts())
    return [json.loads(line) for line in "".join(lines).splitlines()], response


def write(pieces: Sequence[LlmText], answer: dict[str, Any]) -> list[dict[str, Any]]:
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


def lines_of(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in events)


def text_of(events: Sequence[dict[str, Any]]) -> str:
    return "".join(x["delta"] for x in events if x["type"] == "response.output_text.delta")


async def test_events_are_passed_on_with_the_first_output_and_the_response_is_returned() -> None:
    lines: list[str] = []

    async def parts() -> AsyncIterator[bytes]:
        for each in BEGIN:
            yield b"event: x\ndata: %b\n\n" % json.dumps(each).encode()
        assert lines == []
        yield b"data: %b\n\n" % json.dumps(DELTAS[0]).encode()
        assert len(lines) == 1
        assert len(lines[0]) < 2_000, "the first output waits behind nothing that is long"
        for each in (DELTAS[1], COMPLETED):
            yield b"data: %b\n\n" % json.dumps(each).encode()
        raise AssertionError("read beyond the end")

    response = await ResponseStreamReader(lines.append).read(parts())
    assert response == ANSWER
    passed_on = [json.loads(line)["type"] for line in "".join(lines).splitlines()]
    assert passed_on == [x["type"] for x in (CREATED, ADDED, PART_ADDED, *DELTAS)]


@pytest.mark.parametrize(
    ("events", "end", "error"),
    [
        ([], b"", EmptyLlmAnswer),
        ([], b"data: [DONE]\n\n", EmptyLlmAnswer),
        (BEGIN, b"", LlmCut),
        (MESSAGE, b"data: [DONE]\n\n", LlmCut),
        (BEGIN, b"data: {\n\n", InvalidLlmResponse),
        ([*BEGIN, {"type": "error", "code": "server_error", "message": "m"}], b"", LlmCut),
        ([{"error": {"type": "rate_limit_error", "message": "slow"}}], b"", LlmLimited),
        (
            [event("failed", response={"error": {"code": "rate_limit_exceeded", "message": "m"}})],
            b"",
            LlmLimited,
        ),
    ],
)
async def test_a_stream_without_its_end_is_an_error(
    events: list[Any], end: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await read(events, end)


async def test_a_stream_without_end_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_stream, "MAX_EVENTS", 10_000)
    with pytest.raises(InvalidLlmResponse, match="longer than"):
        await read([DELTAS[0]] * 200)


async def test_invalid_events_are_not_passed_on() -> None:
    odd: list[Any] = [{"type": "x\nevent: y"}, {"type": 3}, [1], "text", {"no": "type"}]
    passed_on, response = await read([*odd, DELTAS[0], COMPLETED])
    assert passed_on == [DELTAS[0]]
    assert response == ANSWER
    hostile: list[dict[str, Any]] = [
        {"type": "x\nevent: y"},
        {"type": 3},
        {},
        {**DELTAS[0], "output_index": "x"},
    ]
    events = write([LlmText(lines_of(*hostile), 0)], ANSWER)
    assert "x\nevent: y" not in [each["type"] for each in events]


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_the_servers_events_go_on_as_they_are(size: int) -> None:
    begin = [CREATED, ADDED, PART_ADDED]
    text = lines_of(*begin, *DELTAS, TEXT_DONE, PART_DONE, ITEM_DONE)
    pieces = [LlmText(text[at : at + size], at) for at in range(0, len(text), size)]
    events = write(pieces, ANSWER)
    for each in events:
        del each["sequence_number"]
    assert events[0] == CREATED
    assert events[1]["type"] == "response.in_progress"
    assert events[2 : len(MESSAGE)] == MESSAGE[2:]
    assert [each["type"].removeprefix("response.") for each in events[len(MESSAGE) :]] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[-1] == COMPLETED


@pytest.mark.parametrize("count", range(len(MESSAGE)))
def test_missing_events_are_made_from_the_answer(count: int) -> None:
    sent = [each for each in MESSAGE if each["type"] != "response.in_progress"][:count]
    text = lines_of(*sent)
    events = write([LlmText(text, 0), LlmText("{}\n", len(text) + 1)], ANSWER)
    kinds = [each["type"].removeprefix("response.") for each in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert text_of(events) == TEXT
    for once in ("created", "content_part.added", "content_part.done", "completed"):
        assert kinds.count(once) == 1
    assert kinds.count("output_item.done") == 2


def test_an_answer_that_began_anew_as_another_one_is_an_error() -> None:
    text = lines_of(CREATED, ADDED, PART_ADDED, DELTAS[0])
    pieces = [LlmText(text, 0), LlmText(text, 0)]
    assert text_of(write(pieces, ANSWER)) == TEXT  # the same again
    other = {**ITEM, "content": [{**PART, "text": "It falls."}]}
    for output in ([other], [CALL], []):
        events = write(pieces, {**ANSWER, "output": output})
        assert events[-1]["type"] == "error"
        assert "began anew" in events[-1]["message"]
        assert events[-1]["error"]["code"] == events[-1]["code"] == "model_failed"


def test_a_line_without_end_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_events, "MAX_LINE", 1_000)
    events = write([LlmText("x" * 600, at) for at in (0, 600, 1_200)], ANSWER)
    assert events[-1]["type"] == "response.completed"
    broken = write([LlmText("nothing\n" + lines_of(*DELTAS), 0)], ANSWER)
    assert text_of(broken) == TEXT


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
async def test_a_stream_is_known_by_its_beginning_where_its_content_type_hides_it(
    mark: bytes,
) -> None:
    body = mark + b"".join(
        b"event: x\ndata: %b\n\n" % json.dumps(each).encode() for each in [*MESSAGE, COMPLETED]
    )
    response = httpx.Response(200, headers={"content-type": "text/plain"}, content=body)
    lines: list[str] = []
    assert await read_response_stream(response, CompletionReader("m"), lines.append) == ANSWER
    assert lines
