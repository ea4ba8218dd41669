"""Read and write the archive of a backup: a plain tar file, which `tar` can read, too.

It has `ledger.db`, `definitions.json`, the stored files below `files/`, the search index below
`index/`, and at its end `manifest.json`, which lists all others with their SHA-256. Archives are
not trusted: only plain files with these names are read, so that none is written outside of its
directory, and none may be larger than the archive itself.
"""

from __future__ import annotations

import hashlib
import io
import os
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, BinaryIO
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from switchyard.services.common.errors import InvalidInput, NotFoundError
from switchyard.services.common.files.errors import InvalidKey
from switchyard.services.common.files.storage_keys import check_key
from switchyard.services.engine.ledger.sql.tables import SCHEMA_REVISION

FORMAT = 1
"""Version of the archive's format. A program refuses a newer one than it knows."""
LEDGER, DEFINITIONS, MANIFEST = "ledger.db", "definitions.json", "manifest.json"
FOLDERS = ("files", "index")
MAX_MEMBERS = 1_000_000
"""Files in one archive; the manifest is kept in memory as a whole."""
MAX_MANIFEST_BYTES = 256 * 1024**2
MAX_READ_BYTES = 4 * 1024**2
"""Bytes that are read in one step. Headers of a tar file can claim any length."""
_COPY_BYTES = 1024**2
_Size = Annotated[int, Field(ge=0)]


class InvalidBackup(InvalidInput):
    """The archive is damaged, incomplete, or no backup that this program can read."""


class BackupMissing(NotFoundError):
    """There is no archive at that path."""


class Member(BaseModel):
    """One file of an archive."""

    model_config = ConfigDict(frozen=True)

    size: _Size
    """Bytes."""
    sha256: str
    """Hexadecimal."""


class Manifest(BaseModel):
    """Manifest of an archive: its files, and the system that it is of."""

    model_config = ConfigDict(frozen=True)

    format: int
    made_at: float
    """Seconds since the epoch, by the clock of the host that made it."""
    program: str
    """Version of the program that made it."""
    system_id: str
    system_name: str
    generation: int
    """Generation of ledger and broker when the archive was made: docs/adr/0011-system-ids.md."""
    revision: str
    """Version of the ledger's tables."""
    tables: dict[str, _Size]
    """Rows of each table of the ledger."""
    settings: list[str]
    """Names of the environment variables that were set, without their values."""
    elsewhere: dict[str, str]
    """Parts that are not in the archive, each with what to do about it."""
    missing: list[str]
    """Files that waiting jobs name and the storage did not have."""
    members: Annotated[dict[str, Member], Field(max_length=MAX_MEMBERS)]

    @property
    def files(self) -> int:
        """Stored files in the archive."""
        return sum(name.startswith("files/") for name in self.members)

    @property
    def bytes(self) -> int:
        """Size of all members together."""
        return sum(member.size for member in self.members.values())


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """Facts read from a ledger's file; the manifest has them, too."""

    system_id: str
    system_name: str
    generation: int
    revision: str
    tables: Mapping[str, int]


