"""`/v1/responses` streamed, as OpenAI's own client reads it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from switchyard.services.common.settings.llm import LlmServer
from tests.support.api_server import RunningApi, client_of, serving, until_connected
from tests.support.llm_server import MODEL, FakeLlmServer, cut_in_the_middle, fails, says
from tests.support.site import Behaviour, Exchange, Request
from tests.support.system import System

TEXT = "The sea rises."
PART = {"type": "output_text", "text": TEXT, "annotations": []}
ITEM = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "content": [PART],
    "status": "completed",
}
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 14,
}
ANSWER = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "m",
    "output": [ITEM],
    "usage": USAGE,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
POSITION = {"output_index": 0, "item_id": "m1", "content_index": 0}
BEGIN: list[dict[str, Any]] = [
    {"type": "response.created", "response": {**ANSWER, "status": "in_progress", "output": []}},
    {"type": "response.in_progress", "response": {**ANSWER, "status": "in_progress"}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "content": []}},
    {"type": "response.content_part.added", **POSITION, "part": {**PART, "text": ""}},
    {"type": "response.output_text.delta", **POSITION, "delta": "The sea ", "logprobs": []},
]
END: list[dict[str, Any]] = [
    {"type": "response.output_text.delta", **POSITION, "delta": "rises.", "logprobs": []},
    {"type": "response.output_text.done", **POSITION, "text": TEXT, "logprobs": []},
    {"type": "response.content_part.done", **POSITION, "part": PART},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
    {"type": "response.completed", "response": ANSWER},
]


def streams(*events: dict[str, Any], wait: threading.Event | None = None) -> Behaviour:
    """Write a stream of events; with `wait`, write the rest after the first output once it is
    set."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Type", "text/event-stream")
        exchange.end_headers()
        exchange.close_connection = True
        for event in events:
            data = json.dumps(event)
            exchange.wfile.write(f"event: {event['type']}\ndata: {data}\n\n".encode())
            exchange.wfile.flush()
            if wait is not None and event == BEGIN[-1]:
                assert wait.wait(60)

    return behave


@pytest.fixture(params=[False, True], ids=["lanes", "direct"])
async def api(
    request: pytest.FixtureRequest, system: System, llm: FakeLlmServer
) -> AsyncIterator[RunningApi]:
    own = LlmServer(name="own", base_url=llm.url, model=MODEL, responses=True)
    system.settings = system.settings.model_copy(update={"llm_providers": (own,)})
    if not request.param:
        await system.start_worker("llm")
    async with serving(system.settings, llm_direct=request.param) as opened:
        await until_connected(opened)
        yield opened


async def test_events_are_streamed_while_the_model_writes_and_for_a_stored_answer(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    first_piece_read = threading.Event()
    llm.next(streams(*BEGIN, *END, wait=first_piece_read))
    parameters: dict[str, Any] = {"model": MODEL, "input": "High?", "instructions": "Be short."}
    streamed: list[list[Any]] = []
    async with client_of(api) as client:
        for _ in range(2):
            raw = await client.responses.with_raw_response.create(**parameters, stream=True)
            events = []
            async for event in raw.parse():
                events.append(event)
                if event.type == "response.output_text.delta":
                    first_piece_read.set()  # only then the server writes on
            streamed.append(events)
        live, stored = streamed
        assert raw.headers["x-cache"] == "HIT"
        assert raw.headers["x-job-id"]
        async with client.responses.stream(**parameters) as helper:
            assert (await helper.get_final_response()).output_text == TEXT
    assert [each.type for each in live] == [each["type"] for each in (*BEGIN, *END)]
    for events in streamed:
        assert [each.sequence_number for each in events] == list(range(len(events)))
        assert "".join(x.delta for x in events if x.type.endswith(".delta")) == TEXT
        assert events[-1].response.usage.output_tokens == 5
    # The text of a stored answer is one piece.
    kinds = [each["type"] for each in (*BEGIN, *END)]
    kinds.remove("response.output_text.delta")
    assert [each.type for each in stored] == kinds
    assert len(llm.requests) == 1
    assert llm.requests[0].json == {**parameters, "stream": True}


async def test_a_stream_that_breaks_continues_if_the_next_answer_is_the_same(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    other = {**ANSWER, "output": [{**ITEM, "content": [{**PART, "text": "It falls."}]}]}
    async with client_of(api) as client:

        async def deltas_of(question: str) -> str:
            events = await client.responses.create(model=MODEL, input=question, stream=True)
            return "".join(
                [x.delta async for x in events if x.type == "response.output_text.delta"]
            )

        llm.next(streams(*BEGIN), streams(*BEGIN, *END))
        assert await deltas_of("the same again") == TEXT
        llm.next(streams(*BEGIN[:-1]), says(json.dumps(ANSWER).encode()))
        assert await deltas_of("broken before its first piece") == TEXT
        assert "stream" not in llm.requests[-1].json
        llm.next(streams(*BEGIN), streams(END[-1] | {"response": other}))
        with pytest.raises(openai.APIError, match="began anew"):
            await deltas_of("another answer")
        too_long = fails(400, "maximum context length is 4096 tokens")
        llm.next(cut_in_the_middle(), too_long)
        with pytest.raises(openai.BadRequestError) as refused:
            await deltas_of("refused")
        assert refused.value.code == "context_length_exceeded"
        llm.next(fails(400, "stream is not supported"), says(json.dumps(ANSWER).encode()))
        assert await deltas_of("no streams here") == TEXT
        llm.next(says(json.dumps(ANSWER).encode()))
        assert await deltas_of("nor from now on") == TEXT
        assert "stream" not in llm.requests[-1].json


async def test_a_stream_without_end_ends_at_the_time_limit(
    system: System, llm: FakeLlmServer
) -> None:
    own = LlmServer(name="own", base_url=llm.url, model=MODEL, responses=True)
    overrides = {"llm_providers": (own,), "llm_timeout": 1.0}
    system.settings = system.settings.model_copy(update=overrides)
    never_set = threading.Event()
    llm.always(streams(*BEGIN, wait=never_set))
    async with serving(system.settings, llm_direct=True) as api:
        await until_connected(api)
        async with client_of(api) as client:
            began = time.monotonic()
            events = await client.responses.create(
                model=MODEL, input="High?", stream=True, extra_headers={"X-Job-Expires-In": "2"}
            )
            with pytest.raises(openai.APIError):
                async for _ in events:
                    pass
            assert time.monotonic() - began < 30
    never_set.set()
