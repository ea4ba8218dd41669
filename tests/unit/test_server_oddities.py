"""Streams in the forms of well-known servers, with what is odd about each; written for these tests,
not recorded."""

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
class Response:
    """What the reader takes of the SDK's response."""

    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.body), 7):
            yield self.body[at : at + 7]


def delta(content: Any = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chunk with a piece of an answer."""
    fields = {"content": content, **more.pop("delta", {})}
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason, **more}]}


def calls(*tools: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return delta(reason=reason, delta={"tool_calls": list(tools)})


def call(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    name_field = {"name": name} if name is not None else {}
    function = {**name_field, "arguments": arguments}
    return {"index": index, "id": call_id, "type": "function", "function": function}


def stream(*chunks: dict[str, Any] | str, end: str = "data: [DONE]\n\n") -> bytes:
    """Return chunks as the events of a stream; a text is sent as it is."""
    parts = [x if isinstance(x, str) else f"data: {json.dumps(x)}\n\n" for x in chunks]
    return ("".join(parts) + end).encode()


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
AZURE_FILTER = {"hate": {"filtered": False, "severity": "safe"}}
TEXTS = {
    "Azure: reports of its filter before, between and after": stream(
        {"choices": [], "model": "", "object": "", "prompt_filter_results": [{"prompt_index": 0}]},
        delta("", delta={"role": "assistant"}, content_filter_results={}),
        delta("The tide ", content_filter_results=AZURE_FILTER),
        delta("rises."),
        {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"start": 0}}]},
        delta(None, "stop", content_filter_results={}),
        {"choices": [], "usage": USAGE},
    ),
    "vLLM: usage in each chunk, and a stop_reason": stream(
        {**delta("", delta={"role": "assistant"}), "usage": {**USAGE, "completion_tokens": 0}},
        {**delta("The tide "), "usage": {**USAGE, "completion_tokens": 2}},
        {**delta("rises.", "stop", stop_reason=None, token_ids=None), "usage": USAGE},
        {"choices": [], "usage": USAGE},
    ),
    "Ollama: the role in each chunk, and an empty last one": stream(
        delta("The tide ", delta={"role": "assistant"}),
        delta("rises.", delta={"role": "assistant"}),
        {**delta("", "stop", delta={"role": "assistant"}), "system_fingerprint": "fp_ollama"},
        {"choices": [], "usage": USAGE},
    ),
    "LM Studio: usage and statistics with the last piece, which has no delta": stream(
        delta("The tide "),
        delta("rises."),
        {**delta(None, "stop", delta={}), "usage": USAGE, "stats": {"tokens_per_second": 9.5}},
    ),
    "llama.cpp: timings, and no space behind the colon": stream(
        delta("The tide "),
        "data:" + json.dumps({**delta("rises."), "timings": {"prompt_n": 9}}) + "\r\n\r\n",
        {**delta(None, "stop"), "usage": USAGE},
    ),
    "OpenRouter: comments while it waits": stream(
        ": OPENROUTER PROCESSING\n\n",
        delta("The tide "),
        ": OPENROUTER PROCESSING\n\n",
        {**delta("rises."), "provider": "X"},
        {**delta("", "stop", native_finish_reason="end_turn"), "usage": USAGE},
    ),
    "no mark at the end": stream(
        delta("The tide "), {**delta("rises.", "stop"), "usage": USAGE}, end=""
    ),
}
TOOLS = {
    "Ollama: all calls have the number 0, and arrive whole": stream(
        calls(call(0, "call_a", "tide", '{"at": "Brest"}')),
        calls(call(0, "call_b", "now", "{}"), reason="tool_calls"),
    ),
    "Ollama: both in one chunk": stream(
        calls(call(0, "call_a", "tide", '{"at": "Brest"}'), call(0, "call_b", "now", "{}")),
        delta("", "tool_calls"),
    ),
    "vLLM: a new id for each piece, and pieces of arguments": stream(
        calls(call(0, "call_a", "tide", "")),
        calls(call(0, "call_x", None, '{"at": ')),
        calls(call(0, "call_a", None, '"Brest"}')),
        calls(call(1, "call_b", "now", "{}")),
        delta("", "tool_calls"),
    ),
    "OpenAI: the id with the first piece alone": stream(
        calls(call(0, "call_a", "tide", "")),
        calls({"index": 0, "function": {"arguments": '{"at": "Brest"}'}}),
        calls(call(1, "call_b", "now", "")),
        calls({"index": 1, "function": {"arguments": "{}"}}),
        delta(None, "tool_calls"),
    ),
    "Gemini: no number at all, and `stop` at the end": stream(
        calls({"id": "call_a", "function": {"name": "tide", "arguments": '{"at": "Brest"}'}}),
        calls({"id": "call_b", "function": {"name": "now", "arguments": "{}"}}, reason="stop"),
    ),
}
BROKEN: dict[str, tuple[bytes, type[Exception], str]] = {
    "vLLM: an error as a chunk of its own kind": (
        stream({"object": "error", "message": "Engine died", "type": "InternalServerError"}),
        LlmCut,
        "Engine died",
    ),
    "LM Studio: an event of the kind `error`, whose error is a text": (
        stream(delta("The"), 'event: error\ndata: {"error": "Model unloaded."}\n\n', end=""),
        LlmCut,
        "Model unloaded",
    ),
    "OpenRouter: an error beside a choice": (
        stream(delta("The"), {**delta("", "error"), "error": {"code": 502, "message": "gone"}}),
        LlmCut,
        "gone",
    ),
    "llama.cpp: an error that is no event": (
        stream('error: {"code": 500, "message": "context shift"}\n\n', end=""),
        EmptyLlmAnswer,
        "empty",
    ),
    "Azure: its filter ends the answer": (
        stream(delta("The"), delta("", "content_filter", content_filter_results=AZURE_FILTER)),
        LlmDeclined,
        "content filter",
    ),
}


async def read(body: bytes, *, keep_all: bool = False) -> Completion:
    return await CompletionReader("asked", keep_all=keep_all).read(Response(body))


@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize("body", TEXTS.values(), ids=TEXTS)
async def test_a_text_is_read(body: bytes, keep_all: bool) -> None:
    answer = await read(body, keep_all=keep_all)
    assert (answer.text, answer.finish_reason) == ("The tide rises.", "stop")
    assert answer.usage == {"prompt_tokens": 9, "completion_tokens": 3}
    assert answer.body is None or answer.body["choices"][0]["message"]["content"] == answer.text


@pytest.mark.parametrize("body", TOOLS.values(), ids=TOOLS)
async def test_calls_of_tools_are_read(body: bytes) -> None:
    answer = await read(body, keep_all=True)
    assert answer.body is not None
    tool_calls = [
        (x["id"], x["function"]["name"], x["function"]["arguments"])
        for x in answer.body["choices"][0]["message"]["tool_calls"]
    ]
    assert tool_calls == [("call_a", "tide", '{"at": "Brest"}'), ("call_b", "now", "{}")]


@pytest.mark.parametrize(("body", "error", "words"), BROKEN.values(), ids=BROKEN)
async def test_an_error_is_read(body: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await read(body)


@pytest.mark.parametrize(
    "sign_of_life",
    [b": ping\n\n", b"data: [DONE]\n\n", b'data: {"choices": []}\n\n', stream(delta(""), end="")],
)
@pytest.mark.parametrize("reason", ["stop", None])
async def test_signs_of_life_after_the_end_do_not_keep_the_answer(
    sign_of_life: bytes, reason: str | None
) -> None:
    class Endless(Response):
        async def aiter_bytes(self) -> AsyncIterator[bytes]:
            yield self.body
            while True:
                await asyncio.sleep(0)
                yield sign_of_life

    whole = stream(delta("The tide rises.", reason), {"choices": [], "usage": USAGE})
    reader = CompletionReader("asked", keep_all=True, end_timeout=0.05)
    answer = await asyncio.wait_for(reader.read(Endless(whole)), 20)
    assert (answer.text, answer.finish_reason) == ("The tide rises.", reason)
    assert answer.usage == {"prompt_tokens": 9, "completion_tokens": 3}