class ArchiveWriter:
    """Writes the members of one archive, and the manifest at its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._tar = tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)
        self.members: dict[str, Member] = {}

    def add_file(self, name: str, path: Path) -> None:
        """Add a file as it is now. Raises InvalidBackup for too many, OSError."""
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            self._add(name, file, status.st_size, status.st_mtime)

    def add_text(self, name: str, text: str) -> None:
        """Add a text."""
        data = text.encode()
        self._add(name, io.BytesIO(data), len(data), time.time())

    def close(self, manifest: Manifest) -> None:
        """Write the manifest and the end of the archive."""
        text = manifest.model_dump_json()
        if len(text) > MAX_MANIFEST_BYTES:
            raise _too_many_files()
        self.add_text(MANIFEST, text)
        self._tar.close()

    def _add(self, name: str, file: IO[bytes], size: int, modified: float) -> None:
        if len(self.members) >= MAX_MEMBERS:
            raise _too_many_files()
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime, entry.mode = size, int(modified), 0o600
        reader = _HashingReader(file)
        self._tar.addfile(entry, reader)
        self.members[name] = Member(size=size, sha256=reader.hexdigest())


class _HashingReader(io.RawIOBase):
    """Hashes what is read through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class _BoundedReader(io.RawIOBase):
    """Refuses to read more than MAX_READ_BYTES in one step: a header may claim any length."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise InvalidBackup("it has a header that is too long")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def read_archive(archive: Path, target_of: Callable[[str], Path | None]) -> Manifest:
    """Read every member, compare it with the manifest, and write it to the path that `target_of`
    returns for its name, if any. Raises BackupMissing, InvalidBackup, OSError; files that were
    written before the error stay."""
    members: dict[str, Member] = {}
    text = b""
    with _open_archive(archive) as (tar, size):
        while (entry := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # else it keeps all entries in memory
            name = _check_name(entry, members, size)
            if MANIFEST in members:
                raise InvalidBackup(f"it goes on after {MANIFEST}")
            data = tar.extractfile(entry)
            if data is None:
                raise InvalidBackup(f"{name!r} is no plain file")
            if name == MANIFEST:
                if entry.size > MAX_MANIFEST_BYTES:
                    raise InvalidBackup(f"{MANIFEST} is too long")
                text = _read_all(data)
                members[name] = Member(size=entry.size, sha256=hashlib.sha256(text).hexdigest())
            else:
                try:
                    members[name] = _copy_member(data, entry, target_of(name))
                except (FileExistsError, NotADirectoryError) as error:
                    raise _file_and_folder(name) from error
    _check_folders(members)
    if MANIFEST not in members:
        raise InvalidBackup(f"{archive} ends before its {MANIFEST}: it is incomplete")
    del members[MANIFEST]
    manifest = _parse_manifest(text)
    for name in sorted(members.keys() | manifest.members.keys()):
        if name not in members:
            raise InvalidBackup(f"{name!r} is missing from {archive}")
        if name not in manifest.members:
            raise InvalidBackup(f"{name!r} is not listed in the {MANIFEST} of {archive}")
        if members[name] != manifest.members[name]:
            raise InvalidBackup(f"{name!r} is damaged: its SHA-256 is not that of the {MANIFEST}")
    if LEDGER not in members:
        raise InvalidBackup(f"{archive} has no {LEDGER}")
    return manifest


@contextmanager
def _open_archive(archive: Path) -> Iterator[tuple[tarfile.TarFile, int]]:
    """Open an archive; yield it with its size in bytes. Errors of tarfile become InvalidBackup."""
    try:
        file = archive.open("rb")
    except FileNotFoundError as error:
        raise BackupMissing(f"there is no backup at {archive}") from error
    except IsADirectoryError as error:
        raise InvalidBackup(f"{archive} is a directory: name the archive in it") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        try:
            with tarfile.open(fileobj=_BoundedReader(file), mode="r:") as tar:
                yield tar, size
        except InvalidBackup as error:
            reason = str(error)
            raise InvalidBackup(
                reason if str(archive) in reason else f"{archive} can't be used: {reason}"
            ) from error
        except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidBackup(f"{archive} can't be read as a backup: {error}") from error


def _check_name(entry: tarfile.TarInfo, members: Mapping[str, Member], size: int) -> str:
    """Return the name of a member. Raises InvalidBackup for a member that no backup has."""
    name = entry.name
    shown = repr(name[:100])
    if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.sparse is not None:
        raise InvalidBackup(f"{shown} is no plain file, but a link, a device or the like")
    if not 0 <= entry.size <= size:
        raise InvalidBackup(f"{shown} claims {entry.size:,} bytes, more than the archive has")
    folder, slash, key = name.partition("/")
    try:
        is_known = folder in FOLDERS and check_key(key) if slash else name in _TOP_LEVEL_NAMES
    except InvalidKey:
        is_known = False
    if not is_known:
        raise InvalidBackup(f"{shown} is no name of a file in a backup")
    if name in members:
        raise InvalidBackup(f"{shown} is in it twice")
    if len(members) > MAX_MEMBERS:
        raise InvalidBackup(f"it has more than {MAX_MEMBERS:,} files")
    return name


def _check_folders(names: Iterable[str]) -> None:
    """Raise InvalidBackup for a file whose name is another file's folder."""
    # Sorted like this, a folder is right before what is in it.
    for name, following in pairwise(sorted(names, key=lambda name: name.replace("/", "\0"))):
        if following.startswith(f"{name}/"):
            raise _file_and_folder(name)


