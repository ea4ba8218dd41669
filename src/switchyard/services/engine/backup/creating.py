"""Copy a running system into one archive.

The stored files are linked before the ledger is copied, and again after it. So the archive has all
files that a job of the copied ledger needs: those that were removed meanwhile, and those that were
added. Files that the copied ledger does not know do no harm.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

from sqlalchemy import make_url

from switchyard.services.common.errors import ConflictError, InvalidInput
from switchyard.services.common.files.directory import FileDirectory
from switchyard.services.common.files.errors import DiskFull, InvalidKey, mapping_disk_full
from switchyard.services.common.files.storage import directory_of
from switchyard.services.common.files.storage_keys import check_key
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backup.archive import (
    DEFINITIONS,
    FORMAT,
    LEDGER,
    ArchiveWriter,
    Manifest,
    read_facts,
)
from switchyard.services.engine.identity.postgres import is_postgres, without_credentials
from switchyard.services.engine.ledger import Ledger

STAGING = "#backup-"
"""Prefix of the directories into which a backup links files; no listing shows them."""
STAGING_TTL = 24 * 3600.0
"""Seconds after which such a directory counts as left over from a killed backup."""
MAX_TRIES = 3
"""Attempts to copy ledger and files without missing a file that a waiting job names."""
MAX_MISSING = 100
"""Missing files that are listed."""
_STORED_KEY = re.compile(r"(uploads|intermediate|results|sources)/.+")


class LedgerOnServer(ConflictError):
    """The ledger is in PostgreSQL, whose own tools copy it better."""


class BackupExists(ConflictError):
    """There is already a file at the path of the new archive."""


class NoSuchFolder(InvalidInput):
    """The folder for the archive does not exist."""


@dataclass(frozen=True, slots=True)
class CreatedBackup:
    """An archive that was written."""

    archive: Path
    size: int
    """Bytes of the archive."""
    manifest: Manifest


def ledger_file(settings: Settings) -> Path:
    """Return the SQLite file of the ledger. Raises LedgerOnServer."""
    if is_postgres(settings.ledger_url):
        raise LedgerOnServer(
            "the ledger is in PostgreSQL: use pg_dump, or pg_basebackup with an archive of its "
            "write-ahead log, and copy the file storage after it: docs/backup.md#postgresql"
        )
    return Path(make_url(settings.ledger_url).database or "").absolute()


def data_folders(settings: Settings) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the system's directories on this host by their names in an archive; and the parts that
    are stored elsewhere, with advice on copying these."""
    local_folders: dict[str, Path] = {}
    elsewhere: dict[str, str] = {}
    for name, url, remedy in (
        ("files", settings.files_url, "copy the bucket after the ledger"),
        ("index", settings.vectors_url, "copy it by its own means, or build it again"),
    ):
        directory = None if is_postgres(url) else directory_of(url)
        if directory is None:
            elsewhere[name] = f"at {without_credentials(url)}: {remedy} (docs/backup.md)"
        else:
            local_folders[name] = directory.absolute()
    return local_folders, elsewhere


async def create_backup(settings: Settings, target: Path, definitions: str) -> CreatedBackup:
    """Write an archive of the system to a new file; if `target` is a directory, to a new file in
    it.

    Raises LedgerOnServer, BackupExists, NoSuchFolder, InvalidBackup, DiskFull, LedgerError.
    """
    file = ledger_file(settings)
    async with await Ledger.open(settings.ledger_url, check=True) as ledger:
        system = await ledger.system.system()
    archive = _archive_path(target, system.name)
    local_folders, elsewhere = data_folders(settings)
    with (
        mapping_disk_full(),
        _staging_folder(file.parent) as staging,
        _link_files(local_folders) as links,
    ):
        copy = staging / LEDGER
        missing: list[str] | None = None
        for _ in range(MAX_TRIES):
            missing_before = missing
            await asyncio.to_thread(links.link)
            await asyncio.to_thread(_copy_ledger, file, copy)
            await asyncio.to_thread(links.link)
            missing = await _missing_files(copy, links) if "files" in local_folders else []
            if not missing or missing == missing_before:
                break
        facts = await asyncio.to_thread(read_facts, copy, with_indexes=False)
        names = sorted(f"JOBS_{name.upper()}" for name in settings.model_fields_set)
        manifest_fields = {
            "format": FORMAT,
            "made_at": time.time(),
            "program": version("switchyard"),
            **asdict(facts),
            "settings": names,
            "elsewhere": elsewhere,
            "missing": missing or [],
        }
        manifest = await asyncio.to_thread(
            _write_archive, archive, copy, links, definitions, manifest_fields
        )
    return CreatedBackup(archive, archive.stat().st_size, manifest)


def _archive_path(target: Path, system: str) -> Path:
    if target.is_dir():
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        target = target / f"switchyard-{system.replace('@', '-')}-{moment}.tar"
    if target.exists():
        raise BackupExists(f"{target} is there already: name a new file, or a directory")
    if not target.absolute().parent.is_dir():
        raise NoSuchFolder(f"there is no directory {target.absolute().parent}: make it first")
    return target.absolute()


