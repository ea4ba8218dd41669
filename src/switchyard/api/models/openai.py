"""What goes in and out below `/v1`, in the form of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from switchyard.api.models.base import ApiModel, is_finite
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.services.llm import endpoint_requests
from switchyard.services.llm.records.openai_batches import OpenAiBatchState


class StreamOptions(ApiModel):
    """What a stream sends besides the answer."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = Field(
        default=None, description="Send the usage in a chunk of its own before the end."
    )


class _EndpointBody(RequestModel):
    """Base of requests whose further parameters are sent to the server as they are."""

    model_config = ConfigDict(extra="allow")
    open_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that take any JSON."""

    model: str = Field(
        min_length=1,
        max_length=200,
        pattern=patterns.PLAIN,
        description="A model of `/v1/models`.",
    )

    @model_validator(mode="after")
    def _check_finite(self) -> Self:
        open_values = [getattr(self, name) for name in self.open_fields]
        if not is_finite([self.model_extra, *open_values]):
            raise ValueError("NaN and infinity are not JSON")
        return self


class ChatCompletionBody(_EndpointBody):
    """A chat in the form of OpenAI's API. All further parameters are sent to the server as they
    are."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "model": "llama",
                "messages": [{"role": "user", "content": "What is a tide?"}],
            }
        },
    )

    open_fields = ("messages",)

    messages: list[dict[str, Any]] = Field(
        min_length=1, max_length=endpoint_requests.MAX_MESSAGES, description="The chat so far."
    )
    stream: bool | None = Field(
        default=None, description="Answer as server-sent events, while the model writes."
    )
    stream_options: StreamOptions | None = Field(
        default=None, description="What a stream has besides the answer."
    )


class EmbeddingsBody(_EndpointBody):
    """Texts to embed, in the form of OpenAI's API."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "nomic", "input": ["high tide", "low tide"]}}
    )

    input: endpoint_requests.Input = Field(
        description="A text, several texts, or lists of token ids."
    )
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="Numbers, or their 32-bit floats (little-endian) in base64."
    )


class CompletionBody(_EndpointBody):
    """Texts in the form of OpenAI's older API, which the model continues."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "llama", "prompt": "The tide", "max_tokens": 20}}
    )

    prompt: endpoint_requests.Input = Field(
        description="A text, several texts, or lists of token ids."
    )
    stream: bool | None = Field(
        default=None, description="Answer as server-sent events, when the text is complete."
    )
    stream_options: StreamOptions | None = Field(
        default=None, description="What a stream has besides the answer."
    )


class ResponsesBody(_EndpointBody):
    """A request in the form of OpenAI's Responses API."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "large", "input": "What is a tide?"}}
    )

    open_fields = ("input",)

    input: endpoint_requests.ResponsesInput = Field(description="A text, or items.")
    stream: bool | None = Field(
        default=None, description="Answer as server-sent events, while the model writes."
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


class OpenAiFileView(ApiModel):
    """A file of the caller."""

    id: str = Field(description="Its id.", examples=["file-0a1b2c3d4e5f60718293a4b5"])
    object: Literal["file"] = Field(default="file", description="Always `file`.")
    bytes: int = Field(description="Its size.")
    created_at: int = Field(description="Seconds since the epoch.")
    expires_at: int | None = Field(description="When it is deleted; null: never.")
    filename: str = Field(description="Its name, as it was uploaded.")
    purpose: str = Field(description="`batch`, or `batch_output` for what a batch has written.")
    status: Literal["processed"] = Field(default="processed", description="Always `processed`.")


class OpenAiFileList(ApiModel):
    """A page of files."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    data: list[OpenAiFileView] = Field(description="The files.")
    first_id: str | None = Field(description="Id of the first one.")
    last_id: str | None = Field(description="Where the next page begins: `after`.")
    has_more: bool = Field(description="Whether there is a next page.")


class DeletedOpenAiFile(ApiModel):
    """A file that was deleted."""

    id: str = Field(description="Its id.")
    object: Literal["file"] = Field(default="file", description="Always `file`.")
    deleted: Literal[True] = Field(default=True, description="Always true.")


class BatchBody(RequestModel):
    """A batch in the form of OpenAI's API."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "input_file_id": "file-0a1b2c3d4e5f60718293a4b5",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
        },
    )

    input_file_id: str = Field(
        max_length=100, pattern=patterns.PLAIN, description="A file of the purpose `batch`."
    )
    endpoint: Literal[
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
    ] = Field(description="The endpoint of all of its requests.")
    completion_window: str = Field(
        default="24h",
        max_length=10,
        pattern=patterns.PLAIN,
        description="Time from now after which it expires: 1h to 168h.",
    )
    metadata: (
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None
    ) = Field(default=None, max_length=16, description="Up to 16 values, for the caller.")


class BatchErrorView(ApiModel):
    """What makes a batch's input invalid."""

    code: str = Field(description="What kind of error it is.")
    message: str | None = Field(description="What is wrong.")
    param: str | None = Field(description="The field that is wrong.")
    line: int | None = Field(description="The line of the input, from 1.")


class BatchErrorList(ApiModel):
    """What makes a batch's input invalid: the first 100 errors."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    data: list[BatchErrorView] = Field(description="The errors.")


class BatchCounts(ApiModel):
    """The requests of a batch."""

    total: int = Field(description="All; 0 until the input is validated.")
    completed: int = Field(description="Those that were answered.")
    failed: int = Field(description="Those that will have no answer.")


class OpenAiBatchView(ApiModel):
    """A batch of the caller. Times are seconds since the epoch."""

    id: str = Field(description="Its id.", examples=["batch_0a1b2c3d4e5f60718293a4b5c6d7e8f9"])
    object: Literal["batch"] = Field(default="batch", description="Always `batch`.")
    endpoint: str = Field(description="The endpoint of its requests.")
    errors: BatchErrorList | None = Field(description="Why it has failed.")
    input_file_id: str = Field(description="The file with its requests.")
    completion_window: str = Field(description="Time after which it expires.")
    status: OpenAiBatchState = Field(description="Where it stands.")
    output_file_id: str | None = Field(description="Its answers; null where there are none.")
    error_file_id: str | None = Field(description="Requests without an answer, and why.")
    created_at: int = Field(description="When it was made.")
    in_progress_at: int | None = Field(description="When its input was found valid.")
    expires_at: int = Field(description="When it expires.")
    finalizing_at: int | None = Field(description="When its last request had ended.")
    completed_at: int | None = Field(description="When its output files were complete.")
    failed_at: int | None = Field(description="When it failed.")
    expired_at: int | None = Field(description="When it had expired.")
    cancelling_at: int | None = Field(description="When it was cancelled.")
    cancelled_at: int | None = Field(description="When all had ended after that.")
    request_counts: BatchCounts = Field(description="Its requests, counted.")
    metadata: dict[str, str] | None = Field(description="As the caller has given it.")


class OpenAiBatchList(ApiModel):
    """A page of batches, newest first."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    data: list[OpenAiBatchView] = Field(description="The batches.")
    first_id: str | None = Field(description="Id of the first one.")
    last_id: str | None = Field(description="Where the next page begins: `after`.")
    has_more: bool = Field(description="Whether there is a next page.")


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
