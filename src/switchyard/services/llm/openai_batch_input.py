"""Read the input of a batch of OpenAI's API: a file of requests, one JSON object a line.

The file comes from outside: its lines are read piece by piece, bounded in number and length. A line
that is no request to the batch's endpoint makes the whole batch invalid, as at OpenAI; a request
with invalid parameters fails alone.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from switchyard.broker import patterns
from switchyard.services.common.errors import InvalidInput
from switchyard.services.common.files.errors import NotStored, StorageError
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.files import read_pieces
from switchyard.services.engine.backfill.sources import (
    Cursor,
    Item,
    Source,
    SourceFailed,
    SourceUnreachable,
    Unusable,
)
from switchyard.services.engine.records.system import KeyLimits
from switchyard.services.llm.endpoint_requests import NO_RESPONSES_SERVER
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.openai_form import EMBEDDINGS_URL, ENDPOINTS, RESPONSES_URL
from switchyard.services.llm.records.openai_batches import (
    OpenAiBatch,
    OpenAiBatchState,
    storage_key_of,
)

MAX_REQUESTS = 50_000
"""Lines of a batch's input: OpenAI's API has the same limit."""
MAX_LINE_BYTES = 2 * 1024 * 1024
"""Bytes of a line. A job's message has a lower limit of its own: above it, the request fails
alone."""
MAX_CUSTOM_ID = 512
"""Longest `custom_id` of a request, in characters."""
MAX_ERRORS = 100
"""Errors of one input that are reported."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch."""

    number: int
    """Its line in the file, from 1."""
    custom_id: str
    body: Mapping[str, Any]
    next_offset: int
    """Byte offset of the next line in the file."""


class InvalidBatchLine(InvalidInput):
    """A line is not a valid request; the text says why."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        self.code = code
        self.param = param
        super().__init__(message)


async def raw_lines(
    storage: Storage, key: str, *, start: int = 0
) -> AsyncIterator[tuple[bytes | None, int]]:
    """Yield the lines of a file, None instead of one that is longer than MAX_LINE_BYTES, each with
    the byte offset of the next line. Raises StorageError."""
    line, next_offset, is_long = bytearray(), start, False
    async with aclosing(read_pieces(storage, key, start=start)) as pieces:
        async for piece in pieces:
            first_part, *next_lines = piece.split(b"\n")
            line += first_part
            for next_line in next_lines:
                next_offset += len(line) + 1
                yield (None if is_long or len(line) > MAX_LINE_BYTES else bytes(line)), next_offset
                line, is_long = bytearray(next_line), False
            if len(line) > MAX_LINE_BYTES:  # its bytes are dropped
                next_offset, is_long = next_offset + len(line), True
                line = bytearray()
    if line or is_long:
        yield (None if is_long else bytes(line)), next_offset + len(line)


def parse_line(line: bytes | None, number: int, next_offset: int, endpoint: str) -> BatchLine:
    """Read one request. Raises InvalidBatchLine."""
    if line is None:
        raise InvalidBatchLine("line_too_long", f"a line has at most {MAX_LINE_BYTES:,} bytes")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidBatchLine("invalid_json_line", "the line is not valid JSON") from None
    if not isinstance(value, dict):
        raise InvalidBatchLine("invalid_json_line", "the line is not a JSON object")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        text = f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters"
        raise InvalidBatchLine("invalid_custom_id", text, "custom_id")
    if value.get("method") != "POST":
        raise InvalidBatchLine("invalid_method", "method must be POST", "method")
    if value.get("url") != endpoint:
        text = f"url must be the endpoint of the batch, {endpoint}"
        raise InvalidBatchLine("invalid_url", text, "url")
    if not isinstance(body, dict):
        raise InvalidBatchLine("invalid_body", "body must be a JSON object", "body")
    if body.get("stream"):
        raise InvalidBatchLine("invalid_body", "a batch does not stream", "body.stream")
    return BatchLine(number, custom_id, body, next_offset)


def check_line_model(
    settings: Settings, line: BatchLine, endpoint: str, limits: KeyLimits | None = None
) -> None:
    """Raise InvalidBatchLine if no server has the model of a request, if no server with the model
    has the batch's endpoint, or if the limits of the API key do not allow the model."""
    model = line.body.get("model")
    if limits is not None and not limits.allows(str(model)):
        text = f"this key may not use the model {str(model)[:200]!r}"
        raise InvalidBatchLine("model_not_allowed", text, "body.model")
    servers = settings.llm_servers
    if endpoint == EMBEDDINGS_URL and settings.for_embeddings is not None:
        servers += settings.for_embeddings.llm_servers
    servers_with_model = [each for each in servers if isinstance(model, str) and each.serves(model)]
    if not servers_with_model:
        text = f"no server has the model {str(model)[:200]!r}; see GET /v1/models"
        raise InvalidBatchLine("model_not_found", text, "body.model")
    if endpoint == RESPONSES_URL and not any(each.responses for each in servers_with_model):
        raise InvalidBatchLine("responses_not_supported", NO_RESPONSES_SERVER, "body.model")


