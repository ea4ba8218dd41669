"""Streams in the forms of well-known servers, with the peculiarities of each; written for these
tests, not recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from switchyard.services.llm.completion_reader import Completion, CompletionReader
from switchyard.services.llm.llm_errors import EmptyLlmAnswer, LlmCut, LlmDeclined


@dataclass
class FakeResponse:
    """The attributes of the SDK's response that the reader uses."""

    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.body), 7):
            yield self.body[start : start + 7]


def make_chunk(content: Any = None, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk with a piece of an answer."""
    delta_fields = {"content": content, **fields.pop("delta", {})}
    return {"choices": [{"index": 0, "delta": delta_fields, "finish_reason": reason, **fields}]}


def make_call_chunk(*tools: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return make_chunk(reason=reason, delta={"tool_calls": list(tools)})


def make_tool_call(
    index: int, call_id: str | None, name: str | None, arguments: str
) -> dict[str, Any]:
    name_field = {"name": name} if name is not None else {}
    function = {**name_field, "arguments": arguments}
    return {"index": index, "id": call_id, "type": "function", "function": function}


def make_stream(*chunks: dict[str, Any] | str, end: str = "data: [DONE]\n\n") -> bytes:
    """Return chunks as the events of a stream; a text is sent as it is."""
    parts = [x if isinstance(x, str) else f"data: {json.dumps(x)}\n\n" for x in chunks]
    return ("".join(parts) + end).encode()


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
AZURE_FILTER = {"hate": {"filtered": False, "severity": "safe"}}
TEXT_STREAMS = {
    "Azure: reports of its filter before, between and after": make_stream(
        {"choices": [], "model": "", "object": "", "prompt_filter_results": [{"prompt_index": 0}]},
        make_chunk("", delta={"role": "assistant"}, content_filter_results={}),
        make_chunk("The tide ", content_filter_results=AZURE_FILTER),
        make_chunk("rises."),
        {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"start": 0}}]},
        make_chunk(None, "stop", content_filter_results={}),
        {"choices": [], "usage": USAGE},
    ),
    "vLLM: usage in each chunk, and a stop_reason": make_stream(
        {**make_chunk("", delta={"role": "assistant"}), "usage": {**USAGE, "completion_tokens": 0}},
        {**make_chunk("The tide "), "usage": {**USAGE, "completion_tokens": 2}},
        {**make_chunk("rises.", "stop", stop_reason=None, token_ids=None), "usage": USAGE},
        {"choices": [], "usage": USAGE},
    ),
    "Ollama: the role in each chunk, and an empty last one": make_stream(
        make_chunk("The tide ", delta={"role": "assistant"}),
        make_chunk("rises.", delta={"role": "assistant"}),
        {**make_chunk("", "stop", delta={"role": "assistant"}), "system_fingerprint": "fp_ollama"},
        {"choices": [], "usage": USAGE},
    ),
    "LM Studio: usage and statistics with the last piece, which has no delta": make_stream(
        make_chunk("The tide "),
        make_chunk("rises."),
        {**make_chunk(None, "stop", delta={}), "usage": USAGE, "stats": {"tokens_per_second": 9.5}},
    ),
    "llama.cpp: timings, and no space behind the colon": make_stream(
        make_chunk("The tide "),
        "data:" + json.dumps({**make_chunk("rises."), "timings": {"prompt_n": 9}}) + "\r\n\r\n",
        {**make_chunk(None, "stop"), "usage": USAGE},
    ),
    "OpenRouter: comments while it waits": make_stream(
        ": OPENROUTER PROCESSING\n\n",
        make_chunk("The tide "),
        ": OPENROUTER PROCESSING\n\n",
        {**make_chunk("rises."), "provider": "X"},
        {**make_chunk("", "stop", native_finish_reason="end_turn"), "usage": USAGE},
    ),
    "no mark at the end": make_stream(
        make_chunk("The tide "), {**make_chunk("rises.", "stop"), "usage": USAGE}, end=""
    ),
}
TOOL_STREAMS = {
    "Ollama: all calls have the number 0, and arrive whole": make_stream(
        make_call_chunk(make_tool_call(0, "call_a", "tide", '{"at": "Brest"}')),
        make_call_chunk(make_tool_call(0, "call_b", "now", "{}"), reason="tool_calls"),
    ),
    "Ollama: both in one chunk": make_stream(
        make_call_chunk(
            make_tool_call(0, "call_a", "tide", '{"at": "Brest"}'),
            make_tool_call(0, "call_b", "now", "{}"),
        ),
        make_chunk("", "tool_calls"),
    ),
    "vLLM: a new id for each piece, and pieces of arguments": make_stream(
        make_call_chunk(make_tool_call(0, "call_a", "tide", "")),
        make_call_chunk(make_tool_call(0, "call_x", None, '{"at": ')),
        make_call_chunk(make_tool_call(0, "call_a", None, '"Brest"}')),
        make_call_chunk(make_tool_call(1, "call_b", "now", "{}")),
        make_chunk("", "tool_calls"),
    ),
    "OpenAI: the id with the first piece alone": make_stream(
        make_call_chunk(make_tool_call(0, "call_a", "tide", "")),
        make_call_chunk({"index": 0, "function": {"arguments": '{"at": "Brest"}'}}),
        make_call_chunk(make_tool_call(1, "call_b", "now", "")),
        make_call_chunk({"index": 1, "function": {"arguments": "{}"}}),
        make_chunk(None, "tool_calls"),
    ),
    "Gemini: no number at all, and `stop` at the end": make_stream(
        make_call_chunk(
            {"id": "call_a", "function": {"name": "tide", "arguments": '{"at": "Brest"}'}}
        ),
        make_call_chunk(
            {"id": "call_b", "function": {"name": "now", "arguments": "{}"}}, reason="stop"
        ),
    ),
}
ERROR_STREAMS: dict[str, tuple[bytes, type[Exception], str]] = {
    "vLLM: an error as a chunk of its own kind": (
        make_stream({"object": "error", "message": "Engine died", "type": "InternalServerError"}),
        LlmCut,
        "Engine died",
    ),
    "LM Studio: an event of the kind `error`, whose error is a text": (
        make_stream(
            make_chunk("The"), 'event: error\ndata: {"error": "Model unloaded."}\n\n', end=""
        ),
        LlmCut,
        "Model unloaded",
    ),
    "OpenRouter: an error beside a choice": (
        make_stream(
            make_chunk("The"),
            {**make_chunk("", "error"), "error": {"code": 502, "message": "gone"}},
        ),
        LlmCut,
        "gone",
    ),
    "llama.cpp: an error that is no event": (
        make_stream('error: {"code": 500, "message": "context shift"}\n\n', end=""),
        EmptyLlmAnswer,
        "empty",
    ),
    "Azure: its filter ends the answer": (
        make_stream(
            make_chunk("The"), make_chunk("", "content_filter", content_filter_results=AZURE_FILTER)
        ),
        LlmDeclined,
        "content filter",
    ),
}


async def read_completion(body: bytes, *, keep_all: bool = False) -> Completion:
    return await CompletionReader("asked", keep_all=keep_all).read(FakeResponse(body))


@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize("body", TEXT_STREAMS.values(), ids=TEXT_STREAMS)
async def test_a_text_is_read(body: bytes, keep_all: bool) -> None:
    answer = await read_completion(body, keep_all=keep_all)
    assert (answer.text, answer.finish_reason) == ("The tide rises.", "stop")
    assert answer.usage == {"prompt_tokens": 9, "completion_tokens": 3}
    assert answer.body is None or answer.body["choices"][0]["message"]["content"] == answer.text


@pytest.mark.parametrize("body", TOOL_STREAMS.values(), ids=TOOL_STREAMS)
async def test_calls_of_tools_are_read(body: bytes) -> None:
    answer = await read_completion(body, keep_all=True)
    assert answer.body is not None
    tool_calls = [
        (x["id"], x["function"]["name"], x["function"]["arguments"])
        for x in answer.body["choices"][0]["message"]["tool_calls"]
    ]
    assert tool_calls == [("call_a", "tide", '{"at": "Brest"}'), ("call_b", "now", "{}")]


@pytest.mark.parametrize(("body", "error", "message"), ERROR_STREAMS.values(), ids=ERROR_STREAMS)
async def test_an_error_is_read(body: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await read_completion(body)


@pytest.mark.parametrize(
    "heartbeat",
    [
        b": ping\n\n",
        b"data: [DONE]\n\n",
        b'data: {"choices": []}\n\n',
        make_stream(make_chunk(""), end=""),
    ],
)
@pytest.mark.parametrize("reason", ["stop", None])
async def test_heartbeats_after_the_end_do_not_delay_the_answer(
    heartbeat: bytes, reason: str | None
) -> None:
    class Endless(FakeResponse):
        async def aiter_bytes(self) -> AsyncIterator[bytes]:
            yield self.body
            while True:
                await asyncio.sleep(0)
                yield heartbeat

    whole = make_stream(make_chunk("The tide rises.", reason), {"choices": [], "usage": USAGE})
    reader = CompletionReader("asked", keep_all=True, end_timeout=0.05)
    answer = await asyncio.wait_for(reader.read(Endless(whole)), 20)
    assert (answer.text, answer.finish_reason) == ("The tide rises.", reason)
    assert answer.usage == {"prompt_tokens": 9, "completion_tokens": 3}
