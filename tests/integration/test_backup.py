"""Backups: a whole system in one file, made while it is written to, checked and restored."""

import hashlib
import io
import json
import os
import sqlite3
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from switchyard.services.common.files.directory import FileDirectory, StoredFile
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backup import archive as archives
from switchyard.services.engine.backup import creating, restoring
from switchyard.services.engine.backup.archive import BackupMissing, InvalidBackup
from switchyard.services.engine.backup.creating import (
    BackupExists,
    LedgerOnServer,
    NoSuchFolder,
    create_backup,
)
from switchyard.services.engine.backup.restoring import (
    PlaceTaken,
    SystemRuns,
    restore_backup,
    verify_backup,
)
from tests.support.ledgers import make_ledger

UPLOAD = "uploads/incoming/paper"
VERSION = "index/chunks.lance/_versions/1.manifest"


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    """A system with a waiting job, the file that it needs, and an index."""
    made = Settings(data_dir=tmp_path / "system")
    await make_ledger(made.ledger_url)
    write(made, "files", UPLOAD, "a paper")
    write(made, "files", "switchyard-system.json", "{}")
    write(made, "index", "chunks.lance/_versions/1.manifest", "names data/1")
    write(made, "index", "chunks.lance/data/1.lance", "rows")
    add_job(made, "job-1", {"key": UPLOAD})
    return made


def write(settings: Settings, folder: str, key: str, text: str) -> Path:
    file = settings.data_dir / folder / key
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def add_job(settings: Settings, job_id: str, payload: object = None) -> None:
    with closing(sqlite3.connect(settings.data_dir / "ledger.db", timeout=30)) as ledger, ledger:
        add_row(ledger, job_id, payload)


def add_row(ledger: sqlite3.Connection, job_id: str, payload: object = None) -> None:
    given: dict[str, object] = {
        "id": job_id, "payload": json.dumps(payload or {}), "state": "queued"
    }  # fmt: skip
    for _, name, kind, required, default, _ in ledger.execute("PRAGMA table_info(jobs)"):
        if required and default is None and name not in given:
            given[name] = 0 if kind.upper().startswith(("INT", "FLOAT", "REAL", "BOOL")) else "x"
    marks = ", ".join("?" for _ in given)
    ledger.execute(f"INSERT INTO jobs ({', '.join(given)}) VALUES ({marks})", list(given.values()))


def jobs(settings: Settings) -> list[str]:
    with closing(sqlite3.connect(settings.data_dir / "ledger.db")) as ledger:
        return [row[0] for row in ledger.execute("SELECT id FROM jobs ORDER BY id")]


def state_of(settings: Settings) -> dict[str, bytes]:
    """Every file of a system that anybody would read, and the ids of its jobs."""
    found = {
        str(file.relative_to(settings.data_dir)): file.read_bytes()
        for folder in ("files", "index")
        for file in sorted((settings.data_dir / folder).rglob("*"))
        if file.is_file() and "#" not in str(file.relative_to(settings.data_dir))
    }
    return found | {"jobs": " ".join(jobs(settings)).encode()}


async def backed_up(settings: Settings, target: Path) -> Path:
    return (await create_backup(settings, target, "{}")).archive


async def test_a_backup_is_restored_as_it_was_and_lists_what_it_has(
    settings: Settings, tmp_path: Path
) -> None:
    archive = await backed_up(settings, tmp_path)
    assert archive.parent == tmp_path
    assert archive.stat().st_mode & 0o077 == 0  # payloads are nobody else's
    manifest = verify_backup(archive)
    assert manifest.tables["jobs"] == 1
    assert manifest.settings == ["JOBS_DATA_DIR"]
    assert manifest.missing == []
    assert manifest.files == 2
    other = Settings(data_dir=tmp_path / "other")
    done = restore_backup(other, archive, replace=False)
    assert done.kept == ()
    assert state_of(other) == state_of(settings)
    assert not list(other.data_dir.rglob("*#*"))
    assert not list(settings.data_dir.rglob("*#*"))


