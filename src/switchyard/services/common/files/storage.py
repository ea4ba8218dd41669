"""File storage: uploads, outputs of pipeline stages, and results.

One class over directories of this host (`directory.py`) and object stores: S3 and Azure, by
obstore, which the extra `s3` brings. Every put is atomic: a reader sees the whole old file, the
whole new file or none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

from switchyard.services.common.extras import naming_extra
from switchyard.services.common.files.directory import FileDirectory, StoredFile
from switchyard.services.common.files.errors import (
    FileTooLarge,
    NotStored,
    StorageUnavailable,
    is_without_bucket,
    mapping_disk_full,
    unavailable_error,
)
from switchyard.services.common.files.storage_keys import check_key

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 1024 * 1024
"""Approximate number of bytes of a streamed file that are in memory at once."""

RETRY_TIMEOUT = timedelta(seconds=20)
"""How long requests to an object store that does not answer are repeated. It can be short, as jobs
are tried again. obstore gives up a single request after 30 s."""
FAIL_FAST_TIMEOUT = 8.0
"""Seconds that a store may be silent while a client waits, who can try again."""
PARTS_AT_ONCE = 2
"""Parts, of 5 MiB each, that are written at the same time and so kept in memory."""


def directory_of(url: str) -> Path | None:
    """Return the directory of this host that an address names; None for one elsewhere."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None


