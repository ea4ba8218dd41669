"""Translate OpenAI's chats into Anthropic's Messages API, and its answers back.

A parameter that this API lacks and that would change the answer is refused, not ignored. The
parameters that are left out or changed are listed in docs/llm.md#anthropic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from switchyard.services.common.durations import parse_http_date
from switchyard.services.common.printable import quoted_answer
from switchyard.services.llm.llm_errors import InvalidLlmResponse, LlmBadRequest
from switchyard.services.llm.model_api import DEFAULT_ANSWER_TOKENS, MAX_QUOTA_WAIT, ModelApi

if TYPE_CHECKING:
    import openai

VERSION = "2023-06-01"
MAX_TEMPERATURE = 1.0
"""Highest temperature of this API; OpenAI's goes to 2."""
_UNSUPPORTED_PARAMETERS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": (),
    "web_search_options": (),
}
"""Parameters that change an answer and that this API lacks, with their values that change
nothing."""
_OMITTED = frozenset(
    {
        *_UNSUPPORTED_PARAMETERS,
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "stream_options",
        "verbosity",
    }
)
_TRANSLATED_PARAMETERS = frozenset(
    {
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "parallel_tool_calls",
        "response_format",
        "stop",
        "temperature",
        "tool_choice",
        "tools",
        "user",
    }
)
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_QUOTAS = ("requests", "tokens", "input-tokens", "output-tokens")
_USAGE_FIELDS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
_NO_PARAMETERS = {"type": "object", "properties": {}}


class AnthropicApi(ModelApi):
    """Anthropic's Messages API."""

    path = "/messages"

    def headers(self, api_key: str | None) -> Mapping[str, str | openai.Omit]:
        import openai

        key = {} if api_key is None else {"x-api-key": api_key}
        return {"anthropic-version": VERSION, "Authorization": openai.Omit(), **key}

    def refusal(self, chat: Mapping[str, Any], path: str | None) -> str | None:
        if path is not None:
            return f"Anthropic's API has no {path}: ask for a model of another server"
        for name, allowed_values in _UNSUPPORTED_PARAMETERS.items():
            if (value := chat.get(name)) is not None and value not in allowed_values:
                return (
                    f"Anthropic's API does not have the parameter {name}: leave it out, or let the "
                    "operator do so with `leave_out` in JOBS_LLM_PROVIDERS"
                )
        return None

    def request_body(self, chat: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {
            name: value
            for name, value in chat.items()
            if name not in _TRANSLATED_PARAMETERS and name not in _OMITTED
        }
        limits = (chat.get("max_completion_tokens"), chat.get("max_tokens"))
        body["max_tokens"] = next(
            (limit for limit in limits if limit is not None), DEFAULT_ANSWER_TOKENS
        )
        system, body["messages"] = _split_turns(chat["messages"])
        if system:
            body["system"] = system
        temperature = chat.get("temperature")
        if temperature is not None:
            is_number = isinstance(temperature, int | float)
            body["temperature"] = min(temperature, MAX_TEMPERATURE) if is_number else temperature
        stop = chat.get("stop")
        if stop:
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if isinstance(chat.get("user"), str):
            body["metadata"] = {"user_id": chat["user"]}
        body |= _tools(chat)
        if output_format := _output_format(chat.get("response_format")):
            output_config = chat.get("output_config")
            body["output_config"] = {
                **(output_config if isinstance(output_config, dict) else {}),
                "format": output_format,
            }
        return body

    def completion_of(self, answer: Any) -> Any:
        if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
            return answer
        texts: dict[str, list[str]] = {"text": [], "thinking": []}
        calls = []
        for block in answer["content"]:
            kind = str(block.get("type")) if isinstance(block, dict) else None
            if kind in texts:
                texts[kind].append(_text_field(block, kind))
            elif kind == "tool_use":
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                calls.append(_tool_call(block, arguments))
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts["text"]) or None}
        if thoughts := "".join(texts["thinking"]):
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        reason = _finish_reason(answer.get("stop_reason"))
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return _completion_of(answer, [choice], _token_counts(answer.get("usage")))

    def stream_reader(self) -> Callable[[Any], Iterable[Any]]:
        return _EventReader().read

    def quota_wait(self, headers: Mapping[str, str]) -> float:
        date = headers.get("date", "")
        waits = [
            _seconds_until(headers.get(f"anthropic-ratelimit-{quota}-reset", ""), date)
            for quota in _QUOTAS
            if headers.get(f"anthropic-ratelimit-{quota}-remaining", "").strip() == "0"
        ]
        return min(max(waits, default=0.0), MAX_QUOTA_WAIT)


