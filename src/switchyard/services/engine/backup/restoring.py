"""Checking an archive, and putting it in the place of a system that does not run.

Everything is unpacked and checked beside its place first. Then the ledger is moved away, files and
index are exchanged, and the new ledger comes last: without a ledger no process runs, so none sees
half of both. A journal beside the ledger says that this is under way; where it was interrupted, the
next restore puts the old state back first.
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
from switchyard.services.engine.backup.creating import folders, ledger_file
from switchyard.services.engine.ledger.sql.database import JOURNAL_SUFFIX

KEPT, LEAVING, NEW = "#before-restore-", "#leaving-", "#restore-"
"""Prefixes of the directories for old files, for those being moved there, and for new ones. No
listing shows them."""


class SystemRuns(ConflictError):
    """A process has the ledger open."""


class PlaceTaken(ConflictError):
    """There is data in the place of what is to be restored."""


@dataclass(frozen=True, slots=True)
class RestoredBackup:
    """Result of a restore."""

    manifest: Manifest
    ledger: Path
    kept: tuple[Path, ...]
    """Paths of the earlier data."""
    undid: bool
    """An earlier restore was interrupted: what it had moved was put back first."""


def verify_backup(archive: Path) -> Manifest:
    """Check every byte of an archive, and its ledger by SQLite's own check, without touching any
    system. Raises BackupMissing, InvalidBackup, DiskFull."""
    if not archive.exists():
        raise BackupMissing(f"there is no backup at {archive}")
    beside = archive.absolute().parent
    room = beside if os.access(beside, os.W_OK) else None
    with mapping_disk_full(), TemporaryDirectory(prefix="#verify-", dir=room) as folder:
        ledger = Path(folder) / LEDGER
        manifest = read_archive(archive, lambda name: ledger if name == LEDGER else None)
        check_ledger(ledger, manifest)
    return manifest


def restore_backup(settings: Settings, archive: Path, *, replace: bool) -> RestoredBackup:
    """Restore ledger, files and index from an archive. With `replace`, the earlier data is kept
    beside it. If anything fails, the old state stays.

    Raises LedgerOnServer, SystemRuns, PlaceTaken, BackupMissing, InvalidBackup, DiskFull.
    """
    place = _Place(ledger_file(settings), folders(settings)[0])
    if not archive.exists():
        raise BackupMissing(f"there is no backup at {archive}")
    place.make_folders()
    with place.alone():
        return _restore(place, archive, replace=replace)


def _restore(place: _Place, archive: Path, *, replace: bool) -> RestoredBackup:
    undid = place.undo()
    _require_free(place, replace=replace)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    size = archive.stat().st_size
    for room in (place.ledger.parent, *place.folders.values()):
        if shutil.disk_usage(room).free < size:
            raise DiskFull(f"{room} has less than the {size:,} bytes free that the archive has")
    try:
        with mapping_disk_full():
            manifest = read_archive(archive, lambda name: place.staged(stamp, name))
        check_ledger(place.new_ledger(stamp), manifest)
        os.sync()
        _require_stopped(place.ledger)
    except BaseException:
        place.drop_staged(stamp)
        raise
    try:
        place.exchange(stamp)
    except BaseException:
        place.undo()
        place.drop_staged(stamp)
        raise
    return RestoredBackup(manifest, place.ledger, tuple(place.kept(stamp)), undid)


def _require_free(place: _Place, *, replace: bool) -> None:
    taken = list(place.taken())
    if taken and not replace:
        raise PlaceTaken(
            f"there is data at {taken[0]}: with --replace it is kept beside the restored one; or "
            "set JOBS_DATA_DIR to a new directory"
        )
    _require_stopped(place.ledger)


def _require_stopped(ledger: Path) -> None:
    """Raise SystemRuns while any process has the ledger open: each keeps a lock on the file of a
    write-ahead log, which SQLite would have to remove."""
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
        return  # it is damaged, and nobody can work with it


class _Place:
    """Locations of a system: its ledger's file and its directories on this host."""

    def __init__(self, ledger: Path, folders: dict[str, Path]) -> None:
        self.ledger = ledger
        self.folders = folders
        self._journal = ledger.with_name(ledger.name + JOURNAL_SUFFIX)

    def taken(self) -> Iterable[Path]:
        """Yield the parts that have data."""
        if self.ledger.exists():
            yield self.ledger
        for folder in self.folders.values():
            if any(_entries(folder)):
                yield folder

    def make_folders(self) -> None:
        """Make the directories that are not there."""
        self.ledger.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in self.folders.values():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def alone(self) -> Iterator[None]:
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
        """Return where the new ledger waits."""
        return self.ledger.with_name(f"{self.ledger.name}{NEW}{stamp}")

    def staged(self, stamp: str, name: str) -> Path | None:
        """Return where a member of the archive waits; None for what has no place on this host."""
        if name == LEDGER:
            return self.new_ledger(stamp)
        folder, slash, key = name.partition("/")
        if not slash or folder not in self.folders:
            return None
        target = self.folders[folder] / f"{NEW}{stamp}" / key
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def drop_staged(self, stamp: str) -> None:
        """Remove what waits."""
        self.new_ledger(stamp).unlink(missing_ok=True)
        for folder in self.folders.values():
            shutil.rmtree(folder / f"{NEW}{stamp}", ignore_errors=True)

    def kept(self, stamp: str) -> Iterable[Path]:
        """Yield where the old data is; where there was none, nothing is left."""
        if (old := self._old_ledger(stamp)).exists():
            yield old
        for folder in self.folders.values():
            aside = folder / f"{KEPT}{stamp}"
            if any(_entries(aside)):
                yield aside
            else:
                with suppress(FileNotFoundError):
                    aside.rmdir()

    def exchange(self, stamp: str) -> None:
        """Move the old data aside, and the new data into its place, the ledger first and last."""
        _write_durably(self._journal, json.dumps({"stamp": stamp}))
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self.ledger}{suffix}").rename(f"{self._old_ledger(stamp)}{suffix}")
        for folder in self.folders.values():
            leaving = folder / f"{LEAVING}{stamp}"
            leaving.mkdir(mode=0o700)
            _move(_entries(folder), leaving)
            leaving.rename(folder / f"{KEPT}{stamp}")
            new = folder / f"{NEW}{stamp}"
            if new.is_dir():
                _move(_entries(new), folder)
                new.rmdir()
        os.sync()
        self.new_ledger(stamp).rename(self.ledger)
        sync_folder(self.ledger.parent)
        self._journal.unlink()

    def undo(self) -> bool:
        """Put back what an exchange that was interrupted had moved, and remove what restores that
        were killed had unpacked. False if nothing had been moved."""
        try:
            stamp = str(json.loads(self._journal.read_text())["stamp"])
        except FileNotFoundError:
            for left in self.ledger.parent.glob(f"{self.ledger.name}{NEW}*"):
                left.unlink()
            for folder in self.folders.values():
                for left in folder.glob(f"{NEW}*"):
                    shutil.rmtree(left)
            return False
        if self.new_ledger(stamp).exists():
            for folder in self.folders.values():
                leaving, aside = folder / f"{LEAVING}{stamp}", folder / f"{KEPT}{stamp}"
                if aside.is_dir():  # all old files had left, so what is there is new
                    new = folder / f"{NEW}{stamp}"
                    new.mkdir(exist_ok=True)
                    _move(_entries(folder), new)
                    aside.rename(leaving)
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
        return self.ledger.with_name(f"{self.ledger.name}{KEPT}{stamp}")


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
    new = file.with_name(f"{file.name}#")
    with new.open("w") as writing:
        writing.write(text)
        writing.flush()
        os.fsync(writing.fileno())
    new.rename(file)
    sync_folder(file.parent)