@dataclass(frozen=True, slots=True)
class StreamDigest:
    """Size and hash of a stored stream."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""


class _PartTimer:
    """Measures how long a store has held a part without asking for the next one."""

    def __init__(self) -> None:
        self._since: float | None = time.monotonic()

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        self._since = None

    @property
    def seconds(self) -> float:
        """Seconds since the store got its last part; 0 while the sender has not sent the next."""
        return 0.0 if self._since is None else time.monotonic() - self._since


@dataclass(frozen=True)
class Storage:
    """Files under one address: `file:///…`, `s3://bucket/…`, `az://account/container/…`.

    It holds only the address, and opens the store when it is first used; so it can be pickled and
    sent to another process. Credentials come from the environment, in the form of each cloud. All
    methods raise StorageUnavailable where an object store does not answer.
    """

    url: str
    fail_fast: bool = False
    """Whether a client waits for the answer: then calls of a store that does not answer fail after
    FAIL_FAST_TIMEOUT."""
    _opened: list[ObjectStore] = field(
        default_factory=list, init=False, repr=False, compare=False, hash=False
    )

    def __reduce__(self) -> tuple[type[Storage], tuple[str, bool]]:
        return (Storage, (self.url, self.fail_fast))

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Wrap every call of an object store. Raises StorageUnavailable where it does not answer or
        refuses, ExtraNotInstalled, and FileNotFoundError for a missing file, not a missing
        bucket."""
        with naming_extra():
            from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (GenericError, PermissionDeniedError, UnauthenticatedError) as error:
            raise unavailable_error(self.url, error) from error
        except FileNotFoundError as error:
            if is_without_bucket(error):
                raise unavailable_error(self.url, error) from error
            raise

    @asynccontextmanager
    async def _failing_fast(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Wrap calls that an object store answers at once. Raises StorageUnavailable where a caller
        waits and the answer takes longer than `seconds`, by default FAIL_FAST_TIMEOUT."""
        try:
            async with asyncio.timeout(
                (seconds or FAIL_FAST_TIMEOUT) if self._is_awaited else None
            ):
                yield
        except TimeoutError as error:
            raise StorageUnavailable(f"the file storage at {self.url} does not answer") from error

    async def _wait_for_write(
        self, writing: Awaitable[object], key: str, timer: _PartTimer
    ) -> None:
        """Wait for a write of any length. If a client waits and the store asks for no further part
        for a while, send a small request to find out whether the store is slow or silent."""
        if not self._is_awaited:
            await writing
            return
        task = asyncio.ensure_future(writing)
        try:
            while not (await asyncio.wait((task,), timeout=FAIL_FAST_TIMEOUT / 8))[0]:
                if timer.seconds > FAIL_FAST_TIMEOUT * 3 / 8:
                    async with self._failing_fast(FAIL_FAST_TIMEOUT / 2):
                        await self.stat_async(key)
                    timer.begin()
            task.result()
        finally:
            task.cancel()

    @property
    def _is_awaited(self) -> bool:
        return self.fail_fast and self._directory is None

    @property
    def _directory(self) -> FileDirectory | None:
        """The directory of this host with the files; None for an object store."""
        folder = directory_of(self.url)
        return None if folder is None else FileDirectory(folder)

    @property
    def _store(self) -> ObjectStore:
        """Raises ExtraNotInstalled."""
        if not self._opened:
            with naming_extra():
                from obstore.store import from_url
            self._opened.append(from_url(self.url, retry_config={"retry_timeout": RETRY_TIMEOUT}))
        return self._opened[0]

    def put(self, key: str, data: bytes) -> None:
        """Write a file in one step, replacing what was there. Raises InvalidKey, DiskFull."""
        check_key(key)
        with mapping_disk_full():
            if (directory := self._directory) is not None:
                directory.put(key, data)
                return
            # One request, not a multipart upload: nothing is left behind when it is cut off.
            with self._translate_errors():
                self._store.put(key, data, use_multipart=False)

    async def put_async(self, key: str, data: bytes) -> None:
        """Write a file as `put` does, from an event loop."""
        if self._directory is not None:
            await asyncio.to_thread(self.put, key, data)
            return
        with self._translate_errors():
            await self._store.put_async(check_key(key), data, use_multipart=False)

    async def put_new_async(self, key: str, data: bytes) -> bool:
        """Write a file if there is none under that key. Returns False if there is one. Raises
        InvalidKey, DiskFull."""
        check_key(key)
        if (directory := self._directory) is not None:
            with mapping_disk_full():
                return await asyncio.to_thread(directory.put_new, key, data)
        with naming_extra():
            from obstore.exceptions import AlreadyExistsError
        try:
            with self._translate_errors():
                await self._store.put_async(key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    async def put_stream_async(
        self, key: str, parts: AsyncIterable[bytes], *, max_bytes: int, durable: bool = False
    ) -> StreamDigest:
        """Write a file as it comes in, with a few parts in memory at a time. With `durable`, the
        file is synced to the disk before this returns; an object store always does so.

        Raises InvalidKey, FileTooLarge, DiskFull, and whatever `parts` raises; no file is left
        then.
        """
        check_key(key)
        digest = hashlib.sha256()
        size = 0
        timer = _PartTimer()

        async def measured_parts() -> AsyncIterator[bytes]:
            nonlocal size
            timer.end()
            async for part in parts:
                size += len(part)
                if size > max_bytes:
                    raise FileTooLarge(f"more than the {max_bytes:,} bytes allowed")
                digest.update(part)
                if part:
                    timer.begin()
                    yield part
                    timer.end()
            timer.begin()

        if (directory := self._directory) is not None:
            with mapping_disk_full():
                await _write_in_parts(directory, key, measured_parts(), durable=durable)
        else:
            with self._translate_errors():
                writing = self._store.put_async(
                    key, measured_parts(), max_concurrency=PARTS_AT_ONCE
                )
                await self._wait_for_write(writing, key, timer)
        return StreamDigest(size, digest.hexdigest())

    def get(self, key: str) -> bytes:
        """Return a whole file. Raises NotStored, InvalidKey."""
        check_key(key)
        try:
            if (directory := self._directory) is not None:
                return directory.get(key)
            with self._translate_errors():
                return bytes(self._store.get(key).bytes())
        except FileNotFoundError as error:
            _raise_not_stored(key, error)

    async def get_async(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """Return a whole file. Raises NotStored, InvalidKey, FileTooLarge (before reading it)."""
        check_key(key)
        try:
            if (directory := self._directory) is not None:
                return await asyncio.to_thread(directory.get, key, max_bytes)
            with self._translate_errors():
                async with self._failing_fast():
                    answer = await self._store.get_async(key)
                    if max_bytes is not None and (size := answer.meta["size"]) > max_bytes:
                        raise FileTooLarge(f"{size:,} bytes, {max_bytes:,} are allowed")
                    return bytes(await answer.bytes_async())
        except FileNotFoundError as error:
            _raise_not_stored(key, error)

    async def get_json_async(
        self, key: str, *, max_bytes: int | None = None
    ) -> dict[str, Any] | None:
        """Return a stored JSON object; None where there is none. Raises InvalidKey, FileTooLarge,
        ValueError."""
        from pydantic_core import from_json

        try:
            content = await self.get_async(key, max_bytes=max_bytes)
        except NotStored:
            return None
        try:
            # Twice as fast as `json`, which would block the event loop for long with a large file.
            value = from_json(content)
        except ValueError:  # pydantic refuses lone surrogates
            value = json.loads(content)
        return value if isinstance(value, dict) else None

    async def stream_async(self, key: str, *, start: int = 0) -> AsyncIterator[bytes]:
        """Yield a file from the byte `start` on, in parts of about 1 MiB. Raises NotStored,
        InvalidKey."""
        check_key(key)
        try:
            if (directory := self._directory) is not None:
                with await asyncio.to_thread(directory.open, key, start) as file:
                    while part := await asyncio.to_thread(file.read, PART_BYTES):
                        yield part
                return
            stored = await self.stat_async(key)
            if stored is not None and 0 < stored.size <= start:
                return  # stores refuse a range that is empty
            with self._translate_errors():
                answer = await self._store.get_async(
                    key, options={"range": {"offset": start}} if start else {}
                )
                async for part in answer.stream(min_chunk_size=PART_BYTES):
                    yield bytes(part)
        except FileNotFoundError as error:
            _raise_not_stored(key, error)

    async def stat_async(self, key: str) -> StoredFile | None:
        """Return the size and time of a file; None when there is none. Raises InvalidKey."""
        check_key(key)
        try:
            if (directory := self._directory) is not None:
                return await asyncio.to_thread(directory.stat, key)
            with self._translate_errors():
                async with self._failing_fast():
                    meta = await self._store.head_async(key)
        except FileNotFoundError:
            return None
        return StoredFile(meta["path"], meta["size"], meta["last_modified"])

    async def exists_async(self, key: str) -> bool:
        """Return whether there is a file under that key. Raises InvalidKey."""
        return await self.stat_async(key) is not None

    async def rename_async(self, source: str, target: str) -> None:
        """Give a file another key, replacing what is there. Raises NotStored, InvalidKey,
        DiskFull."""
        check_key(source)
        check_key(target)
        try:
            if (directory := self._directory) is not None:
                with mapping_disk_full():
                    await asyncio.to_thread(directory.rename, source, target)
                return
            with self._translate_errors():
                await self._store.rename_async(source, target)
        except FileNotFoundError as error:
            _raise_not_stored(source, error)

    def delete(self, key: str) -> None:
        """Remove a file; a missing one is no error. Raises InvalidKey."""
        check_key(key)
        # A directory reports a missing file, S3 does not; either way it is gone.
        with suppress(FileNotFoundError):
            if (directory := self._directory) is not None:
                directory.delete(key)
                return
            with self._translate_errors():
                self._store.delete(key)

    async def delete_async(self, key: str) -> None:
        """Remove a file as `delete` does, from an event loop."""
        if self._directory is not None:
            await asyncio.to_thread(self.delete, key)
            return
        check_key(key)
        with suppress(FileNotFoundError), self._translate_errors():
            async with self._failing_fast():
                await self._store.delete_async(key)

    async def list_async(self, prefix: str = "") -> AsyncIterator[StoredFile]:
        """Yield every file below a folder, in no particular order. Raises InvalidKey.

        `prefix` consists of whole path segments: `uploads` does not match `uploads2/…`.
        """
        folder = check_key(prefix.rstrip("/")) if prefix.strip("/") else None
        if (directory := self._directory) is not None:
            listing = directory.list(folder or "")
            while (files := await asyncio.to_thread(next, listing, None)) is not None:
                for file in files:
                    yield file
            return
        with self._translate_errors():
            batches = aiter(self._store.list(prefix=folder))
        while True:
            try:
                with self._translate_errors():
                    async with self._failing_fast():
                        batch = await anext(batches)
            except StopAsyncIteration:
                return
            for meta in batch:
                yield StoredFile(meta["path"], meta["size"], meta["last_modified"])

    async def delete_prefix_async(self, prefix: str, *, before: datetime | None = None) -> int:
        """Remove the files below a folder; with `before`, those last put earlier than that.

        Return how many were removed. Raises InvalidKey, also for the empty prefix, so that no call
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


def _raise_not_stored(key: str, error: Exception) -> NoReturn:
    raise NotStored(f"there is no file {key!r} in the storage") from error


async def _write_in_parts(
    directory: FileDirectory, key: str, parts: AsyncIterator[bytes], *, durable: bool
) -> None:
    """Write parts as they come, one or two in memory at a time, and never in the event loop."""
    writing = directory.writing(key, durable=durable)
    file = await asyncio.to_thread(writing.__enter__)
    try:
        buffer = bytearray()
        async for part in parts:
            buffer += part
            if len(buffer) >= PART_BYTES:
                await asyncio.to_thread(file.write, bytes(buffer))
                buffer.clear()
        await asyncio.to_thread(file.write, bytes(buffer))
    except BaseException as error:
        if not writing.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(writing.__exit__, None, None, None)