def _file_and_folder(name: str) -> InvalidBackup:
    return InvalidBackup(f"{name[:100]!r} is both a file and a folder in it")


_TOP_LEVEL_NAMES = frozenset({LEDGER, DEFINITIONS, MANIFEST})


def _copy_member(data: IO[bytes], entry: tarfile.TarInfo, target: Path | None) -> Member:
    digest = hashlib.sha256()
    left = entry.size
    with nullcontext() if target is None else target.open("xb") as file:
        while part := data.read(_COPY_BYTES):
            digest.update(part)
            left -= len(part)
            if file is not None:
                file.write(part)
    if left:
        raise InvalidBackup(f"{entry.name!r} is cut off")
    if target is not None:
        modified = min(max(0.0, float(entry.mtime)), time.time())  # files are removed by this age
        os.utime(target, (modified, modified))
    return Member(size=entry.size, sha256=digest.hexdigest())


def _read_all(data: IO[bytes]) -> bytes:
    text = io.BytesIO()
    while part := data.read(_COPY_BYTES):
        text.write(part)
    return text.getvalue()


def _parse_manifest(text: bytes) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise InvalidBackup(f"its {MANIFEST} is not that of a backup") from error
    if manifest.format > FORMAT:
        raise InvalidBackup(
            f"it has the format {manifest.format}, and this program reads up to {FORMAT}: "
            "use a newer one"
        )
    if manifest.revision > SCHEMA_REVISION:
        raise InvalidBackup(
            f"its ledger is of version {manifest.revision}, and this program knows "
            f"{SCHEMA_REVISION}: use a newer one"
        )
    return manifest


def check_ledger(file: Path, manifest: Manifest) -> None:
    """Check that a copy of a ledger is undamaged, and the one that the manifest describes. Raises
    InvalidBackup."""
    try:
        facts = read_facts(file, with_indexes=True)
    except sqlite3.DatabaseError as error:
        raise InvalidBackup(f"its {LEDGER} can't be read: {error}") from error
    if asdict(facts) != manifest.model_dump(include=set(asdict(facts))):
        raise InvalidBackup(f"its {LEDGER} is not the one that its {MANIFEST} describes")


def read_facts(file: Path, *, with_indexes: bool) -> LedgerFacts:
    """Read the facts of a copy of a ledger, after SQLite's check of the file and, `with_indexes`,
    of its indexes. Raises InvalidBackup, sqlite3.DatabaseError."""
    address = f"file:{quote(str(file))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as ledger:
        # The schema of a file from outside may contain hostile SQL.
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON"):
            ledger.execute(f"PRAGMA {pragma}")
        check = "integrity_check" if with_indexes else "quick_check"
        complaints = [str(row[0]) for row in ledger.execute(f"PRAGMA {check}(5)")]
        if complaints != ["ok"]:
            raise InvalidBackup(f"{LEDGER} is damaged: {'; '.join(complaints)[:500]}")
        schema = ledger.execute("SELECT type, name FROM sqlite_master").fetchall()
        if unexpected := [name for kind, name in schema if kind not in ("table", "index")]:
            raise InvalidBackup(f"{LEDGER} has a view or trigger: {unexpected[0]!r}")
        names = sorted(name for kind, name in schema if kind == "table")
        tables = {}
        for name in names:
            quoted = name.replace('"', '""')
            tables[name] = int(ledger.execute(f'SELECT count(*) FROM "{quoted}"').fetchone()[0])
        system = ledger.execute("SELECT id, name, generation FROM system_id").fetchone()
        revision = ledger.execute("SELECT version_num FROM alembic_version").fetchone()
        if system is None or revision is None:
            raise InvalidBackup(f"{LEDGER} is no ledger")
        return LedgerFacts(str(system[0]), str(system[1]), int(system[2]), str(revision[0]), tables)


def _too_many_files() -> InvalidBackup:
    return InvalidBackup(
        f"the system has more than {MAX_MEMBERS:,} files: back up its ledger and its files each by "
        "itself, as docs/backup.md shows"
    )
