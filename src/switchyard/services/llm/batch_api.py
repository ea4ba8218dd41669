"""The Batch API of one OpenAI-compatible server: `/v1/files` and `/v1/batches`.

Answers of the server are hostile: ids are checked before they are put into an address, and lists,
pages and files are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from switchyard.services.common.settings import LlmServer
from switchyard.services.llm.completion_reader import MAX_ANSWER, field_of
from switchyard.services.llm.llm_errors import InvalidLlmResponse
from switchyard.services.llm.server_client import call_with_retries, open_api

if TYPE_CHECKING:
    import openai

Reply = TypeVar("Reply")

METADATA_KEY = "switchyard_batch"
"""Metadata key under which a server's batch has our id."""
REQUEST_TIMEOUT = 120.0
"""Seconds for one request."""
MAX_LISTED_PAGES = 20
"""Pages of a listing, with 100 entries each, that are searched for our batch or file."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
MAX_LINE_BYTES = 2 * MAX_ANSWER
"""Bytes of the longest line with an answer."""
ENDED_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})
"""Statuses of a batch that has ended, well or not."""


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as the server has it."""

    id: str
    status: str
    files: tuple[str, ...]
    """Ids of the files with its answers and with its errors."""
    input_file: str | None
    error: str | None

    @classmethod
    def from_response(cls, batch: Any) -> RemoteBatch:
        """Make a batch of the server's answer. Raises InvalidLlmResponse."""
        file_ids = (_checked_id(batch, "output_file_id"), _checked_id(batch, "error_file_id"))
        remote_id = _checked_id(batch, "id")
        if remote_id is None:
            raise InvalidLlmResponse("the model server's batch has no id")
        errors = field_of(field_of(batch, "errors"), "data")
        message = field_of(errors[0], "message") if isinstance(errors, list) and errors else None
        return cls(
            remote_id,
            str(field_of(batch, "status") or "")[:40],
            tuple(each for each in file_ids if each is not None),
            _checked_id(batch, "input_file_id"),
            None if message is None else " ".join(str(message)[:3_000].split())[:300],
        )


class BatchApi:
    """Calls the Batch API of one server. Open it with `BatchApi.connect`. All methods raise what
    `services.llm.server_client.call_with_retries` raises."""

    def __init__(self, api: openai.AsyncOpenAI) -> None:
        self._api = api

    @classmethod
    @asynccontextmanager
    async def connect(cls, server: LlmServer) -> AsyncIterator[BatchApi]:
        """Open a connection to the server. Raises LlmRefused for an invalid address."""
        key = server.api_key
        secret = key.get_secret_value() if key else None
        async with open_api(server.base_url, secret, REQUEST_TIMEOUT) as api:
            yield cls(api)

    async def find_created(self, batch_id: str) -> RemoteBatch | None:
        """Find the batch that has our id in its metadata."""
        async for each in self._list_entries("/batches", {}):
            metadata = field_of(each, "metadata")
            if isinstance(metadata, Mapping) and metadata.get(METADATA_KEY) == batch_id:
                return RemoteBatch.from_response(each)
        return None

    async def _list_entries(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Any]:
        """Yield the entries of a listing, newest first as these servers have it, up to
        MAX_LISTED_PAGES pages."""
        after: dict[str, str] = {}
        for _ in range(MAX_LISTED_PAGES):
            page = await self._get_page(path, {"limit": 100, **params, **after})
            entries = field_of(page, "data")
            if not isinstance(entries, list):
                raise InvalidLlmResponse(f"the model server returned an invalid list of {path[1:]}")
            for each in entries[:1000]:
                yield each
            last_id = _checked_id(entries[-1], "id") if entries else None
            if last_id is None or field_of(page, "has_more") is not True:
                return
            after = {"after": last_id}

    async def _get_page(self, path: str, params: Mapping[str, object]) -> Any:
        return await _call_api(
            lambda: self._api.get(path, options={"params": params}, cast_to=object)
        )

    async def upload(self, batch_id: str, content: bytes) -> str:
        """Upload the file with a batch's questions. Returns the file's id."""

        async def create() -> Any:
            files = self._api.files.with_raw_response
            file = (_upload_name(batch_id), content)
            return (await files.create(file=file, purpose="batch")).http_response.json()

        file_id = _checked_id(await _call_api(create), "id")
        if file_id is None:
            raise InvalidLlmResponse("the model server's file has no id")
        return file_id

    async def uploads(self, batch_id: str) -> list[str]:
        """List the files with a batch's questions that were uploaded before."""
        return [
            file_id
            async for each in self._list_entries("/files", {"purpose": "batch"})
            if field_of(each, "filename") == _upload_name(batch_id)
            and (file_id := _checked_id(each, "id"))
        ]

    async def create(self, batch_id: str, file_id: str) -> RemoteBatch:
        """Create the batch. A network error is not retried here, as the server may have created
        it."""
        return RemoteBatch.from_response(
            await call_with_retries(
                lambda: self._api.post(
                    "/batches",
                    body={
                        "input_file_id": file_id,
                        "endpoint": "/v1/chat/completions",
                        "completion_window": "24h",
                        "metadata": {METADATA_KEY: batch_id},
                    },
                    options={"headers": {"Idempotency-Key": batch_id}},
                    cast_to=object,
                ),
                timeout=REQUEST_TIMEOUT,
                may_retry=lambda: False,
            )
        )

    async def get(self, remote_id: str) -> RemoteBatch:
        """Read a batch; `remote_id` is its id at the server."""
        path = f"/batches/{remote_id}"
        return RemoteBatch.from_response(
            await _call_api(lambda: self._api.get(path, cast_to=object))
        )

    async def cancel(self, remote_id: str) -> None:
        """Cancel a batch; `remote_id` is its id at the server."""
        await _call_api(lambda: self._api.post(f"/batches/{remote_id}/cancel", cast_to=object))

    async def delete(self, file_id: str) -> None:
        """Delete a file; `file_id` is its id at the server."""
        await _call_api(lambda: self._api.delete(f"/files/{file_id}", cast_to=object))

    async def lines(self, file_id: str, *, max_lines: int) -> Iterator[Any]:
        """Yield the first `max_lines` lines of a file of answers, parsed as JSON one by one: parsed
        all at once, they would take twenty times the memory. A line that is not JSON, or too long
        for one answer, is None."""

        async def read() -> bytes:
            return (await self._api.files.content(file_id)).content

        return _json_lines(await _call_api(read), max_lines)


def _upload_name(batch_id: str) -> str:
    return f"switchyard-{batch_id}.jsonl"


async def _call_api(create: Callable[[], Awaitable[Reply]]) -> Reply:
    return await call_with_retries(create, timeout=REQUEST_TIMEOUT)


def _checked_id(answer: Any, name: str) -> str | None:
    value = field_of(answer, name)
    if value in (None, ""):
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidLlmResponse(f"the model server returned an invalid {name}")
    return value


def _json_lines(content: bytes, max_lines: int) -> Iterator[Any]:
    start = 0
    while start < len(content) and max_lines > 0:
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        max_lines -= 1
        yield _json_or_none(content[start:end]) if end - start <= MAX_LINE_BYTES else None
        start = end + 1


def _json_or_none(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
