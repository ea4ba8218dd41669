"""Copying a system that runs into one archive.

The stored files are linked before the ledger is copied and once more after it, so whatever a job
of the copy needs is there: files that a job has removed meanwhile, and those that came in between.
Files that the copy of the ledger does not know do no harm.
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
from dataclasses import dataclass
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
STAGING_KEPT = 24 * 3600.0
"""Seconds after which such a directory was left by a backup that was killed."""
MAX_TRIES = 3
"""Tries to copy ledger and files so that no file is missing that a waiting job names."""
MAX_MISSING = 100
"""Missing files that are listed."""
_STORED = re.compile(r"(uploads|intermediate|results|sources)/.+")


class LedgerOnServer(ConflictError):
    """The ledger is in PostgreSQL, whose own tools copy it better."""


class BackupExists(ConflictError):
    """There is something at the place of the new archive."""


class NoSuchFolder(InvalidInput):
    """The folder for the archive is not there."""


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


def folders(settings: Settings) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the directories of this host that belong to the system, by their name in an archive,
    and what is kept elsewhere, with what to do about it."""
    here: dict[str, Path] = {}
    elsewhere: dict[str, str] = {}
    for name, url, remedy in (
        ("files", settings.files_url, "copy the bucket after the ledger"),
        ("index", settings.vectors_url, "copy it by its own means, or build it again"),
    ):
        directory = None if is_postgres(url) else directory_of(url)
        if directory is None:
            elsewhere[name] = f"at {without_credentials(url)}: {remedy} (docs/backup.md)"
        else:
            here[name] = directory.absolute()
    return here, elsewhere


async def create_backup(settings: Settings, target: Path, definitions: str) -> CreatedBackup:
    """Write an archive of the system to a new file, or to one of its own name in a directory.

    Raises LedgerOnServer, BackupExists, NoSuchFolder, InvalidBackup, DiskFull, LedgerError.
    """
    file = ledger_file(settings)
    async with await Ledger.open(settings.ledger_url, check=True) as ledger:
        system = await ledger.system.system()
    archive = _archive_path(target, system.name)
    here, elsewhere = folders(settings)
    with mapping_disk_full(), _staging_folder(file.parent) as room, _link_files(here) as links:
        copy = room / LEDGER
        missing: list[str] | None = None
        for _ in range(MAX_TRIES):
            before = missing
            await asyncio.to_thread(links.link)
            await asyncio.to_thread(_copy_ledger, file, copy)
            await asyncio.to_thread(links.link)
            missing = await _missing_files(copy, links) if "files" in here else []
            if not missing or missing == before:
                break
        facts = await asyncio.to_thread(read_facts, copy, thoroughly=False)
        names = sorted(f"JOBS_{name.upper()}" for name in settings.model_fields_set)
        about = {
            "format": FORMAT,
            "made_at": time.time(),
            "program": version("switchyard"),
            "system_id": facts.system_id,
            "system_name": facts.system_name,
            "generation": facts.generation,
            "revision": facts.revision,
            "tables": facts.tables,
            "settings": names,
            "elsewhere": elsewhere,
            "missing": missing or [],
        }
        manifest = await asyncio.to_thread(_write, archive, copy, links, definitions, about)
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
    """Copy a ledger in use, as it is at one moment. Writers go on meanwhile."""
    target.unlink(missing_ok=True)
    address = f"{source.as_uri()}?mode=rw"
    with (
        closing(sqlite3.connect(address, uri=True)) as ledger,
        closing(sqlite3.connect(target)) as copy,
    ):
        ledger.backup(copy)  # in one step: it would begin anew whenever somebody has written


async def _missing_files(copy: Path, links: _Links) -> list[str]:
    """Return the stored files that waiting jobs and letters of a ledger name, and that were not
    linked."""
    async with await Ledger.open(f"sqlite+aiosqlite:///{copy}") as ledger:
        names = await ledger.references.names_needed()
    keys = (name for name in names if _STORED.fullmatch(name) and _is_key(name))
    return sorted(key for key in keys if key not in links.keys("files"))[:MAX_MISSING]


def _is_key(name: str) -> bool:
    try:
        return bool(check_key(name))
    except InvalidKey:
        return False


class _Links:
    """A second name for each file of some directories: what is removed later is still there."""

    def __init__(self, places: dict[str, tuple[Path, Path]]) -> None:
        self._places = places
        self._keys: dict[str, dict[str, None]] = {name: {} for name in places}

    def link(self) -> None:
        """Link what is there now and was not linked before."""
        for name, (root, staging) in self._places.items():
            # The versions of an index's tables before all that they name, and listed before it:
            # whoever writes one has written its files before, and none of them ever changes.
            for versions in (True, False):
                for key in _keys_below(root):
                    if ("/_versions/" in key) is versions and _link(root / key, staging / key):
                        self._keys[name][key] = None

    def keys(self, name: str) -> dict[str, None]:
        """Return the keys of the files of a directory."""
        return self._keys.get(name, {})

    def all(self) -> Iterator[tuple[str, Path]]:
        """Yield every file with its name in the archive."""
        for name, keys in self._keys.items():
            for key in keys:
                yield f"{name}/{key}", self._places[name][1] / key


def _keys_below(root: Path) -> list[str]:
    """Return the keys of a directory's files, those of its subdirectories first."""
    keys = [
        stored.key
        for batch in FileDirectory(root).list()
        for stored in batch
        if _is_key(stored.key)
    ]
    return sorted(keys, key=lambda key: ("/" not in key, key))


def _link(source: Path, target: Path) -> bool:
    """Link a file, or copy it where that can't be; False if it is gone."""
    try:
        status = source.stat()
        if target.exists():
            linked = target.stat()
            if (linked.st_size, linked.st_mtime_ns) == (status.st_size, status.st_mtime_ns):
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
def _link_files(here: dict[str, Path]) -> Iterator[_Links]:
    places: dict[str, tuple[Path, Path]] = {}
    with _all_staging([root for root in here.values() if root.is_dir()]) as rooms:
        for name, root in here.items():
            if root in rooms:
                places[name] = (root, rooms[root])
        yield _Links(places)


@contextmanager
def _all_staging(roots: list[Path]) -> Iterator[dict[Path, Path]]:
    if not roots:
        yield {}
        return
    with _staging_folder(roots[0]) as first, _all_staging(roots[1:]) as others:
        yield {roots[0]: first, **others}


@contextmanager
def _staging_folder(root: Path) -> Iterator[Path]:
    """Make a directory in another one, and remove it at the end, and those that were left there."""
    for old in root.glob(f"{STAGING}*"):
        if time.time() - old.stat().st_mtime > STAGING_KEPT:
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(mkdtemp(prefix=STAGING, dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(
    archive: Path, copy: Path, links: _Links, definitions: str, about: dict[str, object]
) -> Manifest:
    """Write the archive beside its place, and give it its name when it is whole and on disk."""
    needed = copy.stat().st_size + sum(path.stat().st_size for _, path in links.all())
    if shutil.disk_usage(archive.parent).free < needed:
        raise DiskFull(f"the archive needs {needed:,} bytes, more than {archive.parent} has free")
    part = archive.with_name(f"{archive.name}#{os.getpid()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            writer = ArchiveWriter(file)
            writer.add_file(LEDGER, copy)
            writer.add_text(DEFINITIONS, definitions)
            for name, path in links.all():
                writer.add_file(name, path)
            manifest = Manifest.model_validate({**about, "members": writer.members})
            writer.close(manifest)
            file.flush()
            os.fsync(file.fileno())
        part.rename(archive)
    finally:
        part.unlink(missing_ok=True)
    return manifest
