"""Translate requests of OpenAI's API into payloads of jobs, and the jobs' results into its
answers."""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchyard.services.llm.llm_errors import LlmBadRequest, LlmContextTooLong, LlmDeclined

if TYPE_CHECKING:  # loads everything that runs jobs
    from switchyard.services.llm.llm_queue import LlmResult

CHATS_URL = "/v1/chat/completions"
TEXT_COMPLETIONS_URL = "/v1/completions"
EMBEDDINGS_URL = "/v1/embeddings"
RESPONSES_URL = "/v1/responses"
BATCH_URLS = (CHATS_URL, TEXT_COMPLETIONS_URL, EMBEDDINGS_URL, RESPONSES_URL)
"""Endpoints whose requests a batch may have."""
REFUSALS: Mapping[str | None, str] = {
    LlmDeclined.__name__: "content_filter",
    LlmContextTooLong.__name__: "context_length_exceeded",
    LlmBadRequest.__name__: "invalid_request",
}
"""Codes of OpenAI's API by the class of the error that ended a request. All other errors are no
fault of the client: the server's key and address are the operator's."""


@dataclass(frozen=True, slots=True)
class OpenAiEndpoint:
    """An endpoint of OpenAI's API whose requests become jobs."""

    job_type: str
    input_name: str
    """The parameter that is a field of the job's payload; all others go into its `extra`."""

    def payload(self, body: Mapping[str, Any], *, fresh: bool = False) -> dict[str, Any]:
        """Return the payload of the job for a request with this body."""
        own_names = {"model", self.input_name, "stream", "stream_options"}
        if self.job_type == "create_embeddings":
            own_names.add("encoding_format")  # the server is asked for numbers
        payload: dict[str, Any] = {
            name: body[name] for name in ("model", self.input_name) if name in body
        }
        payload["extra"] = {name: value for name, value in body.items() if name not in own_names}
        payload["fresh"] = fresh
        if self.job_type == "chat_completion":
            # `max_tokens` and `temperature` are in `extra`, as the client has named them.
            payload |= {"max_tokens": None, "temperature": None, "keep_all": True}
        return payload


ENDPOINTS: Mapping[str, OpenAiEndpoint] = {
    CHATS_URL: OpenAiEndpoint("chat_completion", "messages"),
    TEXT_COMPLETIONS_URL: OpenAiEndpoint("complete_text", "prompt"),
    EMBEDDINGS_URL: OpenAiEndpoint("create_embeddings", "input"),
    RESPONSES_URL: OpenAiEndpoint("create_response", "input"),
}


def answer_of(url: str, body: Mapping[str, Any], result: LlmResult) -> dict[str, Any]:
    """Return the result of a request to the endpoint `url` as OpenAI's API answers it."""
    if url == EMBEDDINGS_URL:
        return _embeddings(result, is_packed=body.get("encoding_format") == "base64")
    if url == RESPONSES_URL:
        answer = _with_defaults(result, "resp", "response")
        answer.setdefault("created_at", answer.pop("created"))
        return answer
    if url == TEXT_COMPLETIONS_URL:
        return _with_defaults(result, "cmpl", "text_completion")
    return _with_defaults(result, "chatcmpl", "chat.completion")


def _with_defaults(result: LlmResult, prefix: str, kind: str) -> dict[str, Any]:
    """Return the server's answer with the fields that clients expect."""
    completion = (result.result or {}).get("completion") or {}
    return {
        "id": f"{prefix}-{result.job_id}",
        "object": kind,
        "created": int(time.time()),
        "model": (result.result or {}).get("model"),
        **completion,
    }


def _embeddings(result: LlmResult, *, is_packed: bool) -> dict[str, Any]:
    """Return the server's vectors as OpenAI's API has them: lists of numbers, or 32-bit floats in
    base64 when `is_packed`."""
    answer = result.result or {}
    completion = answer.get("completion") or {}
    data = []
    for index, item in enumerate(completion.get("data", ())):
        vector = item["embedding"]
        if is_packed:
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, **item, "embedding": vector})
    tokens = answer.get("usage", {}).get("prompt_tokens", 0)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {
        "object": "list",
        "model": answer.get("model"),
        "usage": usage,
        **completion,
        "data": data,
    }
