"""Check an archive, and restore a stopped system from it.

Everything is unpacked beside its destination and checked. Then the old ledger is moved away, files
and index are exchanged, and the new ledger is moved in last. Without a ledger no process runs, so
none sees a mixture. A journal beside the ledger marks a restore under way; after an interruption,
the next restore puts the old state back first.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from switchyard.services.common.errors import ConflictError
from switchyard.services.common.files.directory import sync_folder
from switchyard.services.common.files.errors import DiskFull, mapping_disk_full
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backup.archive import (
    LEDGER,
    BackupMissing,
    Manifest,
    check_ledger,
    read_archive,
)
from switchyard.services.engine.backup.creating import data_folders, ledger_file
from switchyard.services.engine.ledger.sql.database import JOURNAL_SUFFIX

OLD_PREFIX, LEAVING_PREFIX, NEW_PREFIX = "#before-restore-", "#leaving-", "#restore-"
"""Prefixes of the directories for old files, for those being moved there, and for new ones. No
listing shows them."""


class SystemRuns(ConflictError):
    """A process has the ledger open."""


class PlaceTaken(ConflictError):
    """There is data at the path of a part that is to be restored."""


@dataclass(frozen=True, slots=True)
class RestoredBackup:
    """Result of a restore."""

    manifest: Manifest
    ledger: Path
    kept: tuple[Path, ...]
    """Paths of the earlier data."""
    undid: bool
    """Whether an earlier restore was interrupted, and its changes were undone first."""


def verify_backup(archive: Path) -> Manifest:
    """Check every byte of an archive, and its ledger by SQLite's own check, without changing a
    system. Raises BackupMissing, InvalidBackup, DiskFull."""
    if not archive.exists():
        raise BackupMissing(f"there is no backup at {archive}")
    beside = archive.absolute().parent
    directory = beside if os.access(beside, os.W_OK) else None
    with mapping_disk_full(), TemporaryDirectory(prefix="#verify-", dir=directory) as folder:
        ledger = Path(folder) / LEDGER
        manifest = read_archive(archive, lambda name: ledger if name == LEDGER else None)
        check_ledger(ledger, manifest)
    return manifest


def restore_backup(settings: Settings, archive: Path, *, replace: bool) -> RestoredBackup:
    """Restore ledger, files and index from an archive. With `replace`, the earlier data is kept
    beside it. If anything fails, the old state stays.

    Raises LedgerOnServer, SystemRuns, PlaceTaken, BackupMissing, InvalidBackup, DiskFull.
    """
    location = _SystemLocation(ledger_file(settings), data_folders(settings)[0])
    if not archive.exists():
        raise BackupMissing(f"there is no backup at {archive}")
    location.make_folders()
    with location.locked():
        return _restore(location, archive, replace=replace)


def _restore(location: _SystemLocation, archive: Path, *, replace: bool) -> RestoredBackup:
    undid = location.undo()
    _require_unoccupied(location, replace=replace)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    size = archive.stat().st_size
    for directory in (location.ledger.parent, *location.folders.values()):
        if shutil.disk_usage(directory).free < size:
            raise DiskFull(
                f"{directory} has less than the {size:,} bytes free that the archive has"
            )
    try:
        with mapping_disk_full():
            manifest = read_archive(archive, lambda name: location.staged_path(stamp, name))
        check_ledger(location.new_ledger(stamp), manifest)
        os.sync()
        _require_stopped(location.ledger)
    except BaseException:
        location.drop_staged(stamp)
        raise
    try:
        location.exchange(stamp)
    except BaseException:
        location.undo()
        location.drop_staged(stamp)
        raise
    return RestoredBackup(manifest, location.ledger, tuple(location.list_old(stamp)), undid)


def _require_unoccupied(location: _SystemLocation, *, replace: bool) -> None:
    occupied = list(location.occupied())
    if occupied and not replace:
        raise PlaceTaken(
            f"there is data at {occupied[0]}: with --replace it is kept beside the restored one; "
            "or set JOBS_DATA_DIR to a new directory"
        )
    _require_stopped(location.ledger)


def _require_stopped(ledger: Path) -> None:
    """Raise SystemRuns while a process has the ledger open. Leaving WAL mode needs an exclusive
    lock, which SQLite refuses as long as another connection is open."""
    if not ledger.exists():
        return
    try:
        with closing(sqlite3.connect(ledger, timeout=0, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise SystemRuns(
                f"a process uses the ledger at {ledger}: stop `jobctl up`, or workers, scheduler "
                f"and API; `fuser {ledger}` shows which"
            ) from error
        raise
    except sqlite3.DatabaseError:
        return  # it is damaged: no process can use it


class _SystemLocation:
    """Locations of a system: its ledger's file and its directories on this host."""

    def __init__(self, ledger: Path, folders: dict[str, Path]) -> None:
        self.ledger = ledger
        self.folders = folders
        self._journal = ledger.with_name(ledger.name + JOURNAL_SUFFIX)

    def occupied(self) -> Iterable[Path]:
        """Yield the parts that have data."""
        if self.ledger.exists():
            yield self.ledger
        for folder in self.folders.values():
            if any(_entries(folder)):
                yield folder

    def make_folders(self) -> None:
        """Make the missing directories."""
        self.ledger.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in self.folders.values():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other restores out. Raises SystemRuns."""
        descriptor = os.open(self.ledger.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise SystemRuns(f"another restore into {self.ledger.parent} is under way") from error
        finally:
            os.close(descriptor)

    def new_ledger(self, stamp: str) -> Path:
        """Return the temporary path of the new ledger."""
        return self.ledger.with_name(f"{self.ledger.name}{NEW_PREFIX}{stamp}")

    def staged_path(self, stamp: str, name: str) -> Path | None:
        """Return the temporary path of a member of the archive; None for a member that is not
        restored here."""
        if name == LEDGER:
            return self.new_ledger(stamp)
        folder, slash, key = name.partition("/")
        if not slash or folder not in self.folders:
            return None
        target = self.folders[folder] / f"{NEW_PREFIX}{stamp}" / key
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def drop_staged(self, stamp: str) -> None:
        """Remove the unpacked members."""
        self.new_ledger(stamp).unlink(missing_ok=True)
        for folder in self.folders.values():
            shutil.rmtree(folder / f"{NEW_PREFIX}{stamp}", ignore_errors=True)

    def list_old(self, stamp: str) -> Iterable[Path]:
        """Yield the paths of the old data; remove the empty directories of parts that had none."""
        if (old := self._old_ledger(stamp)).exists():
            yield old
        for folder in self.folders.values():
            old_folder = folder / f"{OLD_PREFIX}{stamp}"
            if any(_entries(old_folder)):
                yield old_folder
            else:
                with suppress(FileNotFoundError):
                    old_folder.rmdir()

    def exchange(self, stamp: str) -> None:
        """Move the old data aside and the new data in: first the old ledger out, last the new
        ledger in."""
        _write_durably(self._journal, json.dumps({"stamp": stamp}))
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self.ledger}{suffix}").rename(f"{self._old_ledger(stamp)}{suffix}")
        for folder in self.folders.values():
            leaving = folder / f"{LEAVING_PREFIX}{stamp}"
            leaving.mkdir(mode=0o700)
            _move(_entries(folder), leaving)
            leaving.rename(folder / f"{OLD_PREFIX}{stamp}")
            new_folder = folder / f"{NEW_PREFIX}{stamp}"
            if new_folder.is_dir():
                _move(_entries(new_folder), folder)
                new_folder.rmdir()
        os.sync()
        self.new_ledger(stamp).rename(self.ledger)
        sync_folder(self.ledger.parent)
        self._journal.unlink()

    def undo(self) -> bool:
        """Undo an interrupted exchange, and remove the unpacked members of killed restores. Return
        False if nothing was moved."""
        try:
            stamp = str(json.loads(self._journal.read_text())["stamp"])
        except FileNotFoundError:
            for leftover in self.ledger.parent.glob(f"{self.ledger.name}{NEW_PREFIX}*"):
                leftover.unlink()
            for folder in self.folders.values():
                for leftover in folder.glob(f"{NEW_PREFIX}*"):
                    shutil.rmtree(leftover)
            return False
        if self.new_ledger(stamp).exists():
            for folder in self.folders.values():
                leaving = folder / f"{LEAVING_PREFIX}{stamp}"
                old_folder = folder / f"{OLD_PREFIX}{stamp}"
                if old_folder.is_dir():  # all old files were moved out, so the present ones are new
                    new_folder = folder / f"{NEW_PREFIX}{stamp}"
                    new_folder.mkdir(exist_ok=True)
                    _move(_entries(folder), new_folder)
                    old_folder.rename(leaving)
                if leaving.is_dir():
                    _move(_entries(leaving), folder)
                    leaving.rmdir()
            for suffix in ("-wal", "-shm", ""):
                with suppress(FileNotFoundError):
                    Path(f"{self._old_ledger(stamp)}{suffix}").rename(f"{self.ledger}{suffix}")
            self.drop_staged(stamp)
        self._journal.unlink()
        return True

    def _old_ledger(self, stamp: str) -> Path:
        return self.ledger.with_name(f"{self.ledger.name}{OLD_PREFIX}{stamp}")


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a directory, without those of backups and restores."""
    try:
        return [each for each in folder.iterdir() if not each.name.startswith("#")]
    except FileNotFoundError:
        return []


def _move(entries: Iterable[Path], folder: Path) -> None:
    for each in entries:
        each.rename(folder / each.name)


def _write_durably(file: Path, text: str) -> None:
    temporary = file.with_name(f"{file.name}#")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(file)
    sync_folder(file.parent)
