"""Endpoints of OpenAI's API whose answers come whole: embeddings, completions of a text, and the
Responses API.

The SDK does not check what a server sends, so all of it is checked here; `bounded_http` bounds its
size. What else is in an answer stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from switchyard.broker import patterns
from switchyard.services.common.printable import quoted_answer
from switchyard.services.llm.completion_reader import field_of
from switchyard.services.llm.llm_errors import InvalidLlmResponse

MAX_INPUTS = 2_048
"""Texts in one request, as of OpenAI's API."""
MAX_TOKEN = 2**31
_SHARED = frozenset({"model", "stream", "stream_options"})

Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
TokenId = Annotated[int, Field(ge=0, lt=MAX_TOKEN, strict=True)]
Tokens = Annotated[list[TokenId], Field(min_length=1)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, max_length=MAX_INPUTS)]
Input = str | Texts | Tokens | TokenLists
ResponsesInput = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_INPUTS)]
)
_ENDED_RESPONSES = ("completed", "incomplete")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a server, and what it asks and answers with."""

    path: str
    input_name: str
    """The parameter with the texts."""
    check: Callable[[Any, int], None]
    """Raises InvalidLlmResponse for what is no answer to so many texts."""


class WholeRequest(BaseModel):
    """Base of the requests: a model, and parameters of the API that are sent as they are."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(
        min_length=1,
        max_length=200,
        pattern=patterns.PLAIN,
        description="Model, or an alias of one, in the settings.",
    )
    extra: dict[str, Any] = Field(
        default_factory=dict,
        max_length=100,
        description="Further parameters of the API, sent as they are.",
    )
    fresh: bool = Field(default=False, description="Ask anew although an answer is kept.")

    @field_validator("extra")
    @classmethod
    def _leave_own_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(value.keys() & (_SHARED | cls.model_fields.keys()))
        if taken:
            raise ValueError(f"{', '.join(taken)}: not here, but as a field of the payload")
        return value


class EmbeddingsRequest(WholeRequest):
    """Asks for the vectors of texts."""

    input: Input = Field(description="A text, several, or their tokens' numbers.")

    def body(self) -> dict[str, Any]:
        """Return the parameters of the API. The vectors are asked for as numbers: few servers
        speak base64."""
        return {**self.extra, "input": self.input, "encoding_format": "float"}


class TextCompletionRequest(WholeRequest):
    """Asks how texts go on."""

    prompt: Input = Field(description="A text, several, or their tokens' numbers.")

    def body(self) -> dict[str, Any]:
        """Return the parameters of the API."""
        return {**self.extra, "prompt": self.prompt}


class ResponsesRequest(WholeRequest):
    """Asks by OpenAI's Responses API."""

    input: ResponsesInput = Field(description="A text, or items: messages, results of tools, …")

    @model_validator(mode="after")
    def _is_answered_at_once(self) -> Self:
        if self.extra.get("background"):
            raise ValueError("background: the job waits for the answer; ask with X-Job-Background")
        return self

    def body(self) -> dict[str, Any]:
        """Return the parameters of the API."""
        return {**self.extra, "input": self.input}


def count_inputs(value: object) -> int:
    """Return of how many texts an input consists."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return len(value)
    return 1


def check_embeddings(answer: Any, count: int) -> None:
    """Raise InvalidLlmResponse where an answer has not a vector for each of `count` texts."""
    data = field_of(answer, "data")
    if not isinstance(data, list) or len(data) != count:
        raise _useless(f"{count:,} vectors", answer)
    for each in data:
        vector = field_of(each, "embedding")
        if not vector or not is_vector(vector):
            raise _useless("a vector for each text", each)


def is_vector(value: Any) -> bool:
    """Return whether a server's value is a list of finite numbers."""
    return isinstance(value, list) and all(
        isinstance(x, int | float) and math.isfinite(x) for x in value
    )


def check_completions(answer: Any, count: int) -> None:
    """Raise InvalidLlmResponse where an answer has no text for each of `count` prompts."""
    choices = field_of(answer, "choices")
    if not isinstance(choices, list) or len(choices) < count:
        raise _useless(f"{count:,} texts", answer)
    for each in choices:
        if not isinstance(field_of(each, "text"), str):
            raise _useless("a text for each prompt", each)


def check_response(answer: Any, count: int) -> None:
    """Raise InvalidLlmResponse where an answer is no response that has come to its end."""
    if field_of(answer, "status") == "failed":
        message = field_of(field_of(answer, "error"), "message")
        raise InvalidLlmResponse(f"the model server failed: it answered {quoted_answer(message)}")
    output = field_of(answer, "output")
    is_output = isinstance(output, list) and all(isinstance(each, dict) for each in output)
    if not is_output or field_of(answer, "status") not in _ENDED_RESPONSES:
        raise _useless("a response that has ended", answer)


def _useless(field: str, answer: Any) -> InvalidLlmResponse:
    return InvalidLlmResponse(
        f"the model server did not answer with {field}: it answered {quoted_answer(answer)}"
    )


EMBEDDINGS = Endpoint("/embeddings", "input", check_embeddings)
TEXT_COMPLETIONS = Endpoint("/completions", "prompt", check_completions)
RESPONSES = Endpoint("/responses", "input", check_response)
NEEDS_RESPONSES = (
    'no server with this model has /responses: where one has, set "responses": true in '
    "JOBS_LLM_PROVIDERS"
)


def input_tokens(body: Mapping[str, Any], bytes_per_token: int) -> int:
    """Return the most tokens that the texts of a request may have, with those of JSON's quotes."""
    model_input = body.get("input", body.get("prompt"))
    if isinstance(model_input, str):
        return -(-len(model_input.encode()) // bytes_per_token)
    if not isinstance(model_input, list):
        return 0
    lengths = (
        1
        if isinstance(each, int)
        else len(each)
        if isinstance(each, list)
        else -(-len(str(each).encode()) // bytes_per_token)
        for each in model_input
    )
    return sum(lengths)
