"""The Batch API of one OpenAI-compatible server: `/v1/files` and `/v1/batches`.

What the server says is hostile: ids are checked before they are put into an address, and lists,
pages and files are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from switchyard.services.llm.client import call, open_api
from switchyard.services.llm.errors import LlmNonsense
from switchyard.services.settings import LlmServer

if TYPE_CHECKING:
    import openai

Reply = TypeVar("Reply")

MARK = "switchyard_batch"
"""In the metadata of a batch: our id of it."""
WITHIN = 120.0
"""Seconds for one request."""
PAGES = 20
"""Of 100 batches each: so many are looked through for one of ours."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
OVER = frozenset({"completed", "failed", "expired", "cancelled"})
"""Statuses of a batch that has ended, well or not."""


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as the server has it."""

    id: str
    status: str
    files: tuple[str, ...]
    """Of its answers, and of its errors."""
    input_file: str | None
    error: str | None

    @classmethod
    def of(cls, found: Any) -> RemoteBatch:
        """Raises LlmNonsense."""
        files = (_id(found, "output_file_id"), _id(found, "error_file_id"))
        remote_id = _id(found, "id")
        if remote_id is None:
            raise LlmNonsense("the LLM server's batch has no id")
        errors = getattr(getattr(found, "errors", None), "data", None)
        said = getattr(errors[0], "message", None) if isinstance(errors, list) and errors else None
        return cls(
            remote_id,
            str(getattr(found, "status", ""))[:40],
            tuple(each for each in files if each is not None),
            _id(found, "input_file_id"),
            None if said is None else " ".join(str(said).split())[:300],
        )


class BatchApi:
    """Open it with `BatchApi.connect`. All raise what `services.llm.client.call` raises."""

    def __init__(self, api: openai.AsyncOpenAI) -> None:
        self._api = api

    @classmethod
    @asynccontextmanager
    async def connect(cls, server: LlmServer) -> AsyncIterator[BatchApi]:
        """Raises LlmRefused for an address that is none."""
        key = server.api_key
        secret = key.get_secret_value() if key else None
        async with open_api(server.base_url, secret, WITHIN) as api:
            yield cls(api)

    async def find(self, ours: str) -> RemoteBatch | None:
        """The batch with our id in its metadata."""
        after: str | None = None
        for _ in range(PAGES):
            page = await self._page(after)
            listed = getattr(page, "data", None)
            if not isinstance(listed, list):
                raise LlmNonsense("the LLM server's list of batches is none")
            for each in listed[:1000]:
                marks = getattr(each, "metadata", None)
                if isinstance(marks, Mapping) and marks.get(MARK) == ours:
                    return RemoteBatch.of(each)
            after = _id(listed[-1], "id") if listed else None
            if after is None or getattr(page, "has_more", None) is not True:
                return None
        return None

    async def _page(self, after: str | None) -> Any:
        more: dict[str, Any] = {} if after is None else {"after": after}

        async def asked() -> Any:
            return await self._api.batches.list(limit=100, **more)

        return await _asked(asked)

    async def upload(self, ours: str, content: bytes) -> str:
        """The file's id."""
        name = f"switchyard-{ours}.jsonl"
        made = await _asked(lambda: self._api.files.create(file=(name, content), purpose="batch"))
        found = _id(made, "id")
        if found is None:
            raise LlmNonsense("the LLM server's file has no id")
        return found

    async def create(self, ours: str, file_id: str) -> RemoteBatch:
        """Once: a network error is not tried again here, as the server may have heard of it."""
        return RemoteBatch.of(
            await call(
                lambda: self._api.batches.create(
                    input_file_id=file_id,
                    endpoint="/v1/chat/completions",
                    completion_window="24h",
                    metadata={MARK: ours},
                    extra_headers={"Idempotency-Key": ours},
                ),
                within=WITHIN,
                again=lambda: False,
            )
        )

    async def look(self, remote_id: str) -> RemoteBatch:
        return RemoteBatch.of(await _asked(lambda: self._api.batches.retrieve(remote_id)))

    async def cancel(self, remote_id: str) -> None:
        await _asked(lambda: self._api.batches.cancel(remote_id))

    async def delete(self, file_id: str) -> None:
        await _asked(lambda: self._api.files.delete(file_id))

    async def lines(self, file_id: str) -> list[Any]:
        """The lines of a file of answers as JSON; None for one that is none."""

        async def read() -> bytes:
            return (await self._api.files.content(file_id)).content

        return [_json(each) for each in (await _asked(read)).splitlines() if each.strip()]


async def _asked(create: Callable[[], Awaitable[Reply]]) -> Reply:
    return await call(create, within=WITHIN)


def _id(found: Any, name: str) -> str | None:
    value = getattr(found, name, None)
    if value in (None, ""):
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise LlmNonsense(f"the LLM server's {name} is none")
    return value


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
