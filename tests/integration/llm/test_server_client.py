"""Answers and failures of model servers, and how a call ends with each."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Mapping

import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.llm.completion_reader import Completion
from switchyard.services.llm.llm_errors import (
    InvalidLlmResponse,
    LlmContextTooLong,
    LlmCut,
    LlmRefused,
    LlmUnavailable,
)
from switchyard.services.llm.model_client import ModelClient
from switchyard.services.llm.parameters import OWN_SCHEMA_NAME
from switchyard.services.llm.server_client import (
    CALLS_TO_KEEP_CHANGES,
    NETWORK_TRIES,
    ServerClient,
    open_api,
)
from tests.support import llm_server
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer
from tests.support.site import Behaviour, Exchange, Request, cut, endless, slow

QUESTION = [{"role": "user", "content": "What is a tide?"}]


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.services.llm.server_client.FIRST_RETRY_DELAY", 0.01)


@pytest.fixture
def llm_settings(llm: FakeLlmServer) -> Settings:
    return Settings(llm_base_url=llm.url, llm_model="test-model", llm_timeout=5)


CHAT = {"messages": QUESTION, "max_tokens": 100, "temperature": 0}


async def ask_model(settings: Settings, timeout: float = 10) -> Completion:
    (server_settings,) = settings.llm_servers
    async with ServerClient.connect(server_settings, settings.llm_timeout) as client:
        return (await client.ask(CHAT, timeout=timeout)).answer


async def test_a_question_is_sent_in_the_form_of_the_api(
    llm: FakeLlmServer, llm_settings: Settings
):
    key = SecretStr("sk-secret")
    answer = await ask_model(llm_settings.model_copy(update={"llm_api_key": key}))
    assert (answer.text, answer.model, answer.finish_reason) == (
        llm_server.ANSWER,
        "test-model",
        "stop",
    )
    assert answer.usage == {"prompt_tokens": 11, "completion_tokens": 7}
    (request,) = llm.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-secret"
    assert request.json == {
        "model": "test-model",
        "messages": QUESTION,
        "max_tokens": 100,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_another_services_key_is_not_sent(
    llm: FakeLlmServer, llm_settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    await ask_model(llm_settings)
    assert "somebody" not in str(llm.requests[0].headers)


async def test_thinking_aloud_is_not_part_of_the_answer(llm: FakeLlmServer, llm_settings: Settings):
    llm.next(llm_server.answers("<think>\nHmm.\n</think>\n\nWater."))
    assert (await ask_model(llm_settings)).text == "Water."


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        {"content": "The sea is wet, so:</think>\n\nWater."},
        {"content": "[THINK]What is it?[/THINK]Water."},
        {"content": "Water.", "reasoning_content": "The sea is wet."},
        {"content": "Water.", "reasoning": "The sea is wet."},
        {"content": [{"type": "text", "text": "Wat"}, {"type": "text", "text": "er."}]},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "The sea is wet."}]},
                {"type": "text", "text": "Water."},
            ]
        },
        {"content": {"type": "text", "text": "Water."}},
    ],
)
async def test_the_answer_is_what_the_model_says_and_not_its_reasoning(
    llm: FakeLlmServer, llm_settings: Settings, message: dict[str, object], streams: bool
):
    llm.next(llm_server.streams(message) if streams else llm_server.says_message(message))
    assert (await ask_model(llm_settings)).text == "Water."


async def test_reasoning_that_was_streamed_is_taken_back_and_is_not_streamed_again(
    llm: FakeLlmServer, llm_settings: Settings
):
    text_pieces: list[str] = []
    pieces = [{"content": each} for each in ("The sea ", "is wet", ".</thi", "nk>\n\nWa", "ter.")]
    llm.always(llm_server.streams(*pieces))
    (server_settings,) = llm_settings.llm_servers
    async with ServerClient.connect(server_settings, 5) as client:
        for _ in range(2):
            response = await client.ask(
                CHAT, timeout=10, on_text=text_pieces.append, restart=text_pieces.clear
            )
            assert response.answer.text == "Water."
            assert "".join(text_pieces) == "Water."
            text_pieces.clear()
        await client.ask(
            CHAT,
            timeout=10,
            on_text=text_pieces.append,
            restart=lambda: pytest.fail("streamed again"),
        )


@pytest.mark.parametrize("reason", [None, "", "null"])
@pytest.mark.parametrize("end", [b"", b'data: {"choices": [{"del'])
async def test_a_stream_that_ends_in_the_middle_is_no_answer(
    llm: FakeLlmServer, llm_settings: Settings, reason: str | None, end: bytes
):
    words = [{"content": f"{each} "} for each in ["Tides", "rise", "and", "fall", "twice", "a"]]
    llm.next(llm_server.streams(*words, chunk_finish_reason=reason, finish_reason=None, end=end))
    with pytest.raises(LlmUnavailable, match="ends in the middle"):
        await ask_model(llm_settings)


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data: [DONE]", b"data:[DONE]\r\n\r\n"])
async def test_the_regular_end_of_a_stream_is_the_end_of_its_answer(
    llm: FakeLlmServer, llm_settings: Settings, end: bytes
):
    llm.next(
        llm_server.streams(
            {"content": "Water."}, chunk_finish_reason="", finish_reason=None, end=end
        )
    )
    answer = await ask_model(llm_settings)
    assert (answer.text, answer.finish_reason, answer.is_complete) == ("Water.", None, True)


async def test_an_answer_without_a_finish_reason_is_cut_if_the_server_gave_some_before(
    llm: FakeLlmServer, llm_settings: Settings
):
    """llama-cpp-python's server stops an answer when the next request comes. It ends the stream
    with `[DONE]`, and gives no finish reason."""
    (server_settings,) = llm_settings.llm_servers
    async with ServerClient.connect(server_settings, 5) as client:
        await client.ask(CHAT, timeout=10)
        learned = client.learned
    stream_without_reason = llm_server.streams({"content": "Wat"}, finish_reason=None)
    async with ServerClient.connect(server_settings, 5) as second_client:
        second_client.adopt(learned)
        llm.next(stream_without_reason)
        with pytest.raises(LlmCut, match="ends in the middle"):
            await second_client.ask(CHAT, timeout=10, on_text=lambda _: None)


async def test_an_answer_that_ends_without_a_finish_reason_again_is_whole(
    llm: FakeLlmServer, llm_settings: Settings
):
    """The server gives no finish reason for this answer, though it does for others. The second
    time, no other request was sent for which it could have stopped the answer."""
    (server_settings,) = llm_settings.llm_servers
    stream_without_reason = llm_server.streams({"content": "Wat"}, finish_reason=None)
    async with ServerClient.connect(server_settings, 5) as client:
        await client.ask(CHAT, timeout=10)
        llm.next(stream_without_reason)
        with pytest.raises(LlmCut, match="ends in the middle"):
            await client.ask(CHAT, timeout=10, on_text=lambda _: None)
        llm.next(stream_without_reason)
        response = await client.ask(CHAT, timeout=10, on_text=lambda _: None)
    assert response.answer.text == "Wat"


async def test_a_finish_reason_outside_of_a_stream_teaches_nothing_about_streams(
    llm: FakeLlmServer, llm_settings: Settings
):
    (server_settings,) = llm_settings.llm_servers
    async with ServerClient.connect(
        server_settings.model_copy(update={"stream": False}), 5
    ) as client:
        await client.ask(CHAT, timeout=10)
        assert client.learned == ""


async def test_a_finish_reason_ends_a_stream_without_its_done_line(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.next(llm_server.streams({"content": "Water."}, finish_reason="STOP", end=b""))
    assert (await ask_model(llm_settings)).finish_reason == "stop"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "model_length"])
async def test_an_answer_that_is_cut_at_its_limit_is_not_complete(
    llm: FakeLlmServer, llm_settings: Settings, reason: str, streams: bool
):
    behaviour = llm_server.streams({"content": "Wat"}, finish_reason=reason)
    llm.next(behaviour if streams else llm_server.answers("Wat", finish_reason=reason))
    assert not (await ask_model(llm_settings)).is_complete


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
async def test_an_answer_that_the_server_broke_off_is_no_answer(
    llm: FakeLlmServer, llm_settings: Settings, reason: str, streams: bool
):
    behaviour = llm_server.streams({"content": "Wat"}, finish_reason=reason)
    llm.next(behaviour if streams else llm_server.answers("Wat", finish_reason=reason))
    with pytest.raises(LlmUnavailable, match=reason):
        await ask_model(llm_settings)


@pytest.mark.parametrize("empty", [{"choices": []}, {"choices": None}, {}])
async def test_a_piece_of_a_stream_may_have_the_usage_alone(
    llm: FakeLlmServer, llm_settings: Settings, empty: dict[str, object]
):
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    first = json.dumps(empty).encode()
    last = json.dumps(empty | usage).encode()
    end = b"data: " + last + b"\n\n: still there\n\ndata:\n\ndata: [DONE]\n\n"
    llm.next(llm_server.streams({"content": "Water."}, begin=b"data: " + first + b"\n\n", end=end))
    answer = await ask_model(llm_settings)
    assert (answer.text, answer.usage) == ("Water.", usage["usage"])
    assert len(llm.requests) == 1


async def test_a_stream_that_breaks_after_the_answers_end_is_not_asked_again(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.next(llm_server.streams({"content": "Water."}, end=b"", claimed_length=5_000))
    assert (await ask_model(llm_settings)).text == "Water."
    assert len(llm.requests) == 1


async def test_a_stream_of_another_content_type_is_read_as_a_stream(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.next(llm_server.streams({"content": "Water."}, content_type="text/plain"))
    assert (await ask_model(llm_settings)).text == "Water."


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        {"refusal": "I can't help with that.", "content": None},
        {"content": [{"type": "refusal", "refusal": "I can't help with that."}]},
    ],
)
async def test_a_refusal_is_no_answer(
    llm: FakeLlmServer, llm_settings: Settings, message: dict[str, object], streams: bool
):
    llm.next(llm_server.streams(message) if streams else llm_server.says_message(message))
    with pytest.raises(LlmRefused, match="can't help"):
        await ask_model(llm_settings)


async def test_a_limit_that_reasoning_has_used_up_is_named_and_not_paid_for_again(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.next(llm_server.answers("<think>The sea is", finish_reason="length"))
    with pytest.raises(LlmRefused, match="raise max_tokens"):
        await ask_model(llm_settings)


@pytest.mark.parametrize("behaviour", [cut(), llm_server.cut_in_the_middle()])
async def test_a_dropped_connection_is_tried_again_at_once(
    llm: FakeLlmServer, llm_settings: Settings, behaviour: Behaviour
):
    llm.next(*[behaviour] * (NETWORK_TRIES - 1))
    assert (await ask_model(llm_settings)).text == llm_server.ANSWER
    assert len(llm.requests) == NETWORK_TRIES


async def test_after_a_few_dropped_connections_the_job_waits(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.always(cut())
    with pytest.raises(LlmUnavailable, match="can't be reached"):
        await ask_model(llm_settings)
    assert len(llm.requests) == NETWORK_TRIES


async def test_the_error_says_that_a_server_can_not_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(LlmUnavailable, match="can't be reached"):
        await ask_model(Settings(llm_base_url=f"http://127.0.0.1:{port}/v1", llm_timeout=2))


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_overload_and_breakdowns_are_left_to_the_jobs_retries(
    llm: FakeLlmServer, llm_settings: Settings, status: int
):
    llm.always(llm_server.fails(status, "no luck"))
    with pytest.raises(LlmUnavailable, match=f"{status}.*no luck") as raised:
        await ask_model(llm_settings)
    assert raised.value.after is None
    assert len(llm.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_handed_on(llm: FakeLlmServer, llm_settings: Settings, status: int):
    llm.next(llm_server.fails(status, "slow down", Retry_After="37"))
    with pytest.raises(LlmUnavailable) as raised:
        await ask_model(llm_settings)
    assert raised.value.after == 37


def refuses(
    messages_by_name: Mapping[str, str], status: int = 400, **error_fields: str
) -> Behaviour:
    """Return the behaviour of a server that refuses each of these parameters with its message, and
    answers requests without them."""

    def answer_request(exchange: Exchange, request: Request) -> None:
        for name, message in messages_by_name.items():
            if name in request.json:
                error = {"message": message, "type": "invalid_request_error", **error_fields}
                exchange.send_json(status, {"error": error})
                return
        exchange.server.owner.answer(exchange, request)

    return answer_request


NO_MAX_TOKENS = {
    "max_tokens": (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead."
    )
}
NO_TEMPERATURE = {
    "temperature": (
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) "
        "value is supported."
    )
}


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (refuses(NO_MAX_TOKENS), {"max_completion_tokens": 100, "temperature": 0}),
        (refuses(NO_TEMPERATURE), {"max_tokens": 100}),
        (
            refuses({"temperature": "invalid temperature: only 1 is allowed for this model"}),
            {"max_tokens": 100},
        ),
        (refuses(NO_MAX_TOKENS | NO_TEMPERATURE), {"max_completion_tokens": 100}),
        (
            refuses({"max_tokens": "Extra inputs are not permitted: max_tokens"}, status=422),
            {"max_completion_tokens": 100, "temperature": 0},
        ),
        (
            refuses({"max_tokens": "this parameter is unsupported"}, param="max_tokens"),
            {"max_completion_tokens": 100, "temperature": 0},
        ),
        (
            refuses({"stream_options": "Unrecognized request argument supplied: stream_options"}),
            {"max_tokens": 100, "temperature": 0},
        ),
    ],
)
async def test_a_parameter_that_the_model_refuses_is_changed_from_then_on(
    llm: FakeLlmServer, llm_settings: Settings, behaviour: Behaviour, expected: dict[str, object]
):
    llm.always(behaviour)
    (server_settings,) = llm_settings.llm_servers
    async with ServerClient.connect(server_settings, 5) as client:
        assert (await client.ask(CHAT, timeout=10)).answer.text == llm_server.ANSWER
        requests_so_far = len(llm.requests)
        await client.ask(CHAT, timeout=10)
        assert len(llm.requests) == requests_so_far + 1
    names = ("max_tokens", "max_completion_tokens", "temperature")
    last = llm.requests[-1].json
    assert {name: last[name] for name in names if name in last} == expected


SCHEMA_CHAT = {
    **CHAT,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": OWN_SCHEMA_NAME, "schema": {"type": "object"}},
    },
}


def takes_schemas(known_names: tuple[str, ...], status: int, message: str) -> Behaviour:
    """Return a model server that accepts only these types of `response_format`."""

    def answer_request(exchange: Exchange, request: Request) -> None:
        response_format = request.json.get("response_format")
        if response_format is None or response_format["type"] in known_names:
            llm_server.answers('{"a": 1}')(exchange, request)
        else:
            llm_server.fails(status, message)(exchange, request)

    return answer_request


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (
            takes_schemas(("json_object",), 400, "Only json_object is supported as type"),
            {"type": "json_object"},
        ),
        (takes_schemas((), 500, "failed to parse grammar"), None),
        (takes_schemas((), 422, "Unsupported fields in the request: {'response_format'}"), None),
        (takes_schemas((), 500, "Internal Server Error"), None),
    ],
)
async def test_a_schema_is_sent_in_the_form_that_the_server_has_accepted(
    llm: FakeLlmServer, llm_settings: Settings, behaviour: Behaviour, expected: object
):
    llm.always(behaviour)
    (server_settings,) = llm_settings.llm_servers
    async with ServerClient.connect(server_settings, 5) as client:
        assert (await client.ask(SCHEMA_CHAT, timeout=10)).answer.text == '{"a": 1}'
        assert len(llm.requests) <= 3
        for _ in range(CALLS_TO_KEEP_CHANGES - 1):
            await client.ask(SCHEMA_CHAT, timeout=10)
        requests_so_far = len(llm.requests)
        await client.ask(SCHEMA_CHAT, timeout=10)
        assert len(llm.requests) == requests_so_far + 1
    assert llm.requests[-1].json.get("response_format") == expected


async def test_a_brief_server_error_changes_no_parameter(
    llm: FakeLlmServer, llm_settings: Settings
):
    (server_settings,) = llm_settings.llm_servers
    async with ServerClient.connect(server_settings, 5) as client:
        for _ in range(CALLS_TO_KEEP_CHANGES + 1):
            llm.next(llm_server.fails(500), llm_server.answers('{"a": 1}'))
            assert (await client.ask(SCHEMA_CHAT, timeout=10)).answer.text == '{"a": 1}'
            llm.next(llm_server.answers('{"a": 2}'))
            assert (await client.ask(SCHEMA_CHAT, timeout=10)).answer.text == '{"a": 2}'
            response_format = llm.requests[-1].json["response_format"]
            assert response_format == SCHEMA_CHAT["response_format"]


async def test_a_clients_own_schema_is_sent_as_it_is(llm: FakeLlmServer, llm_settings: Settings):
    llm.always(llm_server.fails(400, "response_format is not supported"))
    (server_settings,) = llm_settings.llm_servers
    response_format = {"type": "json_schema", "json_schema": {"name": "mine", "schema": {}}}
    async with ServerClient.connect(server_settings, 5) as client:
        with pytest.raises(LlmRefused):
            await client.ask({**CHAT, "response_format": response_format}, timeout=10)
    assert [each.json["response_format"] for each in llm.requests] == [response_format]


async def test_the_settings_can_say_how_a_server_is_asked(llm: FakeLlmServer):
    overrides = {
        "base_url": llm.url,
        "schema": "json_object",
        "stream": False,
        "leave_out": ["temperature"],
        "extra_body": {"top_k": 3, "max_tokens": 7},
    }
    async with ServerClient.connect(LlmServer.model_validate(overrides), 5) as client:
        await client.ask(SCHEMA_CHAT, timeout=10)
    sent = llm.requests[-1].json
    assert sent.pop("response_format") == {"type": "json_object"}
    expected = {"model": "default", "messages": QUESTION, "max_tokens": 100, "top_k": 3}
    assert sent == expected


async def test_a_server_that_does_not_stream_is_not_asked_to_again(
    llm: FakeLlmServer, llm_settings: Settings
):
    def answer_request(exchange: Exchange, request: Request) -> None:
        refused = llm_server.fails(400, "stream is not supported")
        (refused if request.json.get("stream") else llm_server.answers())(exchange, request)

    llm.always(answer_request)
    (server_settings,) = llm_settings.llm_servers
    async with ServerClient.connect(server_settings, 5) as client:
        for _ in range(2):
            assert (await client.ask(CHAT, timeout=10)).answer.text == llm_server.ANSWER
    assert ["stream" in each.json for each in llm.requests] == [True, False, False]


@pytest.mark.parametrize(
    "broken",
    [
        llm_server.streams(finish_reason=None),
        llm_server.says(b"data: [DONE]\n\n", "text/event-stream"),
    ],
)
async def test_after_a_stream_without_an_answer_the_request_is_sent_once_unstreamed(
    llm: FakeLlmServer, llm_settings: Settings, broken: Behaviour
):
    def answer_request(exchange: Exchange, request: Request) -> None:
        too_long = llm_server.fails(400, "the request exceeds the available context size")
        (broken if request.json.get("stream") else too_long)(exchange, request)

    llm.always(answer_request)
    with pytest.raises(LlmContextTooLong, match="context size"):
        await ask_model(llm_settings)
    assert len(llm.requests) == 2


async def test_the_settings_can_say_which_parameters_a_model_takes(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.always(refuses(NO_MAX_TOKENS | NO_TEMPERATURE))
    overrides = {"llm_max_tokens_name": "max_completion_tokens", "llm_sends_temperature": False}
    await ask_model(llm_settings.model_copy(update=overrides))
    assert len(llm.requests) == 1
    with_refused_name = {"llm_max_tokens_name": "max_tokens", "llm_sends_temperature": False}
    with pytest.raises(LlmRefused, match="max_completion_tokens"):
        await ask_model(llm_settings.model_copy(update=with_refused_name))
    assert len(llm.requests) == 2


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens, reduce the messages or max_tokens.",
        "max_tokens is too large: 100. This model supports at most 10 completion tokens.",
        "the messages are not allowed",
    ],
)
async def test_a_question_that_is_too_long_is_not_asked_again_in_another_form(
    llm: FakeLlmServer, llm_settings: Settings, message: str
):
    llm.always(llm_server.fails(400, message))
    with pytest.raises(LlmRefused, match="400"):
        await ask_model(llm_settings)
    assert len(llm.requests) == 1


async def test_a_server_that_refuses_every_form_is_asked_a_few_times(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.always(
        llm_server.fails(400, "max_tokens, max_completion_tokens, temperature: unsupported, all")
    )
    with pytest.raises(LlmRefused, match="unsupported"):
        await ask_model(llm_settings)
    assert len(llm.requests) <= 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_lasting_refusal_is_final(llm: FakeLlmServer, llm_settings: Settings, status: int):
    llm.always(llm_server.fails(status, "no such model"))
    with pytest.raises(LlmRefused, match=f"{status}: no such model"):
        await ask_model(llm_settings)
    assert len(llm.requests) == 1


@pytest.mark.parametrize(
    "behaviour",
    [
        llm_server.says(b"<html>Bad gateway</html>", "text/html"),
        llm_server.says(b"not json"),
        llm_server.says(b"\xff\xfe"),
        llm_server.says(b""),
        llm_server.says(b"null"),
        llm_server.says(b"[]"),
        llm_server.says(b'"text"'),
        llm_server.says(b"{}"),
        llm_server.says(b'{"choices": null}'),
        llm_server.says(b'{"choices": [null]}'),
        llm_server.says(b'{"choices": ["text"]}'),
        llm_server.says(b'{"choices": [{"message": "text"}]}'),
        llm_server.says(b'{"choices": [{"message": {"content": ["text"]}}]}'),
        llm_server.no_choices(),
        llm_server.answers(""),
        llm_server.answers(" \n "),
        llm_server.answers(None),
        llm_server.answers("<think>and nothing more</think>"),
        llm_server.answers("<think>and no end"),
        llm_server.answers("The sea is wet.</think>"),
        llm_server.says_message({"content": None, "reasoning_content": "The sea is wet."}),
        llm_server.streams({"reasoning_content": "The sea is wet."}),
        llm_server.streams({"reasoning": "The sea is wet."}, finish_reason=None),
        llm_server.streams({"content": [{"type": "thinking", "thinking": []}]}),
    ],
)
async def test_an_invalid_answer_is_retried_later(
    llm: FakeLlmServer, llm_settings: Settings, behaviour: Behaviour
):
    llm.always(behaviour)
    with pytest.raises(InvalidLlmResponse):
        await ask_model(llm_settings)
    assert len(llm.requests) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>\n<h1>Bad \x1b[2Jgateway</h1>", 'not JSON: "<html> <h1>Bad \\x1b[2Jgateway</h1>"'),
        (b"", "not JSON: an empty body"),
        (b'{"status": "loading"}', 'no choices: it answered "{"status": "loading"}"'),
        (b"x" * 1_000, f'not JSON: "{"x" * 100}…"'),
    ],
)
async def test_the_error_quotes_the_invalid_answer(
    llm: FakeLlmServer, llm_settings: Settings, body: bytes, message: str
):
    llm.always(llm_server.says(body))
    with pytest.raises(InvalidLlmResponse, match=re.escape(message)):
        await ask_model(llm_settings)


async def test_a_filtered_answer_is_final(llm: FakeLlmServer, llm_settings: Settings):
    llm.next(llm_server.answers(None, finish_reason="content_filter"))
    with pytest.raises(LlmRefused, match="filter"):
        await ask_model(llm_settings)


async def test_a_slow_answer_is_given_up_at_the_time_limit(
    llm: FakeLlmServer, llm_settings: Settings
):
    llm.always(slow(30))
    started = time.monotonic()
    with pytest.raises(LlmUnavailable, match="JOBS_LLM_TIMEOUT"):
        await ask_model(llm_settings.model_copy(update={"llm_timeout": 0.3}))
    assert time.monotonic() - started < 5
    assert len(llm.requests) == 1


async def test_all_tries_together_keep_to_their_limit(llm: FakeLlmServer, llm_settings: Settings):
    llm.next(cut(), slow(30))
    with pytest.raises(LlmUnavailable, match=r"within 0\.5 s"):
        await ask_model(llm_settings, timeout=0.5)


async def test_a_cancelled_job_closes_its_request(llm: FakeLlmServer, llm_settings: Settings):
    llm.always(slow(30))
    task = asyncio.create_task(ask_model(llm_settings))
    await eventually(lambda: llm.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_without_a_server_nobody_is_asked():
    with pytest.raises(LlmRefused, match="JOBS_LLM_BASE_URL"):
        async with ModelClient.open(Settings(), None):
            pass


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_no_answer_fills_the_memory(
    llm: FakeLlmServer,
    llm_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
):
    monkeypatch.setattr("switchyard.services.llm.bounded_http.MAX_BODY", 4_000_000)
    llm.always(endless(status))
    with pytest.raises((InvalidLlmResponse, LlmUnavailable), match="longer than"):
        await ask_model(llm_settings)


_MANY_OBJECTS = b"[" + b"{}," * 200_000 + b"{}]"
"""600 KB of JSON, for which the SDK takes 15 seconds."""


async def test_an_answer_of_many_small_values_is_read_in_time(
    llm: FakeLlmServer, llm_settings: Settings
):
    began = time.monotonic()
    event = b'data: {"choices": ' + _MANY_OBJECTS + b"}\n\n"
    llm.always(llm_server.says(event, "text/event-stream"))
    with pytest.raises(InvalidLlmResponse, match="is empty"):
        await ask_model(llm_settings)
    assert time.monotonic() - began < 5


async def test_a_redirect_to_another_host_is_not_followed(
    llm: FakeLlmServer, llm_settings: Settings
):
    with FakeLlmServer() as other_server:
        headers = {"Location": f"{other_server.url}/chat/completions"}
        llm.always(lambda exchange, _: exchange.send(307, b"", headers=headers))
        with pytest.raises(InvalidLlmResponse, match="redirects to another host"):
            await ask_model(llm_settings)
        assert other_server.requests == []


@pytest.mark.parametrize("part", [b"x" * 65536, b"data: x\n" * 8192, b"data: x\r\n" * 8192])
async def test_an_event_without_an_end_is_given_up_by_its_size(
    llm: FakeLlmServer, llm_settings: Settings, monkeypatch: pytest.MonkeyPatch, part: bytes
):
    monkeypatch.setattr("switchyard.services.llm.bounded_http.MAX_EVENT", 1_000_000)
    llm.always(endless(200, "text/event-stream", part))
    with pytest.raises(InvalidLlmResponse, match="longer than"):
        await ask_model(llm_settings)


async def test_a_stream_of_small_events_may_be_long(
    llm: FakeLlmServer, llm_settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("switchyard.services.llm.bounded_http.MAX_EVENT", 1_000)
    chunk = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = [f"data: {json.dumps(each)}\n\n" for each in [*[chunk] * 500, end]]
    llm.next(llm_server.says("".join(events).encode(), "text/event-stream"))
    assert (await ask_model(llm_settings)).text == ("word " * 500).strip()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/v1", "http://[::1/v1"])
async def test_an_invalid_address_is_refused_for_good(url: str):
    with pytest.raises(LlmRefused, match="not the address"):
        async with open_api(url, None, 5):
            pass
