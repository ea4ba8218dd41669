"""Files as sources of backfills: every line once, and others get their turn meanwhile."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from switchyard.services.backfill.files import PIECE_BYTES, FileOptions, FileSource
from switchyard.services.backfill.formats import FileFormat
from switchyard.services.backfill.sources import Item, SourceContext, Unusable
from switchyard.services.files.storage import Storage
from switchyard.services.settings import Settings

KEY = "backfills/it.lines"


async def source_of(directory: Path, content: bytes, kind: FileFormat) -> FileSource:
    storage = Storage(directory.as_uri())
    await storage.put_async(KEY, content)
    context = SourceContext(Settings(), cast("Any", None), storage, 0.0)
    return FileSource(FileOptions(key=KEY, format=kind), context)


@pytest.mark.parametrize("kind", [FileFormat.LINES, FileFormat.CSV])
async def test_others_get_their_turn_while_a_file_of_short_lines_is_read(
    tmp_path: Path, kind: FileFormat
) -> None:
    source = await source_of(tmp_path, b"x\n" * 512 * 1024, kind)
    read, noted = 0, [0]

    async def another() -> None:
        while True:
            noted.append(read)
            await asyncio.sleep(0)

    other = asyncio.create_task(another())
    async for _ in source.items(None):
        read += 1
    other.cancel()
    assert read >= 512 * 1024 - 1
    longest = max(later - earlier for earlier, later in pairwise(noted))
    assert longest <= PIECE_BYTES / 2 + 1


async def test_every_line_is_read_once_wherever_a_piece_of_the_file_ends(tmp_path: Path) -> None:
    lines = [b"x" * length for length in (1, PIECE_BYTES - 3, 1, PIECE_BYTES, 3 * PIECE_BYTES, 7)]
    source = await source_of(tmp_path, b"\n".join(lines), FileFormat.LINES)
    assert await source.total() == len(lines)
    found = [each async for each in source.items(None)]
    assert [item_of(each) for each in found] == [line.decode() for line in lines]
    for number, each in enumerate(found, 1):
        rest = [item_of(other) async for other in source.items(each.cursor)]
        assert rest == [line.decode() for line in lines[number:]]


def item_of(found: Item | Unusable) -> Any:
    assert isinstance(found, Item)
    return found.values["item"]