@dataclass(frozen=True, slots=True)
class InputReport:
    """The result of checking a batch's input."""

    total: int
    """Valid requests."""
    errors: tuple[Mapping[str, Any], ...]
    """In the form of OpenAI's API: `code`, `message`, `param`, `line`. Empty if the input is
    valid."""


async def check_input(
    settings: Settings, storage: Storage, batch: OpenAiBatch, limits: KeyLimits | None = None
) -> InputReport:
    """Read the whole input, and report what makes it invalid. Raises StorageError."""
    errors: list[Mapping[str, Any]] = []
    line_numbers: dict[str, int] = {}

    def add_error(code: str, message: str, param: str | None, line: int | None) -> None:
        errors.append({"code": code, "message": message, "param": param, "line": line})

    number = 0
    lines = raw_lines(storage, storage_key_of(batch.input_file_id))
    async with aclosing(lines) as open_lines:  # type: ignore[type-var]
        async for raw_line, next_offset in open_lines:
            number += 1
            if number > MAX_REQUESTS:
                add_error("too_many_tasks", f"at most {MAX_REQUESTS:,} lines", None, None)
            if len(errors) >= MAX_ERRORS or number > MAX_REQUESTS:
                break
            if raw_line is not None and not raw_line.strip():
                continue
            try:
                line = parse_line(raw_line, number, next_offset, batch.endpoint)
                check_line_model(settings, line, batch.endpoint, limits)
            except InvalidBatchLine as error:
                add_error(error.code, str(error), error.param, number)
                continue
            if (first_number := line_numbers.setdefault(line.custom_id, number)) != number:
                text = f"line {first_number} has the same custom_id"
                add_error("duplicate_custom_id", text, "custom_id", number)
    if not line_numbers and not errors:
        add_error("empty_file", "the input has no requests", None, None)
    return InputReport(len(line_numbers), tuple(errors))


class BatchInputOptions(BaseModel):
    """Options of the source `openai_batch`."""

    model_config = ConfigDict(extra="forbid")

    batch_id: str = Field(max_length=100, pattern=patterns.PLAIN)
    """The batch whose input is read."""


class BatchInputSource(Source):
    """The requests of a client's batch as a backfill source. The batch starts its backfill itself.
    The cursor has the `byte` offset of the next line in the input, and the number of the last
    `line`."""

    name: ClassVar[str] = "openai_batch"
    Options = BatchInputOptions
    options: BatchInputOptions

    @property
    def title(self) -> str:
        return f"OpenAI batch {self.options.batch_id}"

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        batch = await LlmLedger(self.context.ledger).openai.batch(self.options.batch_id)
        if batch is None or batch.state is not OpenAiBatchState.IN_PROGRESS:
            raise SourceFailed(f"{self.title} is not in progress")
        endpoint = ENDPOINTS[batch.endpoint]
        start, number = (cursor["byte"], cursor["line"]) if cursor else (0, 0)
        try:
            lines = raw_lines(
                self.context.storage, storage_key_of(batch.input_file_id), start=start
            )
            async with aclosing(lines) as open_lines:  # type: ignore[type-var]
                async for raw_line, next_offset in open_lines:
                    number += 1
                    if raw_line is not None and not raw_line.strip():
                        continue
                    cursor_after = {"byte": next_offset, "line": number}
                    try:
                        line = parse_line(raw_line, number, next_offset, batch.endpoint)
                    except InvalidBatchLine as error:  # the input has changed since it was checked
                        yield Unusable(f"line {number}", str(error), cursor_after)
                        continue
                    payload = endpoint.payload(line.body)
                    yield Item(line.custom_id, payload, cursor_after, source=batch.source)
        except NotStored as error:
            raise SourceFailed(str(error)) from error
        except StorageError as error:
            raise SourceUnreachable(f"the storage does not answer: {error}") from error