# --- requests -------------------------------------------------------------------------------------


def _split_turns(
    messages: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split messages into the blocks of all system messages, and the turns of user and model.
    Neighbouring messages of one side become one turn: the API wants the results of all tools in one
    turn."""
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        place, role = f"messages[{index}]", message.get("role")
        blocks = _content_blocks(message.get("content"), place)
        if role in ("system", "developer"):
            system += blocks
            continue
        if role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
            blocks = [result | ({"content": blocks} if blocks else {})]
        elif role == "assistant":
            if not blocks and isinstance(message.get("refusal"), str):
                blocks = _content_blocks(message["refusal"], place)
            blocks += _tool_use_blocks(message.get("tool_calls"), place)
        elif role != "user":
            raise LlmBadRequest(f"{place}: Anthropic's API has no role {role!r}")
        side = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == side:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": side, "content": blocks})
    return system, turns


def _content_blocks(content: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [
        _content_block(part, f"{place}.content[{index}]")
        for index, part in enumerate(content or ())
        if part.get("type") != "text" or part.get("text")  # the API refuses empty texts
    ]


def _content_block(part: Mapping[str, Any], place: str) -> dict[str, Any]:
    match part:
        case {"type": "text"}:
            return dict(part)
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return {"type": "image", "source": _media_source(url, place)}
        case {"type": "file", "file": {"file_data": str(url)}}:
            return {"type": "document", "source": _media_source(url, place)}
    raise LlmBadRequest(
        f"{place}: Anthropic's API does not take a content part of type "
        f"{str(part.get('type'))[:40]!r}, but `text`, `image_url`, and `file` with `file_data`"
    )


def _media_source(url: str, place: str) -> dict[str, str]:
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    head, comma, data = url.partition(",")
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if not comma or not head.startswith("data:") or encoding != "base64":
        raise LlmBadRequest(f"{place}: give an address, or data:TYPE;base64,…")
    return {"type": "base64", "media_type": media_type, "data": data}


def _tool_use_blocks(calls: Any, place: str) -> list[dict[str, Any]]:
    blocks = []
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        match call:
            case {"id": str(call_id), "function": {"name": str(name), **fields}}:
                arguments = _json_or_none(fields.get("arguments") or "{}")
            case _:
                arguments = None
        if not isinstance(arguments, dict):
            raise LlmBadRequest(
                f"{place}.tool_calls[{index}]: it needs an id, and a function with a name and with "
                "arguments that are a JSON object"
            )
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
    return blocks


def _json_or_none(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _tools(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters `tools` and `tool_choice`."""
    tools, choice = chat.get("tools"), chat.get("tool_choice")
    if not tools:
        return {}
    tool_choice: dict[str, Any] = {}
    match choice:
        case None:
            pass
        case str() if choice in _TOOL_CHOICES:
            tool_choice = {"type": _TOOL_CHOICES[choice]}
        case {"type": "function", "function": {"name": name}}:
            tool_choice = {"type": "tool", "name": name}
        case _:
            raise LlmBadRequest(
                "tool_choice: for Anthropic's API it is auto, none, required, or one function"
            )
    if chat.get("parallel_tool_calls") is False and tool_choice.get("type") != "none":
        tool_choice = {"type": "auto", **tool_choice, "disable_parallel_tool_use": True}
    tool_list = [_tool(each, f"tools[{index}]") for index, each in enumerate(tools)]
    return {"tools": tool_list} | ({"tool_choice": tool_choice} if tool_choice else {})


def _tool(tool: Any, place: str) -> dict[str, Any]:
    match tool:
        case {"type": "function", "function": {"name": name, **fields}}:
            translated = {"name": name, "input_schema": fields.get("parameters") or _NO_PARAMETERS}
            if fields.get("description") is not None:
                translated["description"] = fields["description"]
            return translated | ({"strict": True} if fields.get("strict") is True else {})
    raise LlmBadRequest(f"{place}: only functions with a name can be made tools of Anthropic's API")


def _output_format(response_format: Any) -> dict[str, Any] | None:
    """Return the `format` of an answer; None for text, and for JSON without a schema: as in
    OpenAI's API, the messages have to ask for that."""
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"type": "json_schema", "schema": schema}
        case None | {"type": "text" | "json_object"}:
            return None
    raise LlmBadRequest(
        "response_format: for Anthropic's API its type is text, json_object or json_schema"
    )


# --- answers --------------------------------------------------------------------------------------