async def test_a_backup_beside_writers_is_the_ledger_of_one_moment(
    settings: Settings, tmp_path: Path
) -> None:
    begun, stop = threading.Event(), threading.Event()

    def write_pairs() -> None:
        number = 0
        with closing(sqlite3.connect(settings.data_dir / "ledger.db", timeout=30)) as ledger:
            while not stop.is_set():
                with ledger:
                    add_row(ledger, f"pair-{number:06}-a", {"text": "x" * 5000})
                    add_row(ledger, f"pair-{number:06}-b")
                number += 1
                if number == 20:
                    begun.set()

    writer = threading.Thread(target=write_pairs)
    writer.start()
    try:
        assert begun.wait(30)
        archive = await backed_up(settings, tmp_path)
    finally:
        stop.set()
        writer.join()
    other = Settings(data_dir=tmp_path / "other")
    restore_backup(other, archive, replace=False)
    pairs = [each[:-2] for each in jobs(other) if each.startswith("pair")]
    assert len(pairs) >= 40
    assert all(pairs.count(each) == 2 for each in set(pairs))


class _WrittenMeanwhile(FileDirectory):
    """An index of which a version is written, its rows first, while it is listed; and whatever the
    order of the folders is, what lies beside the versions was listed by then."""

    written = 0

    def list(self, prefix: str = "") -> Iterator[list[StoredFile]]:
        found = [each for batch in super().list(prefix) for each in batch]
        self._write()
        versions = [each for batch in super().list(prefix) for each in batch]
        yield [each for each in found if "/_versions/" not in each.key]
        yield [each for each in versions if "/_versions/" in each.key]

    def _write(self) -> None:
        if self.root.name == "index":
            type(self).written += 1
            for folder, name in (("data", "lance"), ("_versions", "manifest")):
                file = self.root / "chunks.lance" / folder / f"new-{self.written}.{name}"
                file.write_text("new")


async def test_of_each_version_of_an_index_that_is_written_all_files_are_in_the_backup(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creating, "FileDirectory", _WrittenMeanwhile)
    members = verify_backup(await backed_up(settings, tmp_path)).members
    names = {Path(name).stem for name in members if "/_versions/new-" in name}
    assert names
    assert names <= {Path(name).stem for name in members if "/data/new-" in name}


