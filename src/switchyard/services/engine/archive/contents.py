"""List the content of the archive: the files that the ledger knows, and those in the storage."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.services.common.files.directory import StoredFile
from switchyard.services.common.files.storage import Storage
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.archive import ARCHIVE_FOLDER, ArchiveFile


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """The files of the archive, in the ledger and in the storage."""

    files: tuple[ArchiveFile, ...]
    """Files that the ledger knows, oldest first."""
    missing: tuple[ArchiveFile, ...]
    """Known files that are not in the storage, or have another size there."""
    leftovers: tuple[StoredFile, ...]
    """Files that the ledger does not know, as a process ended before it registered them. Their jobs
    are in the ledger, and nothing reads them."""


async def read_contents(ledger: Ledger, storage: Storage) -> ArchiveContents:
    """Compare ledger and storage. Raises LedgerError, StorageUnavailable."""
    known_before = await ledger.archive.list_files()
    stored = {each.key: each async for each in storage.list_async(ARCHIVE_FOLDER)}
    files = await ledger.archive.list_files()
    missing = [
        file
        for file in known_before
        if (found := stored.get(file.key)) is None or found.size != file.bytes
    ]
    known_keys = {file.key for file in files}
    leftovers = [each for key, each in sorted(stored.items()) if key not in known_keys]
    return ArchiveContents(tuple(files), tuple(missing), tuple(leftovers))


async def remove_old(ledger: Ledger, storage: Storage, age: float) -> tuple[ArchiveFile, ...]:
    """Remove the files that were written more than `age` seconds ago, except an unsettled one, and
    return them. After a crash, the next call continues. Raises LedgerError, StorageUnavailable."""
    oldest = ledger.clock.time() - age
    old = [
        file
        for file in await ledger.archive.list_files()
        if file.created_at < oldest and file.settled_at is not None
    ]
    for file in old:
        await storage.delete_async(file.key)
        await ledger.archive.forget([file.number])
    return tuple(old)


async def forget_missing(ledger: Ledger, storage: Storage) -> tuple[ArchiveFile, ...]:
    """Delete the ledger's records of files that are missing from the storage, and return them.
    Raises LedgerError, StorageUnavailable."""
    missing = [
        file
        for file in (await read_contents(ledger, storage)).missing
        if not await storage.exists_async(file.key)
    ]
    await ledger.archive.forget([file.number for file in missing])
    return tuple(missing)
