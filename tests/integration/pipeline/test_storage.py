"""Files are put whole or not at all, and found where they were put."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from switchyard.services.common.files.charsets import charset_named
from switchyard.services.common.files.errors import (
    DocumentTooLarge,
    FileTooLarge,
    InvalidKey,
    NotStored,
    UnsupportedDocument,
)
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.files.uploads import receive
from tests.support.pdfs import pdf


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "with a space"


@pytest.fixture
def storage(root: Path) -> Storage:
    return Storage(root.as_uri())


async def stream_parts(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def list_keys(storage: Storage, prefix: str = "") -> list[str]:
    return sorted([stored.key async for stored in storage.list_async(prefix)])


def list_names(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("data", "charset", "stored_text"),
    [
        ("5 €, it’s".encode("cp1252"), "iso-8859-1", "5 €, it’s".encode()),
        ("朱镕基".encode("gbk"), "gb2312", "朱镕基".encode()),
        ("5 €".encode("utf-16"), "iso-8859-1", "5 €".encode("utf-16")),
        (b"%PDF-1.7 \x80", "iso-8859-1", b"%PDF-1.7 \x80"),
    ],
)
async def test_an_uploaded_text_is_kept_in_utf_8(
    storage: Storage, data: bytes, charset: str, stored_text: bytes
) -> None:
    upload = await receive(storage, stream_parts(data), charset=lambda: charset_named(charset))
    assert await storage.get_async(upload.key) == stored_text


async def test_a_stored_file_is_read_back(storage: Storage, root: Path):
    storage.put("a/b", b"one")
    assert await storage.get_async("a/b") == b"one"
    await storage.put_async("a/b", b"two")
    assert storage.get("a/b") == b"two"
    assert (root / "a" / "b").read_bytes() == b"two"


async def test_the_error_names_a_file_that_was_never_stored(storage: Storage):
    for attempt in (
        storage.get_async("a/b"),
        storage.rename_async("a/b", "c"),
        anext(storage.stream_async("a/b")),
    ):
        with pytest.raises(NotStored, match="a/b"):
            await attempt
    with pytest.raises(NotStored):
        storage.get("a/b")
    assert not await storage.exists_async("a/b")
    await storage.delete_async("a/b")
    assert await storage.delete_prefix_async("a") == 0


async def test_no_method_takes_a_key_that_leaves_the_storage(storage: Storage):
    for attempt in (
        storage.put_async("../x", b""),
        storage.put_new_async("../x", b""),
        storage.put_stream_async("../x", stream_parts(b"x"), max_bytes=1),
        storage.get_async("../x"),
        storage.exists_async("../x"),
        storage.rename_async("../x", "a"),
        storage.rename_async("a", "../x"),
        storage.delete_async("../x"),
        storage.delete_prefix_async(".."),
        storage.delete_prefix_async(""),
        storage.size_async("../x"),
    ):
        with pytest.raises(InvalidKey):
            await attempt


async def test_a_reader_never_sees_half_a_file(storage: Storage, root: Path):
    contents = [letter * 3_000_000 for letter in (b"a", b"b")]
    storage.put("big", contents[0])
    stop = threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            storage.put("big", contents[turn % 2])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(150):
            assert await storage.get_async("big") in contents
            assert await list_keys(storage) == ["big"]  # temporary files are not listed
    finally:
        stop.set()
        writer.join()
    assert list_names(root) == ["big"]


async def test_a_stream_is_measured_while_it_is_stored(storage: Storage):
    received = await storage.put_stream_async("s", stream_parts(b"ab", b"", b"c"), max_bytes=3)
    assert (received.size, received.sha256) == (3, content_hash(b"abc"))
    assert b"".join([part async for part in storage.stream_async("s")]) == b"abc"


async def test_a_stream_that_is_too_long_leaves_nothing(storage: Storage, root: Path):
    with pytest.raises(FileTooLarge, match="10"):
        await storage.put_stream_async("s", stream_parts(*[b"x" * 6] * 9), max_bytes=10)
    assert list_names(root) == []


async def test_a_stream_that_breaks_off_leaves_nothing(storage: Storage, root: Path):
    async def break_off() -> AsyncIterator[bytes]:
        yield b"x" * 20_000_000
        raise ConnectionError("the client went away")

    with pytest.raises(ConnectionError, match="went away"):
        await storage.put_stream_async("s", break_off(), max_bytes=100_000_000)
    assert list_names(root) == []


async def test_a_file_that_is_too_large_is_not_read(storage: Storage):
    storage.put("a", b"12345")
    assert await storage.get_async("a", max_bytes=5) == b"12345"
    with pytest.raises(FileTooLarge):
        await storage.get_async("a", max_bytes=4)


async def test_of_many_writers_of_a_new_file_one_succeeds(storage: Storage):
    results = await asyncio.gather(*[storage.put_new_async("a", bytes([n])) for n in range(20)])
    assert sum(results) == 1
    assert storage.get("a") == bytes([results.index(True)])


async def test_folders_are_listed_measured_and_removed(storage: Storage):
    for key in ("a/1", "a/b/2", "ab/3"):
        storage.put(key, b"12345")
    assert await list_keys(storage, "a") == ["a/1", "a/b/2"]
    assert await storage.size_async("a") == 10
    assert await storage.size_async() == 15
    assert await storage.delete_prefix_async("a") == 2
    assert await list_keys(storage) == ["ab/3"]


async def test_only_old_files_are_removed_where_an_age_is_given(storage: Storage):
    storage.put("a/1", b"")
    now = datetime.now(UTC)
    assert await storage.delete_prefix_async("a", before=now - timedelta(hours=1)) == 0
    assert await storage.delete_prefix_async("a", before=now + timedelta(hours=1)) == 1


async def test_a_renamed_file_has_only_its_new_key(storage: Storage):
    storage.put("a", b"x")
    await storage.rename_async("a", "b/c")
    assert await list_keys(storage) == ["b/c"]


async def test_an_upload_is_stored_as_it_comes_in(storage: Storage):
    content = pdf()
    pieces = [content[start : start + 100] for start in range(0, len(content), 100)]
    upload = await receive(storage, stream_parts(*pieces))
    assert upload.key.startswith("uploads/incoming/")
    assert (upload.size, upload.sha256) == (len(content), content_hash(content))
    assert storage.get(upload.key) == content


@pytest.mark.parametrize("pieces", [[], [b""], [b"\x89PNG" + b"x" * 9000], [b"\x89P", b"NG"]])
async def test_an_upload_that_is_no_document_is_refused(
    storage: Storage, root: Path, pieces: list[bytes]
):
    with pytest.raises(UnsupportedDocument):
        await receive(storage, stream_parts(*pieces))
    assert list_names(root) == []


async def test_an_upload_that_is_too_large_is_refused(storage: Storage, root: Path):
    with pytest.raises(DocumentTooLarge, match="50"):
        await receive(storage, stream_parts(*[b"text " * 4] * 5), max_bytes=50)
    assert list_names(root) == []
