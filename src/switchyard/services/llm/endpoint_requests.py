"""Requests to endpoints of OpenAI's API other than chats: embeddings, completions of a text, and
the Responses API.

The SDK does not check what a server sends, so the fields that are used are checked here, and
`bounded_http` bounds the size. Other fields of an answer are passed on as they are.
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
"""Texts in one request: OpenAI's API has the same limit."""
MAX_MESSAGES = 2_000
"""Messages of one chat."""
MAX_TOKENS = 300_000
"""Ids of tokens in one text. OpenAI's API takes as many in all texts of a request."""
TOKEN_ID_BOUND = 2**31
"""Token ids are below this number."""
_RESERVED_PARAMETERS = frozenset({"model", "stream", "stream_options"})
"""Parameters that `extra` may not have, besides the fields of the payload."""

Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
TokenId = Annotated[int, Field(ge=0, lt=TOKEN_ID_BOUND, strict=True)]
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, max_length=MAX_INPUTS)]
Input = str | Texts | Tokens | TokenLists
ResponsesInput = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_INPUTS)]
)
_USABLE_STATES = ("completed", "incomplete")
"""Values of `status` of a response that has ended with an output."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of a server."""

    path: str
    input_name: str
    """The parameter with the texts."""
    check: Callable[[Any, int], None]
    """Takes an answer and the number of texts; raises InvalidLlmResponse if an answer to one is
    missing."""
    operation: str
    """What OpenTelemetry calls it in traces (`gen_ai.operation.name`)."""
    has_texts: bool = True
    """Whether the answer has texts, which are then made encodable; false for vectors of numbers."""


class EndpointRequest(BaseModel):
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
    fresh: bool = Field(default=False, description="Ask anew even if an answer is stored.")

    @field_validator("extra")
    @classmethod
    def _refuse_payload_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        misplaced = sorted(value.keys() & (_RESERVED_PARAMETERS | cls.model_fields.keys()))
        if misplaced:
            raise ValueError(f"{', '.join(misplaced)}: not here, but as a field of the payload")
        return value


class EmbeddingsRequest(EndpointRequest):
    """Asks for the vectors of texts."""

    input: Input = Field(description="A text, several texts, or lists of token ids.")

    def body(self) -> dict[str, Any]:
        """Return the parameters of the API. The vectors are asked for as numbers: few servers
        speak base64."""
        return {**self.extra, "input": self.input, "encoding_format": "float"}


class TextCompletionRequest(EndpointRequest):
    """Asks for the continuations of texts."""

    prompt: Input = Field(description="A text, several texts, or lists of token ids.")

    def body(self) -> dict[str, Any]:
        """Return the parameters of the API."""
        return {**self.extra, "prompt": self.prompt}


class ResponsesRequest(EndpointRequest):
    """Asks for an answer of OpenAI's Responses API."""

    input: ResponsesInput = Field(description="A text, or items: messages, results of tools, …")
    stream: bool = Field(
        default=False,
        description="Stream the answer's events, as lines of JSON, while the model writes.",
    )

    @model_validator(mode="after")
    def _refuse_background(self) -> Self:
        if self.extra.get("background"):
            raise ValueError("background: the job waits for the answer; ask with X-Job-Background")
        return self

    def body(self) -> dict[str, Any]:
        """Return the parameters of the API."""
        return {**self.extra, "input": self.input}


def count_inputs(value: object) -> int:
    """Return the number of texts in an input: one for a text or for a list of token ids."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return len(value)
    return 1


def check_embeddings(answer: Any, count: int) -> None:
    """Raise InvalidLlmResponse unless an answer has a vector for each of `count` texts."""
    data = field_of(answer, "data")
    if not isinstance(data, list) or len(data) != count:
        raise _unusable_answer(f"{count:,} vectors", answer)
    for each in data:
        vector = field_of(each, "embedding")
        if not vector or not is_vector(vector):
            raise _unusable_answer("a vector for each text", each)


def is_vector(value: Any) -> bool:
    """Return whether a server's value is a list of finite numbers."""
    return isinstance(value, list) and all(
        isinstance(number, int | float) and math.isfinite(number) for number in value
    )


def check_completions(answer: Any, count: int) -> None:
    """Raise InvalidLlmResponse unless an answer has a text for each of `count` prompts."""
    choices = field_of(answer, "choices")
    if not isinstance(choices, list) or len(choices) < count:
        raise _unusable_answer(f"{count:,} texts", answer)
    for each in choices:
        if not isinstance(field_of(each, "text"), str):
            raise _unusable_answer("a text for each prompt", each)


def check_response(answer: Any, count: int) -> None:
    """Raise InvalidLlmResponse unless an answer is a response that has ended."""
    if field_of(answer, "status") == "failed":
        message = field_of(field_of(answer, "error"), "message")
        raise InvalidLlmResponse(f"the model server failed: it answered {quoted_answer(message)}")
    output = field_of(answer, "output")
    is_output = isinstance(output, list) and all(isinstance(each, dict) for each in output)
    if not is_output or field_of(answer, "status") not in _USABLE_STATES:
        raise _unusable_answer("a response that has ended", answer)


def _unusable_answer(expected: str, answer: Any) -> InvalidLlmResponse:
    return InvalidLlmResponse(
        f"the model server did not answer with {expected}: it answered {quoted_answer(answer)}"
    )


EMBEDDINGS = Endpoint(
    "/embeddings", "input", check_embeddings, operation="embeddings", has_texts=False
)
TEXT_COMPLETIONS = Endpoint(
    "/completions", "prompt", check_completions, operation="text_completion"
)
RESPONSES = Endpoint("/responses", "input", check_response, operation="chat")
NO_RESPONSES_SERVER = (
    'no server with this model has /responses: for a server that has it, set "responses": true in '
    "JOBS_LLM_PROVIDERS"
)


def input_tokens(body: Mapping[str, Any], bytes_per_token: int) -> int:
    """Return an upper bound of the tokens in the input of a request. Of items of the Responses API,
    the names of their fields count, too."""
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
