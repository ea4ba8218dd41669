"""Store files in a directory of this host, each written in one step: the store of `Storage` where
no object store is set.

A put writes `name#123` beside its target and renames it. Keys have no `#`, so the file that a
killed put leaves belongs to no key: no listing has it, and the storage's clean-up removes it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedReader, BufferedWriter
from pathlib import Path
from stat import S_ISREG

from switchyard.services.common.files.errors import FileTooLarge

MAX_BATCH_FILES = 1000
"""Files that a listing finds in one step."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it."""

    key: str
    size: int
    """Bytes."""
    modified: datetime
    """When the file was last put, with a time zone."""


@dataclass(frozen=True, slots=True)
class FileDirectory:
    """A directory whose files are found by their keys. It blocks: event loops call it in threads.

    Keys are checked by the caller. Methods raise FileNotFoundError where a key has no file, and
    OSError."""

    root: Path

    @contextmanager
    def writing(
        self, key: str, *, replace: bool = True, durable: bool = False
    ) -> Iterator[BufferedWriter]:
        """Open a file that appears under its key when the block ends, and leaves nothing if the
        block fails. A `durable` file and its name are synced to the disk. Raises FileExistsError
        where there is a file and `replace` is False."""
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"{target.name}#{random.randrange(10**12)}")
        file = unfinished.open("xb")
        try:
            with file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            if replace:
                unfinished.replace(target)
            else:
                target.hardlink_to(unfinished)
            if durable:
                self._sync_folders(target.parent)
        finally:
            with suppress(FileNotFoundError):
                unfinished.unlink()

    def _sync_folders(self, folder: Path) -> None:
        """Sync the names in a folder to the disk, and those in the folders above it."""
        while folder.is_relative_to(self.root):
            sync_folder(folder)
            folder = folder.parent

    def put(self, key: str, data: bytes) -> None:
        """Write a file, replacing what was there."""
        with self.writing(key) as file:
            file.write(data)

    def put_new(self, key: str, data: bytes) -> bool:
        """Write a file unless there is one. Returns False if there is one."""
        # Before the `try`: a file where the folder should be is an error, and not the file asked
        # for.
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.writing(key, replace=False) as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def open(self, key: str, start: int = 0) -> BufferedReader:
        """Open a file at a byte offset."""
        with _raising_missing():
            file = (self.root / key).open("rb")
        file.seek(start)
        return file

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        """Return a whole file. Raises FileTooLarge before reading it."""
        with self.open(key) as file:
            size = os.fstat(file.fileno()).st_size
            if max_bytes is not None and size > max_bytes:
                raise FileTooLarge(f"{size:,} bytes, {max_bytes:,} are allowed")
            return file.read()

    def stat(self, key: str) -> StoredFile:
        """Return size and time of a file."""
        with _raising_missing():
            status = (self.root / key).stat()
        if not S_ISREG(status.st_mode):
            raise FileNotFoundError(key)
        return _stored_file(key, status)

    def rename(self, source: str, target: str) -> None:
        """Give a file another key, replacing what is there."""
        self.stat(source)
        (self.root / target).parent.mkdir(parents=True, exist_ok=True)
        (self.root / source).replace(self.root / target)

    def delete(self, key: str) -> None:
        """Remove a file."""
        self.stat(key)
        (self.root / key).unlink()

    def list(self, prefix: str = "") -> Iterator[list[StoredFile]]:
        """Yield the files below a folder, up to MAX_BATCH_FILES at a time, in no particular
        order."""
        batch: list[StoredFile] = []
        folders = [prefix]
        while folders:
            folder = folders.pop()
            try:
                entries = os.scandir(self.root / folder)
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed meanwhile, or never there
            with entries:
                for entry in entries:
                    if "#" in entry.name:
                        continue
                    key = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir():
                        folders.append(key)
                        continue
                    with suppress(FileNotFoundError):
                        if S_ISREG((status := entry.stat()).st_mode):
                            batch.append(_stored_file(key, status))
                    if len(batch) >= MAX_BATCH_FILES:
                        yield batch
                        batch = []
        yield batch


def sync_folder(folder: Path) -> None:
    """Sync a folder to the disk: the names of files that were made or renamed in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stored_file(key: str, status: os.stat_result) -> StoredFile:
    return StoredFile(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


@contextmanager
def _raising_missing() -> Iterator[None]:
    """Wrap code that opens a key: a folder in its place, or a file as a parent, counts as
    missing."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError) as error:
        raise FileNotFoundError(*error.args) from error
