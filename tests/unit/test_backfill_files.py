"""Files as sources of backfills: every line is read once, and other tasks run meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from switchyard.services.common.files.charsets import charset_named
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.files import (
    PIECE_BYTES,
    FileOptions,
    FileSource,
    store_input,
)
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.backfill.sources import (
    InvalidBackfill,
    Item,
    SourceContext,
    Unusable,
)

KEY = "backfills/it.lines"


async def source_of(directory: Path, content: bytes, kind: FileFormat) -> FileSource:
    storage = Storage(directory.as_uri())
    await storage.put_async(KEY, content)
    context = SourceContext(Settings(), cast("Any", None), storage, 0.0)
    return FileSource(FileOptions(key=KEY, format=kind), context)


@pytest.mark.parametrize("kind", [FileFormat.LINES, FileFormat.CSV])
async def test_other_tasks_run_while_a_file_of_short_lines_is_read(
    tmp_path: Path, kind: FileFormat
) -> None:
    lines = 8 * PIECE_BYTES
    source = await source_of(tmp_path, b"x\n" * lines, kind)
    lines_read, observed_counts = 0, [0]

    async def observe() -> None:
        while True:
            observed_counts.append(lines_read)
            await asyncio.sleep(0)

    observer = asyncio.create_task(observe())
    async for _ in source.items(None):
        lines_read += 1
    observer.cancel()
    assert lines_read >= lines - 1
    most_lines_between_turns = max(later - earlier for earlier, later in pairwise(observed_counts))
    assert most_lines_between_turns <= PIECE_BYTES / 2 + 1


async def test_every_line_is_read_once_wherever_a_piece_of_the_file_ends(tmp_path: Path) -> None:
    lines = [b"x" * length for length in (1, PIECE_BYTES - 3, 1, PIECE_BYTES, 3 * PIECE_BYTES, 7)]
    source = await source_of(tmp_path, b"\n".join(lines), FileFormat.LINES)
    assert await source.total() == len(lines)
    items = [each async for each in source.items(None)]
    assert [item_of(each) for each in items] == [line.decode() for line in lines]
    for number, each in enumerate(items, 1):
        remaining = [item_of(item) async for item in source.items(each.cursor)]
        assert remaining == [line.decode() for line in lines[number:]]


def item_of(item: Item | Unusable) -> Any:
    assert isinstance(item, Item)
    return item.values["item"]


@pytest.mark.parametrize(("codec", "charset"), [("utf-16", None), ("gbk", "gb2312")])
async def test_a_file_in_another_charset_is_kept_in_utf_8(
    tmp_path: Path, codec: str, charset: str | None
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield "name\n朱镕基\n".encode(codec)

    storage = Storage(tmp_path.as_uri())
    key = await store_input(storage, parts(), FileFormat.CSV, lambda: charset_named(charset))
    assert await storage.get_async(key) == "name\n朱镕基\n".encode()


async def test_a_file_that_is_not_in_its_charset_is_refused_and_not_kept(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"name\n\xff\xff\n"

    with pytest.raises(InvalidBackfill, match="not in the charset"):
        await store_input(
            Storage(tmp_path.as_uri()), parts(), FileFormat.CSV, lambda: charset_named("gbk")
        )
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]