@pytest.mark.parametrize("moment", ["removed", "added"])
async def test_a_file_that_a_waiting_job_needs_is_in_the_backup_whatever_happens_meanwhile(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A job ends, and its file goes; or one comes with its job, between files and ledger."""
    copy = creating._copy_ledger

    def copy_while_things_happen(source: Path, target: Path) -> None:
        if moment == "added":
            write(settings, "files", "uploads/incoming/new", "new")
            add_job(settings, "job-2", {"key": "uploads/incoming/new"})
        copy(source, target)
        (settings.data_dir / "files" / UPLOAD).unlink(missing_ok=True)
        monkeypatch.setattr(creating, "_copy_ledger", copy)

    monkeypatch.setattr(creating, "_copy_ledger", copy_while_things_happen)
    manifest = verify_backup(await backed_up(settings, tmp_path))
    assert f"files/{UPLOAD}" in manifest.members
    assert ("files/uploads/incoming/new" in manifest.members) is (moment == "added")
    assert manifest.missing == []


async def test_files_that_the_storage_has_lost_are_told(settings: Settings, tmp_path: Path) -> None:
    (settings.data_dir / "files" / UPLOAD).unlink()
    assert verify_backup(await backed_up(settings, tmp_path)).missing == [UPLOAD]


async def test_what_can_not_be_backed_up_is_refused(settings: Settings, tmp_path: Path) -> None:
    on_server = Settings(database_url="postgresql+asyncpg://u:secret@db/jobs")
    with pytest.raises(LedgerOnServer, match="pg_dump") as told:
        await backed_up(on_server, tmp_path)
    assert "secret" not in str(told.value)
    archive = await backed_up(settings, tmp_path / "a.tar")
    with pytest.raises(BackupExists):
        await backed_up(settings, archive)
    with pytest.raises(NoSuchFolder):
        await backed_up(settings, tmp_path / "none" / "a.tar")
    elsewhere = settings.model_copy(update={"storage_url": "s3://bucket/files"})
    manifest = verify_backup(await backed_up(elsewhere, tmp_path / "b.tar"))
    assert list(manifest.elsewhere) == ["files"]
    assert manifest.files == 0


async def test_a_restore_takes_no_place_that_is_taken_or_in_use(
    settings: Settings, tmp_path: Path
) -> None:
    archive = await backed_up(settings, tmp_path)
    add_job(settings, "job-2")
    before = state_of(settings)
    with pytest.raises(PlaceTaken, match="--replace"):
        restore_backup(settings, archive, replace=False)
    with closing(sqlite3.connect(settings.data_dir / "ledger.db")) as used:
        used.execute("PRAGMA journal_mode = WAL")
        used.execute("SELECT count(*) FROM jobs").fetchall()
        with pytest.raises(SystemRuns):
            restore_backup(settings, archive, replace=True)
    assert state_of(settings) == before
    done = restore_backup(settings, archive, replace=True)
    assert jobs(settings) == ["job-1"]
    with closing(sqlite3.connect(done.kept[0])) as kept:
        assert kept.execute("SELECT count(*) FROM jobs").fetchone() == (2,)
    files = next(each for each in done.kept if each.parent.name == "files")
    assert (files / UPLOAD).read_text() == "a paper"


async def test_a_damaged_ledger_can_be_replaced(settings: Settings, tmp_path: Path) -> None:
    archive = await backed_up(settings, tmp_path)
    (settings.data_dir / "ledger.db").write_bytes(b"no database " * 1000)
    restore_backup(settings, archive, replace=True)
    assert jobs(settings) == ["job-1"]


class _Killed(BaseException):
    """As of a process that is killed: nothing of it is done any more."""


@pytest.mark.parametrize("survives", [True, False], ids=["interrupted", "killed"])
async def test_a_restore_that_is_cut_off_anywhere_leaves_the_old_state(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: bool
) -> None:
    archive = await backed_up(settings, tmp_path)
    add_job(settings, "job-2")
    write(settings, "files", "results/new/result.json", "new")
    write(settings, "files", UPLOAD, "another paper")
    before = state_of(settings)
    rename = Path.rename
    for number in range(100):
        left = number

        def cut_off(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0 and (left == -1 or not survives):
                raise _Killed
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", cut_off)
        try:
            restore_backup(settings, archive, replace=True)
            break
        except _Killed:
            pass
        finally:
            monkeypatch.setattr(Path, "rename", rename)
        with pytest.raises(PlaceTaken):  # the next restore begins by putting the old state back
            restore_backup(settings, archive, replace=False)
        assert state_of(settings) == before, number
    assert number > 8
    assert not list(settings.data_dir.glob("*#restor*"))
    assert jobs(settings) == ["job-1"]


async def test_nobody_makes_a_new_ledger_in_the_midst_of_a_restore(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchyard.services.engine.ledger import upgrade
    from switchyard.services.engine.records.errors import LedgerMisconfigured

    archive = await backed_up(settings, tmp_path)

    def kill(*_: object) -> None:
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr(restoring, "_move", kill)
        with pytest.raises(_Killed):
            restore_backup(settings, archive, replace=True)
    with pytest.raises(LedgerMisconfigured, match="jobctl backup restore"):
        await upgrade(settings.ledger_url)
    assert restore_backup(settings, archive, replace=True).undid
    assert jobs(settings) == ["job-1"]


Members = dict[str, tuple[tarfile.TarInfo, bytes]]
Change = Callable[[Members], object]


def rewrite(archive: Path, target: Path, change: Change) -> Path:
    """Write an archive anew, with a change of its members; the manifest comes last."""
    with tarfile.open(archive) as source:
        members = {
            entry.name: (entry, file.read())
            for entry in source
            if (file := source.extractfile(entry)) is not None
        }
    change(members)
    with tarfile.open(target, "w") as written:
        for entry, data in members.values():
            if entry.type in (tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE):
                entry.size = len(data)
            written.addfile(entry, io.BytesIO(data))
    return target


def entry_of(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def hostile() -> Iterator[tuple[str, Change]]:
    outside = "../" * 8 + "tmp/outside"
    for name in (
        f"files/{outside}", "/etc/outside", "files//etc/x", "files/.hidden", "files/a#b",
        "other/x", "files/", "..", "ledger.db/x", "files/" + "a/" * 600 + "b",
    ):  # fmt: skip
        yield name[:20], partial(put, entry=entry_of(name), data=b"x")
    for kind, name in (
        (tarfile.SYMTYPE, "symbolic link"), (tarfile.LNKTYPE, "link"), (tarfile.CHRTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"), (tarfile.DIRTYPE, "folder"), (tarfile.CONTTYPE, "other type"),
    ):  # fmt: skip
        entry = entry_of("files/link", kind, "../../ledger.db")
        yield name, partial(put, entry=entry)
    yield "twice", lambda has: has.update({"x": has["ledger.db"]})
    yield "not listed", lambda has: has.update({"x": (entry_of("files/more"), b"x")})
    for first, second in (("files/a", "files/a/b"), ("files/a/b", "files/a")):
        yield f"{first} before {second}", partial(with_files, names=(first, "files/a-b", second))
    yield "missing", lambda has: has.pop(f"files/{UPLOAD}")
    yield "no ledger", lambda has: has.pop("ledger.db")
    yield "no manifest", lambda has: has.pop("manifest.json")
    yield "behind the manifest", lambda has: has.update({"y": (entry_of("files/y"), b"x")})
    yield "damaged", lambda has: swap(has, VERSION, b"names data/2")
    yield "newer format", lambda has: edit(has, format=archives.FORMAT + 1)
    yield "newer ledger", lambda has: edit(has, revision="9999")
    yield "other rows", lambda has: edit(has, tables={"jobs": 7})
    yield "no json", lambda has: swap(has, "manifest.json", b"[" * 100_000)
    yield "trigger", lambda has: with_trigger(has)
    yield "long header", lambda has: with_long_header(has)


def put(has: Members, *, entry: tarfile.TarInfo, data: bytes = b"") -> None:
    has["x"] = (entry, data)


def with_files(has: Members, *, names: tuple[str, ...]) -> None:
    """Add files, and list them."""
    members = json.loads(has["manifest.json"][1])["members"]
    digest = hashlib.sha256(b"x").hexdigest()
    for name in names:
        has[name] = (entry_of(name), b"x")
        members[name] = {"size": 1, "sha256": digest}
    edit(has, members=members)


def swap(has: Members, name: str, data: bytes) -> None:
    has[name] = (has[name][0], data)


def edit(has: Members, **changes: object) -> None:
    listed = json.loads(has["manifest.json"][1])
    swap(has, "manifest.json", json.dumps(listed | changes).encode())


def with_trigger(has: Members) -> None:
    """A whole archive, but for what its ledger would do to whoever uses it."""
    ledger = sqlite3.connect(":memory:")
    header = bytearray(has["ledger.db"][1])
    header[18:20] = b"\x01\x01"  # no write-ahead log, which memory has not
    ledger.deserialize(bytes(header))
    with ledger:
        ledger.execute("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM jobs; END")
    data = ledger.serialize()
    swap(has, "ledger.db", data)
    members = json.loads(has["manifest.json"][1])["members"]
    digest = hashlib.sha256(data).hexdigest()
    edit(has, members=members | {"ledger.db": {"size": len(data), "sha256": digest}})


def with_long_header(has: Members) -> None:
    entry = entry_of("files/x")
    entry.pax_headers = {"comment": "x" * (archives.MAX_READ_BYTES + 1)}
    has["x"] = (entry, b"x")


async def test_an_archive_that_is_not_what_a_backup_writes_is_refused(
    settings: Settings, tmp_path: Path
) -> None:
    whole = await backed_up(settings, tmp_path)
    before = state_of(settings)
    for name, change in hostile():
        archive = rewrite(whole, tmp_path / "changed.tar", partial(ordered, change=change))
        with pytest.raises(InvalidBackup):
            verify_backup(archive)
        with pytest.raises(InvalidBackup):
            restore_backup(settings, archive, replace=True)
        assert state_of(settings) == before, name
        assert not list(settings.data_dir.rglob("*#*")), name
    assert not Path("/tmp/outside").exists()


def ordered(has: Members, change: Change) -> None:
    """Change it, with the manifest behind everything but `y`."""
    change(has)
    for name in ("manifest.json", "y"):
        if name in has:
            has[name] = has.pop(name)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "claim"])
async def test_every_damaged_byte_is_found(settings: Settings, tmp_path: Path, damage: str) -> None:
    archive = await backed_up(settings, tmp_path)
    data = bytearray(archive.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[20_000] ^= 1
    elif damage == "claim":  # a file that has more bytes than the archive
        entry = entry_of("files/large")
        entry.size = 1 << 60
        data[:512] = entry.tobuf(tarfile.GNU_FORMAT)[:512]
    else:
        data = bytearray(b"" if damage == "empty" else b"no archive" * 10_000)
    archive.chmod(0o600)
    archive.write_bytes(data)
    with pytest.raises(InvalidBackup):
        verify_backup(archive)
    with pytest.raises((BackupMissing, InvalidBackup)):
        verify_backup(tmp_path)
    assert not [each for each in os.listdir(tmp_path) if "#" in each]
