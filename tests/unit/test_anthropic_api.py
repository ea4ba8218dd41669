"""OpenAI's chats in the form of Anthropic's API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from switchyard.services.common.settings.llm import ApiName
from switchyard.services.llm.anthropic_api import AnthropicApi
from switchyard.services.llm.llm_errors import LlmBadRequest
from switchyard.services.llm.server_client import MODEL_APIS

API = AnthropicApi()
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "tide", "arguments": '{"at": "Brest"}'},
}
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}
PNG = "data:image/png;base64,AAAA"


def translate(*messages: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Return the body of Anthropic's API for a chat, without its `max_tokens`."""
    body = dict(API.request_body({"messages": messages, **parameters}))
    body.pop("max_tokens")
    return body


def text_block(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def user_message(content: Any = "hello") -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_each_api_of_the_settings_has_a_class() -> None:
    assert set(get_args(ApiName)) == MODEL_APIS.keys()


def test_a_conversation_with_tools_is_translated_into_turns() -> None:
    body = translate(
        {"role": "system", "content": "Be short."},
        user_message("High?"),
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "high"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "developer", "content": [text_block("Be kind.")]},
        user_message([text_block(""), text_block("And now?")]),
        {"role": "assistant", "content": None, "refusal": "No."},
    )
    calls = [
        {"type": "tool_use", "id": each, "name": "tide", "input": {"at": "Brest"}}
        for each in ("c1", "c2")
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": [text_block("high")]},
        {"type": "tool_result", "tool_use_id": "c2"},
    ]
    assert body == {
        "system": [text_block("Be short."), text_block("Be kind.")],
        "messages": [
            {"role": "user", "content": [text_block("High?")]},
            {"role": "assistant", "content": [text_block("I look."), *calls]},
            {"role": "user", "content": [*results, text_block("And now?")]},
            {"role": "assistant", "content": [text_block("No.")]},
        ],
    }


def test_pictures_and_documents_are_sent() -> None:
    cached = {**text_block("See:"), "cache_control": {"type": "ephemeral"}}
    content = [
        cached,
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,BBBB"}},
    ]
    picture = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    document = {"type": "base64", "media_type": "application/pdf", "data": "BBBB"}
    (turn,) = translate(user_message(content))["messages"]
    assert turn["content"] == [
        cached,
        {"type": "image", "source": picture},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": document},
    ]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"temperature": 1.7, "top_k": 3}, {"temperature": 1.0, "top_k": 3}),
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ["a", "b"], "top_p": 0.5}, {"stop_sequences": ["a", "b"], "top_p": 0.5}),
        (
            {"user": "me", "seed": 7, "store": True, "n": 1, "logprobs": False},
            {"metadata": {"user_id": "me"}},
        ),
        ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}}),
        ({"response_format": {"type": "json_object"}}, {}),
        (
            {
                "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
                "output_config": {"effort": "low"},
            },
            {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}}},
        ),
        ({"tool_choice": "required"}, {}),
        (
            {"tools": [TOOL], "tool_choice": "required"},
            {
                "tools": [{"name": "tide", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "any"},
            },
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "description": "d", "strict": True},
                    }
                ],
                "parallel_tool_calls": False,
            },
            {
                "tools": [
                    {
                        "name": "f",
                        "description": "d",
                        "strict": True,
                        "input_schema": {"type": "object", "properties": {}},
                    }
                ],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "tide"}}},
            {
                "tools": [{"name": "tide", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "tool", "name": "tide"},
            },
        ),
    ],
)
def test_parameters_are_translated(parameters: dict[str, Any], expected: dict[str, Any]) -> None:
    body = translate(user_message(), **parameters)
    del body["messages"]
    assert body == expected
    assert API.refusal(parameters, None) is None


@pytest.mark.parametrize(
    ("parameters", "max_tokens"),
    [({}, 4096), ({"max_tokens": 9}, 9), ({"max_completion_tokens": 5, "max_tokens": None}, 5)],
)
def test_a_request_always_has_a_token_limit(parameters: dict[str, Any], max_tokens: int) -> None:
    assert (
        API.request_body({"messages": [user_message()], **parameters})["max_tokens"] == max_tokens
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"n": 2},
        {"logprobs": True},
        {"logit_bias": {"1": 2}},
        {"presence_penalty": 0.5},
        {"functions": [{}]},
    ],
)
def test_parameters_that_the_api_does_not_have_are_refused(parameters: dict[str, Any]) -> None:
    (name,) = parameters
    assert f"the parameter {name}:" in str(API.refusal(parameters, None))


@pytest.mark.parametrize(
    ("message", "parameters", "error"),
    [
        (
            user_message([{"type": "input_audio", "input_audio": {}}]),
            {},
            r"messages\[0\].content\[0\].*'input_audio'",
        ),
        (
            user_message([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]),
            {},
            "data:TYPE;base64",
        ),
        ({"role": "function", "content": "x"}, {}, "no role 'function'"),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1]"}}],
            },
            {},
            "JSON object",
        ),
        ({"role": "assistant", "content": "", "tool_calls": ["x"]}, {}, "JSON object"),
        (user_message(), {"tools": [{"type": "custom"}]}, r"tools\[0\]"),
        (
            user_message(),
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice",
        ),
        (user_message(), {"response_format": {"type": "grammar"}}, "response_format"),
    ],
)
def test_a_chat_that_the_api_can_not_express_is_refused(
    message: dict[str, Any], parameters: dict[str, Any], error: str
) -> None:
    with pytest.raises(LlmBadRequest, match=error):
        translate(message, **parameters)


@pytest.mark.parametrize(
    ("remaining", "seconds", "min_wait", "max_wait"),
    [("0", 30, 25, 30), ("3", 30, 0, 0), ("0", 9_999, 120, 120), ("0", -5, 0, 0)],
)
def test_the_seconds_to_wait_are_read_from_the_headers(
    remaining: str, seconds: int, min_wait: float, max_wait: float
) -> None:
    reset = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    value_by_name = {"remaining": remaining, "reset": reset.replace("+00:00", "Z")}
    headers = {
        f"anthropic-ratelimit-input-tokens-{name}": value for name, value in value_by_name.items()
    }
    assert min_wait <= API.quota_wait(headers) <= max_wait
    assert API.quota_wait(dict.fromkeys(headers, "soon")) == 0


def test_a_reset_is_counted_by_the_clock_of_its_server() -> None:
    headers = {
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2001-01-01T00:00:40Z",
        "date": "Mon, 01 Jan 2001 00:00:00 GMT",
    }
    assert API.quota_wait(headers) == 40


def test_malformed_and_unknown_blocks_are_ignored() -> None:
    blocks: list[Any] = [
        None,
        1,
        {"type": ["text"]},
        {"type": "text", "text": 5},
        {"type": {}},
        text_block("high"),
    ]
    answer = {"content": blocks, "stop_reason": ["end_turn"], "usage": [1]}
    assert API.completion_of(answer)["choices"][0]["message"]["content"] == "high"