class _EventReader:
    """Translate the events of one stream into OpenAI's chunks."""

    def __init__(self) -> None:
        self._usage: dict[str, int] = {}
        self._calls: dict[Any, int] = {}
        """Index of each tool call, by the index of its block."""
        self._without_arguments: set[Any] = set()

    def read(self, event: Any) -> Iterator[Any]:
        """Yield the chunks for one event."""
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise InvalidLlmResponse(
                "the model server does not speak Anthropic's API: its stream has "
                f"{quoted_answer(event)}"
            )
        block_index = event.get("index") if isinstance(event.get("index"), int) else None
        match event:
            case {"type": "error"}:
                yield {"error": event.get("error") or event}
            case {"type": "message_start", "message": dict() as message}:
                self._usage |= _token_counts(message.get("usage"))
                yield _completion_of(message, [_choice({"role": "assistant"})], {})
            case {"type": "content_block_start", "content_block": dict() as block} if (
                block.get("type") == "tool_use"
            ):
                self._calls[block_index] = len(self._calls)
                tool_input = block.get("input")
                if not tool_input:
                    self._without_arguments.add(block_index)
                arguments = json.dumps(tool_input, ensure_ascii=False) if tool_input else ""
                yield self._tool_call_chunk(block_index, _tool_call(block, arguments))
            case {"type": "content_block_start", "content_block": dict() as block}:
                yield from _content_chunks(block.get("type"), block)
            case {"type": "content_block_delta", "delta": {"partial_json": str(arguments)}}:
                if arguments and block_index in self._calls:
                    self._without_arguments.discard(block_index)
                    yield self._tool_call_chunk(block_index, {"function": {"arguments": arguments}})
            case {"type": "content_block_delta", "delta": dict() as delta}:
                yield from _content_chunks(str(delta.get("type")).removesuffix("_delta"), delta)
            case {"type": "content_block_stop"} if block_index in self._without_arguments:
                self._without_arguments.discard(block_index)
                yield self._tool_call_chunk(block_index, {"function": {"arguments": "{}"}})
            case {"type": "message_delta", "delta": dict() as delta}:
                self._usage |= _token_counts(event.get("usage"))
                reason = _finish_reason(delta.get("stop_reason"))
                yield _completion_of({}, [_choice({}, reason)], self._usage)

    def _tool_call_chunk(self, block_index: Any, call: Mapping[str, Any]) -> dict[str, Any]:
        return {"choices": [_choice({"tool_calls": [{"index": self._calls[block_index], **call}]})]}


def _content_chunks(kind: Any, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunk for a piece of text or of reasoning; other pieces, such as signatures, are
    left out."""
    if kind == "text" and _text_field(block, kind):
        yield {"choices": [_choice({"content": _text_field(block, kind)})]}
    elif kind == "thinking" and _text_field(block, kind):
        yield {"choices": [_choice({"reasoning_content": _text_field(block, kind)})]}


def _choice(delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _tool_call(block: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _completion_of(
    message: Mapping[str, Any], choices: list[dict[str, Any]], counts: Mapping[str, int]
) -> dict[str, Any]:
    """Return a completion, or a chunk, with the id, model and usage of a message."""
    copied_fields = {
        name: message[name] for name in ("id", "model") if isinstance(message.get(name), str)
    }
    envelope: dict[str, Any] = {"created": int(time.time()), **copied_fields, "choices": choices}
    if counts:
        cached = counts.get("cache_read_input_tokens", 0)
        written = counts.get("cache_creation_input_tokens", 0)
        prompt = counts.get("input_tokens", 0) + cached + written
        answer = counts.get("output_tokens", 0)
        envelope["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    return envelope


def _token_counts(usage: Any) -> dict[str, int]:
    if not isinstance(usage, dict):
        return {}
    return {
        name: usage[name]
        for name in _USAGE_FIELDS
        if type(usage.get(name)) is int and 0 <= usage[name] < 2**40
    }


def _finish_reason(reason: Any) -> str | None:
    return _FINISH_REASONS.get(reason, reason) if isinstance(reason, str) else None


def _text_field(block: Mapping[str, Any], name: str) -> str:
    text = block.get(name)
    return text if isinstance(text, str) else ""


def _seconds_until(moment: str, date: str) -> float:
    """Return the seconds until a moment (RFC 3339), by the clock of the answer's Date header; 0 if
    the moment is past or invalid."""
    try:
        present = parse_http_date(date) or datetime.now(UTC)
        remaining = datetime.fromisoformat(moment.strip()[:40]) - present
        return max(0.0, remaining.total_seconds())
    except (ValueError, TypeError):  # no moment, or one without a zone
        return 0.0
