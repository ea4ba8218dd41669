"""Write ended jobs into the archive, before they are removed from the ledger.

    write the file ── register it in the ledger ── remove its jobs in small steps ── settle it

To settle a file is to record which of its jobs were not removed, as something needed them again.
After a crash at any step, no job is lost and none counts twice. An unregistered file counts
nowhere: all its jobs are in the ledger. The jobs of a registered but unsettled file that are still
in the ledger count there; the next process continues to remove them.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from switchyard.services.common.errors import Misconfigured
from switchyard.services.common.files.errors import NotStored, StorageError, StorageUnavailable
from switchyard.services.common.files.storage import PART_BYTES, Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.archive.parquet import (
    JobTable,
    load_duckdb,
    make_secrets_hider,
    read_versions,
)
from switchyard.services.engine.identity.storage_identity import FILE_STORAGE, claim_places
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.archive import (
    ARCHIVE_FOLDER,
    ArchiveFile,
    JobsToArchive,
    WrittenFile,
)

MAX_FILE_JOBS = 10_000
"""Jobs in one file, at most."""
MAX_CONTENT_BYTES = 32 * 1024 * 1024
"""Bytes of payloads, results and errors after which a file is full, before compression."""
MAX_FILE_BYTES = 4 * 1024**3
SETTLE_BATCH_SIZE = 1000
"""Jobs that one query looks up in the ledger."""

ReadJobs = Callable[[Sequence[str]], Awaitable[JobsToArchive]]
"""Reads jobs from the ledger."""


class ArchiveFileDamaged(StorageError, Misconfigured):
    """A registered file is missing in the storage, or has another content; the text says what to
    do."""

    def __init__(self, file: ArchiveFile, *, missing: bool) -> None:
        problem = "is not in the storage" if missing else "is not what was written"
        super().__init__(
            f"file {file.number} of the archive, {file.key}, {problem}: is JOBS_STORAGE_URL right? "
            "Put it back from a backup of the storage; if it is lost for good, remove what is left "
            "of it, and then `jobctl archive forget`"
        )


class JobArchiver:
    """Writes ended jobs into files. Raises ExtraNotInstalled without DuckDB."""

    def __init__(self, settings: Settings, ledger: Ledger, registry: Registry) -> None:
        load_duckdb()
        self._settings = settings
        self._ledger = ledger
        self._hide = make_secrets_hider(registry)
        self._storage = Storage(settings.files_url)
        self._is_claimed = False

    async def write(
        self, job_ids: Sequence[str], read_jobs: ReadJobs, *, batch_size: Callable[[], int]
    ) -> tuple[WrittenFile | None, int]:
        """Write a file with as many of these jobs as fit into it, from the first on, and register
        it. `batch_size()` jobs are read at a time. Returns the file, and how many of the ids were
        handled. The file is None where none of the jobs exists any more, or another process has
        registered a file meanwhile. Raises LedgerError, StorageError."""
        number = 1 + await self._ledger.archive.get_last_number()
        with tempfile.TemporaryDirectory(prefix="switchyard-archive-") as folder:
            table = await asyncio.to_thread(JobTable, Path(folder), self._hide)
            try:
                handled = 0
                while (
                    handled < len(job_ids)
                    and len(table.versions) < MAX_FILE_JOBS
                    and table.content_bytes < MAX_CONTENT_BYTES
                ):
                    batch = job_ids[handled : handled + batch_size()]
                    await asyncio.to_thread(table.add, await read_jobs(batch))
                    handled += len(batch)
                if not table.versions:
                    return None, handled
                path = await asyncio.to_thread(table.write)
                file = await self._store_file(number, path, table)
            finally:
                await asyncio.to_thread(table.close)
        if await self._ledger.archive.register(file):
            return WrittenFile(file, table.versions), handled
        await self._storage.delete_async(file.key)
        return None, handled

    async def _store_file(self, number: int, path: Path, table: JobTable) -> ArchiveFile:
        now = self._ledger.clock.time()
        day = datetime.fromtimestamp(now, UTC).date()
        # A unique name: a process that lost the race must not overwrite another's file.
        key = f"{ARCHIVE_FOLDER}/{day}/{number:08d}-{token_hex(4)}.parquet"
        received = await self._storage.put_stream_async(
            key, _read_parts(path), max_bytes=MAX_FILE_BYTES, durable=True
        )
        creation_times = [version.created_us / 1e6 for version in table.versions.values()]
        return ArchiveFile(
            number=number,
            key=key,
            jobs=len(table.versions),
            attempts=table.attempts,
            bytes=received.size,
            sha256=received.sha256,
            oldest_at=min(creation_times),
            newest_at=max(creation_times),
            created_at=now,
        )

    async def find_interrupted(self) -> WrittenFile | None:
        """Return the unsettled file, whose jobs an earlier pass had begun to remove; None where
        there is none. Raises ArchiveFileDamaged, LedgerError, StorageError, WrongStorage."""
        if not self._is_claimed:
            away = await claim_places(self._settings, self._ledger)
            if FILE_STORAGE in away:
                raise StorageUnavailable(f"the file storage at {self._storage.url} is away")
            self._is_claimed = True
        file = await self._ledger.archive.find_unsettled()
        if file is None:
            return None
        async with local_copy(self._storage, file) as path:
            return WrittenFile(file, await asyncio.to_thread(read_versions, path))

    async def settle(self, written: WrittenFile) -> None:
        """Settle a file: record which of its jobs stay in the ledger, where they count. Raises
        LedgerError."""
        archive, remaining = self._ledger.archive, set[str]()
        ids = list(written.versions)
        for start in range(0, len(ids), SETTLE_BATCH_SIZE):
            batch = ids[start : start + SETTLE_BATCH_SIZE]
            remaining |= await archive.find_remaining(
                {each: written.versions[each] for each in batch}
            )
        await archive.settle(
            written.file.number, {each: written.versions[each] for each in sorted(remaining)}
        )


@asynccontextmanager
async def local_copy(storage: Storage, file: ArchiveFile) -> AsyncIterator[Path]:
    """Yield the path of a checked temporary copy of a file. Raises ArchiveFileDamaged,
    StorageUnavailable."""
    with tempfile.TemporaryDirectory(prefix="switchyard-archive-") as folder:
        path = Path(folder) / "jobs.parquet"
        await copy_file(storage, file, path)
        yield path


async def copy_file(storage: Storage, file: ArchiveFile, path: Path) -> None:
    """Copy a file of the archive to this host, and check its content. Raises ArchiveFileDamaged,
    StorageUnavailable."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("wb") as target:
            async for part in storage.stream_async(file.key):
                size += len(part)
                if size > file.bytes:
                    break
                digest.update(part)
                await asyncio.to_thread(target.write, part)
    except NotStored as error:
        raise ArchiveFileDamaged(file, missing=True) from error
    if (size, digest.hexdigest()) != (file.bytes, file.sha256):
        raise ArchiveFileDamaged(file, missing=False)


async def _read_parts(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as source:
        while part := await asyncio.to_thread(source.read, PART_BYTES):
            yield part
