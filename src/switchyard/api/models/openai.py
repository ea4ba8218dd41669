"""What goes in and out below `/v1`, in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from switchyard.api.models.base import ApiModel, RequestModel, is_finite
from switchyard.broker import patterns
from switchyard.services.llm import whole_answers


class StreamOptions(ApiModel):
    """What a stream has besides the answer."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = Field(
        default=None, description="Send the usage in a chunk of its own before the end."
    )


class ChatCompletionRequest(RequestModel):
    """A chat in the form of OpenAI's API. All further parameters are sent to the server as they
    are."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "model": "llama",
                "messages": [{"role": "user", "content": "What is a tide?"}],
            }
        },
    )

    model: str = Field(
        min_length=1,
        max_length=200,
        pattern=patterns.PLAIN,
        description="A model of `/v1/models`.",
    )
    messages: list[dict[str, Any]] = Field(min_length=1, description="The chat so far.")
    stream: bool | None = Field(
        default=None, description="Answer as server-sent events, while the model writes."
    )
    stream_options: StreamOptions | None = Field(
        default=None, description="What a stream has besides the answer."
    )

    @model_validator(mode="after")
    def _is_json(self) -> Self:
        if not is_finite([self.messages, self.model_extra]):
            raise ValueError("NaN and infinity are not JSON")
        return self


class _WholeRequest(RequestModel):
    """Base of requests whose further parameters are sent to the server as they are."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(
        min_length=1,
        max_length=200,
        pattern=patterns.PLAIN,
        description="A model of `/v1/models`.",
    )

    @model_validator(mode="after")
    def _is_json(self) -> Self:
        if not is_finite(self.model_extra):
            raise ValueError("NaN and infinity are not JSON")
        return self


class EmbeddingsBody(_WholeRequest):
    """Texts in the form of OpenAI's API, of which the vectors are wanted."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "nomic", "input": ["high tide", "low tide"]}}
    )

    input: whole_answers.Input = Field(description="A text, several, or their tokens' numbers.")
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="Numbers, or their 32-bit floats (little-endian) in base64."
    )


class CompletionRequest(_WholeRequest):
    """Texts in the form of OpenAI's older API, which the model continues."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "llama", "prompt": "The tide", "max_tokens": 20}}
    )

    prompt: whole_answers.Input = Field(description="A text, several, or their tokens' numbers.")
    stream: bool | None = Field(
        default=None, description="Answer as server-sent events, when the text is complete."
    )
    stream_options: StreamOptions | None = Field(
        default=None, description="What a stream has besides the answer."
    )


class ServedModel(ApiModel):
    """A model that requests can name."""

    id: str = Field(examples=["llama"])
    object: Literal["model"] = Field(default="model", description="Always `model`.")
    created: int = Field(default=0, description="Always 0: servers do not say.")
    owned_by: str = Field(description="Names of the servers that have it.")


class ServedModels(ApiModel):
    """The models that requests can name."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    data: list[ServedModel] = Field(description="The models.")


class OpenAiErrorDetails(ApiModel):
    """What went wrong."""

    message: str = Field(description="What is wrong, and what to do.")
    type: str = Field(description="The kind of error, in OpenAI's words.")
    param: str | None = Field(description="The field that is wrong.")
    code: str = Field(description="The kind of problem (docs/openai.md).")
    request_id: str | None = Field(description="Id of the request in the logs.")


class OpenAiError(ApiModel):
    """An error in the form of OpenAI's API."""

    error: OpenAiErrorDetails
