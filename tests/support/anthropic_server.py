"""A small HTTP server that speaks Anthropic's Messages API and can misbehave.

It is as strict as the real one about what tests rely on, and answers well unless it was told
otherwise: `server.next(api_error(529, "overloaded_error"))` is what the next request gets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.site import Behaviour, Exchange, Request, Site

MODEL = "claude"
KEY = "sk-ant-1"
ANSWER = "The tide rises."
USAGE = {"input_tokens": 5, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 40}
KNOWN_PARAMETERS = {
    *("model", "messages", "max_tokens", "system", "temperature", "top_p", "top_k", "stream"),
    *("stop_sequences", "tools", "tool_choice", "metadata", "thinking", "output_config"),
}
"""Parameters that are accepted; others are refused, as by the real one."""


def text_block(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def thinking(content: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": content, "signature": "c2ln"}


def tool_use(call_id: str, name: str, **tool_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}


def answers(
    *blocks: Mapping[str, Any], stop_reason: str = "end_turn", headers: Mapping[str, str] = {}
) -> Behaviour:
    """Answer with a message of these blocks, as a stream where one is asked for."""

    def behave(exchange: Exchange, request: Request) -> None:
        if request.json.get("stream"):
            body = b"".join(_event(each) for each in events_of(*blocks, stop_reason=stop_reason))
            kind = "text/event-stream; charset=utf-8"
            exchange.send(200, body, content_type=kind, headers=headers)
            return
        end = {"stop_reason": stop_reason, "stop_sequence": None}
        usage = {**USAGE, "output_tokens": 7}
        message = {**_message(), "content": blocks, **end, "usage": usage}
        exchange.send_json(200, message, headers)

    return behave


def streams(*events: Mapping[str, Any], claimed_length: int | None = None) -> Behaviour:
    """Answer with these events, and nothing more."""
    body = b"".join(map(_event, events))
    return lambda exchange, _: exchange.send(
        200, body, content_type="text/event-stream", claimed_length=claimed_length
    )


def api_error(status: int, kind: str, message: str = "no", **headers: str) -> Behaviour:
    """Answer with an error in the API's form."""
    http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return lambda exchange, _: exchange.send_json(status, body, http_headers)


def events_of(*blocks: Mapping[str, Any], stop_reason: str = "end_turn") -> list[dict[str, Any]]:
    """Return the events of a stream, with each text and each tool's arguments in two pieces, and a
    ping at the start."""
    usage = {**USAGE, "output_tokens": 1}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**_message(), "content": [], "usage": usage}},
        {"type": "ping"},
    ]
    for index, block in enumerate(blocks):
        block_type = block["type"]
        empty = {"text": "", "thinking": "", "tool_use": {}}[block_type]
        field = "input" if block_type == "tool_use" else block_type
        whole = json.dumps(block["input"]) if block_type == "tool_use" else block[field]
        if whole == "{}":
            whole = ""
        name = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}[block_type]
        delta = "input_json_delta" if block_type == "tool_use" else f"{block_type}_delta"
        start = {key: value for key, value in block.items() if key != "signature"} | {field: empty}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        middle = len(whole) // 2
        for piece in (whole[:middle], whole[middle:]):
            delta_fields = {"type": delta, name: piece}
            events.append({"type": "content_block_delta", "index": index, "delta": delta_fields})
        if "signature" in block:
            delta_fields = {"type": "signature_delta", "signature": block["signature"]}
            events.append({"type": "content_block_delta", "index": index, "delta": delta_fields})
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": stop_reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 7}})
    events.append({"type": "message_stop"})
    return events


class AnthropicServer(Site):
    """Use as a context manager; `url` is what `base_url` takes."""

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def handle(self, exchange: Exchange, request: Request) -> None:
        refusal = _refusal(request)
        if refusal is not None:
            self.next(api_error(*refusal))
        super().handle(exchange, request)

    def answer(self, exchange: Exchange, request: Request) -> None:
        answers(text_block(ANSWER))(exchange, request)


def _refusal(request: Request) -> tuple[int, str, str] | None:
    """Return status, kind and text of the error for an invalid request; None for a valid one."""
    if request.path != "/v1/messages":
        return 404, "not_found_error", "Not found"
    if request.headers.get("x-api-key") != KEY or "authorization" in request.headers:
        return 401, "authentication_error", "invalid x-api-key"
    if "anthropic-version" not in request.headers:
        return 400, "invalid_request_error", "anthropic-version: header is required"
    body = request.json
    unknown = sorted(body.keys() - KNOWN_PARAMETERS)
    if unknown:
        return 400, "invalid_request_error", f"{unknown[0]}: Extra inputs are not permitted"
    if "max_tokens" not in body:
        return 400, "invalid_request_error", "max_tokens: Field required"
    if not 0 <= body.get("temperature", 0) <= 1:
        return 400, "invalid_request_error", "temperature: range: 0..1"
    roles = [each["role"] for each in body["messages"]]
    if not set(roles) <= {"user", "assistant"} or roles[:1] != ["user"]:
        return 400, "invalid_request_error", f"messages: roles {roles}"
    return None


def _message() -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-1"}


def _event(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
