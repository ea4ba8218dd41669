"""Answers of model servers are read event by event, however their bytes are split."""

from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from switchyard.services.llm.completion_reader import CompletionReader, event_data
from switchyard.services.llm.llm_errors import LlmCut


async def events_of(parts: Sequence[bytes]) -> list[bytes]:
    async def read() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return [each async for each in event_data(read())]


@pytest.mark.parametrize(
    "stream",
    [
        'data: {"a": "é"}\n\ndata: [1]\n\n',
        'data: {"a": "é"}\r\n\r\ndata: [1]\r\n\r\n',
        'data: {"a": "é"}\r\rdata: [1]\r\r',
        'data: {"a": "é"}\r\n\ndata: [1]\n\r\n',
        '\ufeffdata: {"a": "é"}\n\n: alive\n\ndata: [1]\n\n',
        'event: x\ndata: {"a": "é"}\nid: 1\n\nretry: 5\ndata: [1]',
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_an_event_is_the_same_wherever_it_is_cut(stream: str, size: int) -> None:
    body = stream.encode()
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    assert await events_of(parts) == ['{"a": "é"}'.encode(), b"[1]"]


async def test_a_last_event_that_ends_within_a_character_is_dropped() -> None:
    assert await events_of(["data: [1]\n\ndata: {é".encode()[:-1]]) == [b"[1]"]


def test_a_part_whose_type_is_no_string_is_ignored() -> None:
    parts = [{"type": {}, "text": "?"}, {"type": ["text"], "text": "?"}]
    message = {"content": [*parts, {"type": "text", "text": "high"}]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    assert CompletionReader("m").read_whole({"choices": [choice]}).text == "high"


async def test_an_error_whose_type_is_no_string_cuts_the_answer() -> None:
    response = httpx.Response(
        200,
        headers={"content-type": "text/event-stream"},
        content=b'data: {"error": {"type": ["overloaded_error"], "message": "full"}}\n\n',
    )
    with pytest.raises(LlmCut, match="full"):
        await CompletionReader("m").read(response)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_bytes_that_are_not_utf_8_are_replaced(is_stream: bool) -> None:
    part = b'{"content": "caf\xc3 au lait"}'
    choice = b'{"index": 0, "finish_reason": "stop", "%b": %b}'
    body = b'{"choices": [%b]}' % (choice % (b"delta" if is_stream else b"message", part))
    content_type = "text/event-stream" if is_stream else "application/json"
    content = b"data: %b\n\ndata: [DONE]\n\n" % body if is_stream else body
    response = httpx.Response(200, headers={"content-type": content_type}, content=content)
    assert (await CompletionReader("m").read(response)).text == "caf\ufffd au lait"
