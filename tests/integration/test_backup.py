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
    system = Settings(data_dir=tmp_path / "system")
    await make_ledger(system.ledger_url)
    write_file(system, "files", UPLOAD, "a paper")
    write_file(system, "files", "switchyard-system.json", "{}")
    write_file(system, "index", "chunks.lance/_versions/1.manifest", "names data/1")
    write_file(system, "index", "chunks.lance/data/1.lance", "rows")
    add_job(system, "job-1", {"key": UPLOAD})
    return system


def write_file(settings: Settings, folder: str, key: str, text: str) -> Path:
    file = settings.data_dir / folder / key
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def add_job(settings: Settings, job_id: str, payload: object = None) -> None:
    with closing(sqlite3.connect(settings.data_dir / "ledger.db", timeout=30)) as ledger, ledger:
        add_row(ledger, job_id, payload)


def add_row(ledger: sqlite3.Connection, job_id: str, payload: object = None) -> None:
    values: dict[str, object] = {
        "id": job_id, "payload": json.dumps(payload or {}), "state": "queued"
    }  # fmt: skip
    for _, name, kind, required, default, _ in ledger.execute("PRAGMA table_info(jobs)"):
        if required and default is None and name not in values:
            values[name] = 0 if kind.upper().startswith(("INT", "FLOAT", "REAL", "BOOL")) else "x"
    placeholders = ", ".join("?" for _ in values)
    ledger.execute(
        f"INSERT INTO jobs ({', '.join(values)}) VALUES ({placeholders})", list(values.values())
    )


def read_job_ids(settings: Settings) -> list[str]:
    with closing(sqlite3.connect(settings.data_dir / "ledger.db")) as ledger:
        return [row[0] for row in ledger.execute("SELECT id FROM jobs ORDER BY id")]


def read_state(settings: Settings) -> dict[str, bytes]:
    """Return the contents of a system's files but for temporary ones, and the ids of its jobs."""
    contents = {
        str(file.relative_to(settings.data_dir)): file.read_bytes()
        for folder in ("files", "index")
        for file in sorted((settings.data_dir / folder).rglob("*"))
        if file.is_file() and "#" not in str(file.relative_to(settings.data_dir))
    }
    return contents | {"jobs": " ".join(read_job_ids(settings)).encode()}


async def make_backup(settings: Settings, target: Path) -> Path:
    return (await create_backup(settings, target, "{}")).archive


async def test_a_backup_is_restored_as_it_was_and_lists_what_it_has(
    settings: Settings, tmp_path: Path
) -> None:
    archive = await make_backup(settings, tmp_path)
    assert archive.parent == tmp_path
    assert archive.stat().st_mode & 0o077 == 0  # payloads are nobody else's
    manifest = verify_backup(archive)
    assert manifest.tables["jobs"] == 1
    assert manifest.settings == ["JOBS_DATA_DIR"]
    assert manifest.missing == []
    assert manifest.files == 2
    restored = Settings(data_dir=tmp_path / "other")
    result = restore_backup(restored, archive, replace=False)
    assert result.kept == ()
    assert read_state(restored) == read_state(settings)
    assert not list(restored.data_dir.rglob("*#*"))
    assert not list(settings.data_dir.rglob("*#*"))


async def test_a_backup_beside_writers_is_the_ledger_of_one_moment(
    settings: Settings, tmp_path: Path
) -> None:
    has_begun, stop = threading.Event(), threading.Event()

    def write_pairs() -> None:
        number = 0
        with closing(sqlite3.connect(settings.data_dir / "ledger.db", timeout=30)) as ledger:
            while not stop.is_set():
                with ledger:
                    add_row(ledger, f"pair-{number:06}-a", {"text": "x" * 5000})
                    add_row(ledger, f"pair-{number:06}-b")
                number += 1
                if number == 20:
                    has_begun.set()

    writer = threading.Thread(target=write_pairs)
    writer.start()
    try:
        assert has_begun.wait(30)
        archive = await make_backup(settings, tmp_path)
    finally:
        stop.set()
        writer.join()
    restored = Settings(data_dir=tmp_path / "other")
    restore_backup(restored, archive, replace=False)
    pair_names = [job_id[:-2] for job_id in read_job_ids(restored) if job_id.startswith("pair")]
    assert len(pair_names) >= 40
    assert all(pair_names.count(name) == 2 for name in set(pair_names))


