"""Limit the size of the storage: uploads are counted against it as they come in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable

from switchyard.services.common.errors import TemporarilyUnavailable
from switchyard.services.common.files.storage import Storage

MEASURE_INTERVAL = 30.0
"""Seconds for which a measurement of the whole storage is used; uploads are added to it."""


class StorageFull(TemporarilyUnavailable):
    """The storage has reached its quota: nothing more is accepted until files are removed."""


class Quota:
    """Counts the bytes that this process stores, on top of what it last measured.

    Other processes' uploads are seen at the next measurement, so several of them may together
    exceed the quota by the bytes that they store within MEASURE_INTERVAL seconds.
    """

    def __init__(self, storage: Storage, limit: int | None) -> None:
        self._storage = storage
        self._limit = limit
        """Bytes; None for no limit."""
        self._used = 0
        self._under_way = 0
        """Bytes of unfinished uploads, which no store lists."""
        self._measured_at: float | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raise StorageFull if nothing more may be stored."""
        if self._limit is None:
            return
        at = self._measured_at
        if at is None or time.monotonic() - at > MEASURE_INTERVAL:
            if self._measuring is None:
                self._measuring = asyncio.create_task(self._measure())
            # One measurement for all callers: a store that does not answer delays each only once.
            await asyncio.shield(self._measuring)
        self._refuse_over(self._limit)

    async def _measure(self) -> None:
        try:
            at = time.monotonic()
            self._used = await self._storage.size_async() + self._under_way
            self._measured_at = at
        finally:
            self._measuring = None

    async def metered(self, parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the parts unchanged and count them. Raises StorageFull as soon as they exceed the
        quota. If the upload does not complete, its bytes are subtracted again."""
        if self._limit is None:
            async for part in parts:
                yield part
            return
        counted = 0
        whole = False
        try:
            async for part in parts:
                counted += len(part)
                self._used += len(part)
                self._under_way += len(part)
                self._refuse_over(self._limit, excess=1)
                yield part
            whole = True
        finally:
            self._under_way -= counted
            if not whole:
                self._used -= counted

    def release(self, size: int) -> None:
        """Subtract bytes of files that were removed again."""
        self._used = max(0, self._used - size)

    def _refuse_over(self, limit: int, *, excess: int = 0) -> None:
        if self._used >= limit + excess:
            raise StorageFull(
                f"the storage is at its quota, JOBS_STORAGE_QUOTA, of {limit:,} bytes: its "
                "operators can raise it, or remove files"
            )
