"""File storage: uploads, what the stages of a pipeline keep, and results.

One class over local directories, S3 and Azure (obstore). Every put is atomic: a reader sees the
whole old file, the whole new file or none. On a local disk obstore writes `name#1` beside the
target and renames it; object stores are atomic by themselves.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urlsplit

from switchyard.services.common.files.errors import (
    NO_ROOM,
    FileTooLarge,
    NotStored,
    StorageUnavailable,
    away,
    is_without_bucket,
    mapping_disk_full,
)
from switchyard.services.common.files.storage_keys import check_key

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

PART_BYTES = 1024 * 1024
"""What a stream of a file holds in memory at once, about."""

RETRY_TIMEOUT = timedelta(seconds=20)
"""For how long an object store is asked again that does not answer: jobs are tried again anyway.
One request is given up by obstore after 30 s."""
PROMPT_TIMEOUT = 8.0
"""Seconds that a store may say nothing where somebody waits, who can come again."""
PARTS_AT_ONCE = 2
"""Parts, of 5 MiB each, that are written at the same time and so kept in memory."""


def directory_of(url: str) -> Path | None:
    """Return the directory of this host that an address names; None for one elsewhere."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it."""

    key: str
    size: int
    """Bytes."""
    modified: datetime
    """Aware; when the file was last put."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a stream turned out to be."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""


class _WriteTimer:
    """Since when a store has what it was given, and has not asked for more."""

    def __init__(self) -> None:
        self._since: float | None = time.monotonic()

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        self._since = None

    @property
    def seconds(self) -> float:
        """0 while it is the sender who is waited for."""
        return 0.0 if self._since is None else time.monotonic() - self._since


@dataclass(frozen=True)
class Storage:
    """Files under one address: `file:///…`, `s3://bucket/…`, `az://account/container/…`.

    Holds the address alone and opens the store when it is first used, so it can be pickled and
    sent to another process. Credentials come from the environment, as each cloud has it. All
    methods raise StorageUnavailable where an object store does not answer.
    """

    url: str
    prompt: bool = False
    """Somebody waits: a store that does not answer is given up after PROMPT_TIMEOUT."""
    _opened: list[ObjectStore] = field(
        default_factory=list, init=False, repr=False, compare=False, hash=False
    )

    def __reduce__(self) -> tuple[type[Storage], tuple[str, bool]]:
        return (Storage, (self.url, self.prompt))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Around every call. Raises StorageUnavailable where an object store does not answer, or
        refuses; FileNotFoundError is of a file, and never of the bucket."""
        from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (GenericError, PermissionDeniedError, UnauthenticatedError) as error:
            if self.url.startswith("file:") or any(each in str(error) for each in NO_ROOM):
                raise
            raise away(self.url, error) from error
        except FileNotFoundError as error:
            if is_without_bucket(error):
                raise away(self.url, error) from error
            raise

    @asynccontextmanager
    async def _promptly(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Around what an object store does at once. Raises StorageUnavailable where somebody waits
        and it takes longer than that, or PROMPT_TIMEOUT."""
        try:
            async with asyncio.timeout((seconds or PROMPT_TIMEOUT) if self._is_awaited else None):
                yield
        except TimeoutError as error:
            raise StorageUnavailable(f"the file storage at {self.url} does not answer") from error

    async def _written(self, writing: Awaitable[object], key: str, held: _WriteTimer) -> None:
        """Wait for a write of any length. Where somebody waits and the store holds a part for long,
        it is asked for something small: whether it is slow or says nothing."""
        if not self._is_awaited:
            await writing
            return
        task = asyncio.ensure_future(writing)
        try:
            while not (await asyncio.wait((task,), timeout=PROMPT_TIMEOUT / 8))[0]:
                if held.seconds > PROMPT_TIMEOUT * 3 / 8:
                    async with self._promptly(PROMPT_TIMEOUT / 2):
                        await self.stat_async(key)
                    held.begin()
            task.result()
        finally:
            task.cancel()

    @property
    def _is_awaited(self) -> bool:
        return self.prompt and not self.url.startswith("file:")

    @property
    def _store(self) -> ObjectStore:
        if not self._opened:
            from obstore.store import from_url

            local = self.url.startswith("file:")
            self._opened.append(
                from_url(self.url, mkdir=True)
                if local
                else from_url(self.url, retry_config={"retry_timeout": RETRY_TIMEOUT})
            )
        return self._opened[0]

    def put(self, key: str, data: bytes) -> None:
        """Write a file in one step, replacing what was there. Raises InvalidKey, DiskFull."""
        import obstore

        # One request, not a multipart upload: nothing is left behind when it is cut off.
        with mapping_disk_full(), self._reached():
            obstore.put(self._store, check_key(key), data, use_multipart=False)

    async def put_async(self, key: str, data: bytes) -> None:
        """`put`, for event loops."""
        import obstore

        with mapping_disk_full(), self._reached():
            await obstore.put_async(self._store, check_key(key), data, use_multipart=False)

    async def put_new_async(self, key: str, data: bytes) -> bool:
        """Write a file if there is none under that key; False when there is. Raises InvalidKey."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            with mapping_disk_full(), self._reached():
                await obstore.put_async(
                    self._store, check_key(key), data, mode="create", use_multipart=False
                )
        except AlreadyExistsError:
            return False
        return True

    async def put_stream_async(
        self, key: str, parts: AsyncIterable[bytes], *, max_bytes: int
    ) -> Received:
        """Write a file as it comes in, with a few parts in memory at a time.

        Raises InvalidKey, FileTooLarge, and whatever `parts` raises; no file is left then.
        """
        import obstore

        digest = hashlib.sha256()
        size = 0
        held = _WriteTimer()

        async def measured() -> AsyncIterator[bytes]:
            nonlocal size
            held.end()
            async for part in parts:
                size += len(part)
                if size > max_bytes:
                    raise FileTooLarge(f"more than the {max_bytes:,} bytes allowed")
                digest.update(part)
                if part:
                    held.begin()
                    yield part
                    held.end()
            held.begin()

        with mapping_disk_full(), self._reached():
            writing = obstore.put_async(
                self._store, check_key(key), measured(), max_concurrency=PARTS_AT_ONCE
            )
            await self._written(writing, key, held)
        return Received(size, digest.hexdigest())

    def get(self, key: str) -> bytes:
        """Return a whole file. Raises NotStored, InvalidKey."""
        import obstore

        try:
            with self._reached():
                return bytes(obstore.get(self._store, check_key(key)).bytes())
        except FileNotFoundError as error:
            _not_stored(key, error)

    async def get_async(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """Return a whole file. Raises NotStored, InvalidKey, FileTooLarge (before reading it)."""
        import obstore

        try:
            with self._reached():
                async with self._promptly():
                    found = await obstore.get_async(self._store, check_key(key))
                    if max_bytes is not None and (size := found.meta["size"]) > max_bytes:
                        raise FileTooLarge(f"{size:,} bytes, {max_bytes:,} are allowed")
                    return bytes(await found.bytes_async())
        except FileNotFoundError as error:
            _not_stored(key, error)

    async def stream_async(self, key: str, *, start: int = 0) -> AsyncIterator[bytes]:
        """Yield a file from that byte on, in parts of about 1 MiB. Raises NotStored, InvalidKey."""
        import obstore

        stored = await self.stat_async(key)
        if stored is not None and 0 < stored.size <= start:
            return  # stores refuse a range that is empty
        options: GetOptions = {"range": {"offset": start}} if start else {}
        try:
            with self._reached():
                found = await obstore.get_async(self._store, check_key(key), options=options)
                async for part in found.stream(min_chunk_size=PART_BYTES):
                    yield bytes(part)
        except FileNotFoundError as error:
            _not_stored(key, error)

    async def stat_async(self, key: str) -> StoredFile | None:
        """Size and time of a file, or None when there is none. Raises InvalidKey."""
        import obstore

        try:
            with self._reached():
                async with self._promptly():
                    meta = await obstore.head_async(self._store, check_key(key))
        except FileNotFoundError:
            return None
        return StoredFile(meta["path"], meta["size"], meta["last_modified"])

    async def exists_async(self, key: str) -> bool:
        """Tell whether there is a file under that key. Raises InvalidKey."""
        return await self.stat_async(key) is not None

    async def rename_async(self, source: str, target: str) -> None:
        """Give a file another key, replacing what is there. Raises NotStored, InvalidKey."""
        import obstore

        try:
            with mapping_disk_full(), self._reached():
                await obstore.rename_async(self._store, check_key(source), check_key(target))
        except FileNotFoundError as error:
            _not_stored(source, error)

    def delete(self, key: str) -> None:
        """Remove a file; it does not matter whether it is there. Raises InvalidKey."""
        import obstore

        try:
            with self._reached():
                obstore.delete(self._store, check_key(key))
        except FileNotFoundError:
            return  # local directories say so, S3 does not; both mean it is gone

    async def delete_async(self, key: str) -> None:
        """`delete`, for event loops."""
        import obstore

        try:
            with self._reached():
                async with self._promptly():
                    await obstore.delete_async(self._store, check_key(key))
        except FileNotFoundError:
            return  # local directories say so, S3 does not; both mean it is gone

    async def list_async(self, prefix: str = "") -> AsyncIterator[StoredFile]:
        """Every file below a folder, in no particular order. Raises InvalidKey.

        `prefix` is whole path segments: `uploads` does not match `uploads2/…`.
        """
        import obstore

        below = check_key(prefix.rstrip("/")) if prefix.strip("/") else None
        with self._reached():
            batches = aiter(obstore.list(self._store, prefix=below))
        while True:
            try:
                with self._reached():
                    async with self._promptly():
                        batch = await anext(batches)
            except StopAsyncIteration:
                return
            for meta in batch:
                yield StoredFile(meta["path"], meta["size"], meta["last_modified"])

    async def delete_prefix_async(self, prefix: str, *, before: datetime | None = None) -> int:
        """Remove the files below a folder; with `before`, those last put earlier than that.

        Returns how many were removed. Raises InvalidKey, also for the empty prefix: nothing
        removes everything by accident.
        """
        check_key(prefix.rstrip("/"))
        keys = [
            stored.key
            async for stored in self.list_async(prefix)
            if before is None or stored.modified < before
        ]
        for key in keys:
            await self.delete_async(key)
        return len(keys)

    async def size_async(self, prefix: str = "") -> int:
        """Count the bytes below a folder, for quotas and metrics. Raises InvalidKey."""
        return sum([stored.size async for stored in self.list_async(prefix)])


def _not_stored(key: str, error: Exception) -> NoReturn:
    raise NotStored(f"there is no file {key!r} in the storage") from error