class _IndexWrittenMeanwhile(FileDirectory):
    """A folder that lists an index while a version is written to it, its rows first: the rows are
    listed before that, and the versions after it, which is the worst order."""

    version_count = 0

    def list(self, prefix: str = "") -> Iterator[list[StoredFile]]:
        before = [file for batch in super().list(prefix) for file in batch]
        self._write()
        after = [file for batch in super().list(prefix) for file in batch]
        yield [file for file in before if "/_versions/" not in file.key]
        yield [file for file in after if "/_versions/" in file.key]

    def _write(self) -> None:
        if self.root.name == "index":
            type(self).version_count += 1
            for folder, name in (("data", "lance"), ("_versions", "manifest")):
                file = self.root / "chunks.lance" / folder / f"new-{self.version_count}.{name}"
                file.write_text("new")


async def test_a_backup_has_all_files_of_each_version_of_an_index_in_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creating, "FileDirectory", _IndexWrittenMeanwhile)
    members = verify_backup(await make_backup(settings, tmp_path)).members
    names = {Path(name).stem for name in members if "/_versions/new-" in name}
    assert names
    assert names <= {Path(name).stem for name in members if "/data/new-" in name}


@pytest.mark.parametrize("event", ["removed", "added"])
async def test_a_file_that_a_waiting_job_needs_is_in_the_backup_whatever_happens_meanwhile(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """A job ends and its file is removed, or a job comes with its file, while files and ledger are
    copied."""
    copy = creating._copy_ledger

    def copy_amid_event(source: Path, target: Path) -> None:
        if event == "added":
            write_file(settings, "files", "uploads/incoming/new", "new")
            add_job(settings, "job-2", {"key": "uploads/incoming/new"})
        copy(source, target)
        (settings.data_dir / "files" / UPLOAD).unlink(missing_ok=True)
        monkeypatch.setattr(creating, "_copy_ledger", copy)

    monkeypatch.setattr(creating, "_copy_ledger", copy_amid_event)
    manifest = verify_backup(await make_backup(settings, tmp_path))
    assert f"files/{UPLOAD}" in manifest.members
    assert ("files/uploads/incoming/new" in manifest.members) is (event == "added")
    assert manifest.missing == []


async def test_files_that_the_storage_has_lost_are_listed(
    settings: Settings, tmp_path: Path
) -> None:
    (settings.data_dir / "files" / UPLOAD).unlink()
    assert verify_backup(await make_backup(settings, tmp_path)).missing == [UPLOAD]


async def test_what_can_not_be_backed_up_is_refused(settings: Settings, tmp_path: Path) -> None:
    on_server = Settings(database_url="postgresql+asyncpg://u:secret@db/jobs")
    with pytest.raises(LedgerOnServer, match="pg_dump") as error:
        await make_backup(on_server, tmp_path)
    assert "secret" not in str(error.value)
    archive = await make_backup(settings, tmp_path / "a.tar")
    with pytest.raises(BackupExists):
        await make_backup(settings, archive)
    with pytest.raises(NoSuchFolder):
        await make_backup(settings, tmp_path / "none" / "a.tar")
    elsewhere = settings.model_copy(update={"storage_url": "s3://bucket/files"})
    manifest = verify_backup(await make_backup(elsewhere, tmp_path / "b.tar"))
    assert list(manifest.elsewhere) == ["files"]
    assert manifest.files == 0


async def test_a_restore_refuses_a_place_that_is_taken_or_in_use(
    settings: Settings, tmp_path: Path
) -> None:
    archive = await make_backup(settings, tmp_path)
    add_job(settings, "job-2")
    before = read_state(settings)
    with pytest.raises(PlaceTaken, match="--replace"):
        restore_backup(settings, archive, replace=False)
    with closing(sqlite3.connect(settings.data_dir / "ledger.db")) as open_ledger:
        open_ledger.execute("PRAGMA journal_mode = WAL")
        open_ledger.execute("SELECT count(*) FROM jobs").fetchall()
        with pytest.raises(SystemRuns):
            restore_backup(settings, archive, replace=True)
    assert read_state(settings) == before
    result = restore_backup(settings, archive, replace=True)
    assert read_job_ids(settings) == ["job-1"]
    with closing(sqlite3.connect(result.kept[0])) as old_ledger:
        assert old_ledger.execute("SELECT count(*) FROM jobs").fetchone() == (2,)
    old_files = next(path for path in result.kept if path.parent.name == "files")
    assert (old_files / UPLOAD).read_text() == "a paper"


async def test_a_damaged_ledger_can_be_replaced(settings: Settings, tmp_path: Path) -> None:
    archive = await make_backup(settings, tmp_path)
    (settings.data_dir / "ledger.db").write_bytes(b"no database " * 1000)
    restore_backup(settings, archive, replace=True)
    assert read_job_ids(settings) == ["job-1"]


class _Killed(BaseException):
    """Raised where the process would be killed."""


@pytest.mark.parametrize("can_clean_up", [True, False], ids=["interrupted", "killed"])
async def test_a_restore_that_is_cut_off_anywhere_leaves_the_old_state(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_clean_up: bool
) -> None:
    archive = await make_backup(settings, tmp_path)
    add_job(settings, "job-2")
    write_file(settings, "files", "results/new/result.json", "new")
    write_file(settings, "files", UPLOAD, "another paper")
    before = read_state(settings)
    rename = Path.rename
    for number in range(100):
        renames_left = number

        def cut_off(self: Path, target: Path) -> Path:
            nonlocal renames_left
            renames_left -= 1
            if renames_left < 0 and (renames_left == -1 or not can_clean_up):
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
        assert read_state(settings) == before, number
    assert number > 8
    assert not list(settings.data_dir.glob("*#restor*"))
    assert read_job_ids(settings) == ["job-1"]


async def test_no_new_ledger_is_made_after_an_interrupted_restore(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchyard.services.engine.ledger import upgrade
    from switchyard.services.engine.records.errors import LedgerMisconfigured

    archive = await make_backup(settings, tmp_path)

    def raise_killed(*_: object) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_move", raise_killed)
        with pytest.raises(_Killed):
            restore_backup(settings, archive, replace=True)
    with pytest.raises(LedgerMisconfigured, match="jobctl backup restore"):
        await upgrade(settings.ledger_url)
    assert restore_backup(settings, archive, replace=True).undid
    assert read_job_ids(settings) == ["job-1"]


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
    with tarfile.open(target, "w") as new_archive:
        for entry, data in members.values():
            if entry.type in (tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE):
                entry.size = len(data)
            new_archive.addfile(entry, io.BytesIO(data))
    return target


def make_entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def list_hostile_changes() -> Iterator[tuple[str, Change]]:
    outside = "../" * 8 + "tmp/outside"
    for name in (
        f"files/{outside}", "/etc/outside", "files//etc/x", "files/.hidden", "files/a#b",
        "other/x", "files/", "..", "ledger.db/x", "files/" + "a/" * 600 + "b",
    ):  # fmt: skip
        yield name[:20], partial(add_member, entry=make_entry(name), data=b"x")
    for kind, name in (
        (tarfile.SYMTYPE, "symbolic link"), (tarfile.LNKTYPE, "link"), (tarfile.CHRTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"), (tarfile.DIRTYPE, "folder"), (tarfile.CONTTYPE, "other type"),
    ):  # fmt: skip
        entry = make_entry("files/link", kind, "../../ledger.db")
        yield name, partial(add_member, entry=entry)
    yield "twice", lambda members: members.update({"x": members["ledger.db"]})
    yield "not listed", lambda members: members.update({"x": (make_entry("files/more"), b"x")})
    for first, second in (("files/a", "files/a/b"), ("files/a/b", "files/a")):
        yield (
            f"{first} before {second}",
            partial(add_listed_files, names=(first, "files/a-b", second)),
        )
    yield "missing", lambda members: members.pop(f"files/{UPLOAD}")
    yield "no ledger", lambda members: members.pop("ledger.db")
    yield "no manifest", lambda members: members.pop("manifest.json")
    yield (
        "behind the manifest",
        lambda members: members.update({"y": (make_entry("files/y"), b"x")}),
    )
    yield "damaged", lambda members: replace_data(members, VERSION, b"names data/2")
    yield "newer format", lambda members: edit_manifest(members, format=archives.FORMAT + 1)
    yield "newer ledger", lambda members: edit_manifest(members, revision="9999")
    yield "other rows", lambda members: edit_manifest(members, tables={"jobs": 7})
    yield "no json", lambda members: replace_data(members, "manifest.json", b"[" * 100_000)
    yield "trigger", lambda members: add_trigger(members)
    yield "long header", lambda members: add_long_header(members)


def add_member(members: Members, *, entry: tarfile.TarInfo, data: bytes = b"") -> None:
    members["x"] = (entry, data)


def add_listed_files(members: Members, *, names: tuple[str, ...]) -> None:
    """Add files, and list them in the manifest."""
    listed = json.loads(members["manifest.json"][1])["members"]
    digest = hashlib.sha256(b"x").hexdigest()
    for name in names:
        members[name] = (make_entry(name), b"x")
        listed[name] = {"size": 1, "sha256": digest}
    edit_manifest(members, members=listed)


def replace_data(members: Members, name: str, data: bytes) -> None:
    members[name] = (members[name][0], data)


def edit_manifest(archive_members: Members, **changes: object) -> None:
    manifest = json.loads(archive_members["manifest.json"][1])
    replace_data(archive_members, "manifest.json", json.dumps(manifest | changes).encode())


def add_trigger(members: Members) -> None:
    """Add a trigger to the ledger of an archive that is intact otherwise."""
    ledger = sqlite3.connect(":memory:")
    header = bytearray(members["ledger.db"][1])
    header[18:20] = b"\x01\x01"  # no write-ahead log: a database in memory has none
    ledger.deserialize(bytes(header))
    with ledger:
        ledger.execute("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM jobs; END")
    data = ledger.serialize()
    replace_data(members, "ledger.db", data)
    listed = json.loads(members["manifest.json"][1])["members"]
    digest = hashlib.sha256(data).hexdigest()
    edit_manifest(members, members=listed | {"ledger.db": {"size": len(data), "sha256": digest}})


def add_long_header(members: Members) -> None:
    entry = make_entry("files/x")
    entry.pax_headers = {"comment": "x" * (archives.MAX_READ_BYTES + 1)}
    members["x"] = (entry, b"x")


async def test_an_archive_that_is_not_what_a_backup_writes_is_refused(
    settings: Settings, tmp_path: Path
) -> None:
    whole = await make_backup(settings, tmp_path)
    before = read_state(settings)
    for name, change in list_hostile_changes():
        archive = rewrite(whole, tmp_path / "changed.tar", partial(change_in_order, change=change))
        with pytest.raises(InvalidBackup):
            verify_backup(archive)
        with pytest.raises(InvalidBackup):
            restore_backup(settings, archive, replace=True)
        assert read_state(settings) == before, name
        assert not list(settings.data_dir.rglob("*#*")), name
    assert not Path("/tmp/outside").exists()


def change_in_order(members: Members, change: Change) -> None:
    """Change the members, and move the manifest behind all of them but `y`."""
    change(members)
    for name in ("manifest.json", "y"):
        if name in members:
            members[name] = members.pop(name)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "claim"])
async def test_every_damaged_byte_is_found(settings: Settings, tmp_path: Path, damage: str) -> None:
    archive = await make_backup(settings, tmp_path)
    data = bytearray(archive.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[20_000] ^= 1
    elif damage == "claim":  # a file that has more bytes than the archive
        entry = make_entry("files/large")
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
    assert not [name for name in os.listdir(tmp_path) if "#" in name]
