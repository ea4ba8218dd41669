"""A server that speaks Anthropic's Messages API, and what its answers and errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import SecretStr

from switchyard.services.common.errors import DependencyUnavailable
from switchyard.services.common.settings.llm import LlmServer
from switchyard.services.llm.completion_reader import Completion
from switchyard.services.llm.llm_errors import (
    InvalidLlmResponse,
    LlmContextTooLong,
    LlmCut,
    LlmDeclined,
    LlmLimited,
    LlmRefused,
    LlmUnavailable,
)
from switchyard.services.llm.parameters import OWN_SCHEMA_NAME
from switchyard.services.llm.server_client import ServerClient
from tests.support.anthropic_server import (
    ANSWER,
    KEY,
    MODEL,
    AnthropicServer,
    answers,
    api_error,
    events_of,
    streams,
    text_block,
    thinking,
    tool_use,
)
from tests.support.api_server import client_of, serving, until_connected
from tests.support.llm_server import FakeLlmServer
from tests.support.llm_server import answers as openai_answers
from tests.support.site import Behaviour, cut_in_the_middle, says
from tests.support.system import System

CHAT: Any = [{"role": "user", "content": "What is a tide?"}]
TOOL: Any = {"type": "function", "function": {"name": "tide_at", "parameters": {"type": "object"}}}


@pytest.fixture
def claude() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def provider(claude: AnthropicServer, **options: Any) -> LlmServer:
    defaults = {"name": "claude", "api": "anthropic", "model": MODEL, "api_key": SecretStr(KEY)}
    return LlmServer.model_validate({**defaults, "base_url": claude.url, **options})


async def ask(
    claude: AnthropicServer, *, keep_all: bool = False, pieces: list[str] | None = None, **chat: Any
) -> Completion:
    server = provider(claude, stream=chat.pop("streams", None))
    on_text = None if pieces is None else pieces.append
    async with ServerClient.connect(server, 5) as client:
        fields = {"messages": CHAT, **chat}
        response = await client.ask(fields, timeout=10, on_text=on_text, keep_all=keep_all)
    return response.answer


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_is_read(claude: AnthropicServer, streamed: bool) -> None:
    claude.next(answers(thinking("The moon."), text_block("The tide "), text_block("rises.")))
    answer = await ask(claude, streams=streamed)
    assert (answer.text, answer.model, answer.finish_reason) == (ANSWER, "claude-1", "stop")
    assert answer.usage == {"prompt_tokens": 47, "completion_tokens": 7, "cached_tokens": 40}
    (request,) = claude.requests
    assert request.headers["x-api-key"] == KEY
    assert "stream_options" not in request.json


@pytest.mark.parametrize("streamed", [True, False])
async def test_tool_calls_and_reasoning_are_part_of_the_answer(
    claude: AnthropicServer, streamed: bool
) -> None:
    blocks = (thinking("Look."), tool_use("t1", "tide_at", port="Brest"), tool_use("t2", "now"))
    claude.next(answers(*blocks, stop_reason="tool_use"))
    answer = await ask(claude, streams=streamed, keep_all=True, tools=[TOOL])
    assert answer.body is not None
    (choice,) = answer.body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Look.",
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "tide_at", "arguments": '{"port": "Brest"}'},
            },
            {"id": "t2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }
    assert answer.body["id"] == "msg_1"
    assert answer.body["usage"]["total_tokens"] == 54


async def test_text_is_streamed_while_it_is_written(claude: AnthropicServer) -> None:
    pieces: list[str] = []
    await ask(claude, pieces=pieces)
    assert len(pieces) > 1
    assert "".join(pieces) == ANSWER


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
async def test_an_answer_cut_at_its_limit_is_marked_as_incomplete(
    claude: AnthropicServer, reason: str
) -> None:
    claude.next(answers(text_block("The"), stop_reason=reason))
    assert not (await ask(claude)).is_complete


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
BROKEN = {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}
BEGINNING = events_of(text_block(ANSWER))[:5]


@pytest.mark.parametrize(
    ("behaviours", "error", "words"),
    [
        ([api_error(529, "overloaded_error", "Overloaded")], LlmLimited, "529: Overloaded"),
        ([api_error(429, "rate_limit_error", Retry_After="17")], LlmLimited, "429"),
        (
            [api_error(400, "invalid_request_error", "Your credit balance is too low to …")],
            LlmLimited,
            "credit",
        ),
        ([api_error(402, "billing_error")], LlmLimited, "402"),
        (
            [api_error(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")],
            LlmContextTooLong,
            "too long",
        ),
        (
            [
                api_error(
                    400,
                    "invalid_request_error",
                    "input length and `max_tokens` exceed context limit: 9 > 8",
                )
            ],
            LlmContextTooLong,
            "limit",
        ),
        (
            [api_error(401, "authentication_error", "invalid x-api-key")],
            LlmRefused,
            "invalid x-api-key",
        ),
        ([api_error(404, "not_found_error", "model: claude-0")], LlmRefused, "claude-0"),
        ([api_error(500, "api_error")], LlmUnavailable, "500"),
        ([streams(*BEGINNING, OVERLOADED)], LlmLimited, "Overloaded"),
        ([streams(*BEGINNING, BROKEN)] * 2, LlmCut, "Internal server error"),
        ([streams(*BEGINNING)] * 2, LlmCut, "ends in the middle"),
        ([streams(*BEGINNING, claimed_length=9_999)] * 2 + [cut_in_the_middle()] * 3, LlmCut, ""),
        ([answers(stop_reason="end_turn")] * 2, InvalidLlmResponse, "is empty"),
        ([answers(text_block("No"), stop_reason="refusal")], LlmDeclined, "declines"),
        ([says({"content": "x"})], InvalidLlmResponse, 'it answered "{"content": "x"}"'),
        (
            [says("data: [1]\n\n", "text/event-stream")],
            InvalidLlmResponse,
            "does not speak Anthropic's API",
        ),
        (
            [streams({"type": "content_block_delta", "index": [], "delta": {"partial_json": "1"}})]
            * 2,
            InvalidLlmResponse,
            "empty",
        ),
    ],
)
async def test_errors_are_translated_for_the_job(
    claude: AnthropicServer,
    no_delays: None,
    behaviours: list[Behaviour],
    error: type[Exception],
    words: str,
) -> None:
    claude.next(*behaviours)
    with pytest.raises(error) as caught:
        await ask(claude)
    assert words in str(caught.value)


async def test_the_pause_is_as_long_as_the_server_asks_for(claude: AnthropicServer) -> None:
    claude.next(api_error(429, "rate_limit_error", Retry_After="17"))
    with pytest.raises(DependencyUnavailable) as caught:
        await ask(claude)
    assert caught.value.after == 17


async def test_a_schema_that_the_server_refuses_is_in_the_prompt_alone(
    claude: AnthropicServer,
) -> None:
    """A temperature that the model does not take is left out, too."""
    claude.next(
        api_error(400, "invalid_request_error", "output_config.format.schema: not supported"),
        api_error(400, "invalid_request_error", "`temperature` is deprecated for this model."),
    )
    schema = {"name": OWN_SCHEMA_NAME, "schema": {"type": "object"}}
    form = {"type": "json_schema", "json_schema": schema}
    await ask(claude, response_format=form, temperature=0)
    first, second, third = (each.json for each in claude.requests)
    assert first["output_config"]["format"]["schema"] == {"type": "object"}
    assert "output_config" not in second
    assert third.keys() == {"model", "messages", "max_tokens", "stream"}


async def test_unchanged_programs_of_openais_client_are_answered(
    system: System, claude: AnthropicServer, llm: FakeLlmServer
) -> None:
    """They go through the lanes. Requests that Anthropic's API does not have are sent to another
    server, or refused."""
    other_server = LlmServer(name="own", base_url=llm.url, model="llama", aliases=(MODEL,), order=1)
    servers = {"llm_providers": (provider(claude, aliases=("only",)), other_server)}
    system.settings = system.settings.model_copy(update=servers)
    await system.start_worker("llm")
    claude.always(
        answers(
            text_block("Look: "), tool_use("t1", "tide_at", port="Brest"), stop_reason="tool_use"
        )
    )
    async with serving(system.settings) as api, client_of(api) as client:
        await until_connected(api)
        async with client.chat.completions.stream(
            model=MODEL, messages=CHAT, tools=[TOOL], stream_options={"include_usage": True}
        ) as events:
            answer: Any = await events.get_final_completion()
        message = answer.choices[0].message
        assert message.content == "Look: "
        assert message.tool_calls[0].function.arguments == '{"port": "Brest"}'
        assert answer.usage.prompt_tokens_details.cached_tokens == 40
        assistant_message = message.model_dump(exclude={"parsed"}, exclude_none=True)
        for each in assistant_message["tool_calls"]:
            each["function"].pop("parsed_arguments", None)
        result: Any = {"role": "tool", "tool_call_id": "t1", "content": "high"}
        claude.always(None)
        answer = await client.chat.completions.create(
            model=MODEL, messages=[*CHAT, assistant_message, result], tools=[TOOL]
        )
        assert answer.choices[0].message.content == ANSWER
        assert [each["role"] for each in claude.requests[-1].json["messages"]] == [
            *("user", "assistant", "user")
        ]

        llm.next(openai_answers("from the other"))
        answer = await client.chat.completions.create(model=MODEL, messages=CHAT, n=2)
        assert answer.choices[0].message.content == "from the other"
        with pytest.raises(openai.BadRequestError, match="parameter n: leave it out"):
            await client.chat.completions.create(model="only", messages=CHAT, n=2)
        with pytest.raises(openai.BadRequestError, match="no /embeddings"):
            await client.embeddings.create(model="only", input="a")
    assert len(claude.requests) == 2