def _copy_ledger(source: Path, target: Path) -> None:
    """Copy a ledger in use, as it is at one moment, without blocking writers."""
    target.unlink(missing_ok=True)
    address = f"{source.as_uri()}?mode=rw"
    with (
        closing(sqlite3.connect(address, uri=True)) as ledger,
        closing(sqlite3.connect(target)) as copy,
    ):
        ledger.backup(copy)  # in one step: in several, each write of another process restarts it


async def _missing_files(copy: Path, links: _LinkedFiles) -> list[str]:
    """Return the stored files that waiting jobs and letters of a ledger name, and that were not
    linked."""
    async with await Ledger.open(f"sqlite+aiosqlite:///{copy}") as ledger:
        names = await ledger.references.names_needed()
    keys = (name for name in names if _STORED_KEY.fullmatch(name) and _is_valid_key(name))
    return sorted(key for key in keys if key not in links.keys("files"))[:MAX_MISSING]


def _is_valid_key(name: str) -> bool:
    try:
        return bool(check_key(name))
    except InvalidKey:
        return False


class _LinkedFiles:
    """Hard links to the files of some directories, so that files removed later are still there."""

    def __init__(self, directories: dict[str, tuple[Path, Path]]) -> None:
        self._directories = directories
        self._keys: dict[str, dict[str, None]] = {name: {} for name in directories}

    def link(self) -> None:
        """Link the files that were not linked before."""
        for name, (root, staging) in self._directories.items():
            # Versions of an index's tables are listed and linked before their data files: a version
            # is written after its files, which never change, so these are there.
            for versions in (True, False):
                for key in _keys_below(root):
                    if ("/_versions/" in key) is versions and _link(root / key, staging / key):
                        self._keys[name][key] = None

    def keys(self, name: str) -> dict[str, None]:
        """Return the keys of the files of a directory."""
        return self._keys.get(name, {})

    def list_files(self) -> Iterator[tuple[str, Path]]:
        """Yield every file with its name in the archive."""
        for name, keys in self._keys.items():
            for key in keys:
                yield f"{name}/{key}", self._directories[name][1] / key


def _keys_below(root: Path) -> list[str]:
    """Return the keys of a directory's files, those of its subdirectories first."""
    keys = [
        stored.key
        for batch in FileDirectory(root).list()
        for stored in batch
        if _is_valid_key(stored.key)
    ]
    return sorted(keys, key=lambda key: ("/" not in key, key))


def _link(source: Path, target: Path) -> bool:
    """Link a file, or copy it where links are impossible; return False if it is gone."""
    try:
        status = source.stat()
        if target.exists():
            linked_status = target.stat()
            if (linked_status.st_size, linked_status.st_mtime_ns) == (
                status.st_size,
                status.st_mtime_ns,
            ):
                return True
            target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            shutil.copy2(source, target)
            return True
        try:
            target.hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError:  # other disk, no such right, or a file system without links
            shutil.copy2(source, target)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _link_files(local_folders: dict[str, Path]) -> Iterator[_LinkedFiles]:
    directories: dict[str, tuple[Path, Path]] = {}
    with _staging_folders(
        [root for root in local_folders.values() if root.is_dir()]
    ) as staging_folders:
        for name, root in local_folders.items():
            if root in staging_folders:
                directories[name] = (root, staging_folders[root])
        yield _LinkedFiles(directories)


@contextmanager
def _staging_folders(roots: list[Path]) -> Iterator[dict[Path, Path]]:
    if not roots:
        yield {}
        return
    with _staging_folder(roots[0]) as first, _staging_folders(roots[1:]) as others:
        yield {roots[0]: first, **others}


@contextmanager
def _staging_folder(root: Path) -> Iterator[Path]:
    """Make a temporary directory in another one, remove it at the end, and remove old ones at the
    start."""
    for old_folder in root.glob(f"{STAGING}*"):
        if time.time() - old_folder.stat().st_mtime > STAGING_TTL:
            shutil.rmtree(old_folder, ignore_errors=True)
    folder = Path(mkdtemp(prefix=STAGING, dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_archive(
    archive: Path,
    copy: Path,
    links: _LinkedFiles,
    definitions: str,
    manifest_fields: dict[str, object],
) -> Manifest:
    """Write the archive under a temporary name, and rename it when it is complete and on disk."""
    needed = copy.stat().st_size + sum(path.stat().st_size for _, path in links.list_files())
    if shutil.disk_usage(archive.parent).free < needed:
        raise DiskFull(f"the archive needs {needed:,} bytes, more than {archive.parent} has free")
    part = archive.with_name(f"{archive.name}#{os.getpid()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            writer = ArchiveWriter(file)
            writer.add_file(LEDGER, copy)
            writer.add_text(DEFINITIONS, definitions)
            for name, path in links.list_files():
                writer.add_file(name, path)
            manifest = Manifest.model_validate({**manifest_fields, "members": writer.members})
            writer.close(manifest)
            file.flush()
            os.fsync(file.fileno())
        part.rename(archive)
    finally:
        part.unlink(missing_ok=True)
    return manifest
