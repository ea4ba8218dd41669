"""Writers compact an index in LanceDB without holding up other writers or searches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index import lance_table
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.compaction import compact_table
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.lance_store import LanceStore
from switchyard.services.pipeline.index.open_index import OpenIndex, open_index
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.eventually import eventually

FRAGMENTS = 6
"""Fragments from which a table is compacted in these tests."""


@pytest.fixture(autouse=True)
def merge_few_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_table, "_MIN_FRAGMENTS", FRAGMENTS)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        index_url=SecretStr(str(tmp_path / "index")), embed_offline="hashed", amqp_url=None
    )


@pytest.fixture
async def index(settings: Settings) -> AsyncIterator[OpenIndex]:
    async with open_index(settings) as index:
        yield index


async def write_document(index: OpenIndex, document_id: str, count: int = 2) -> None:
    chunks = [
        Chunk(chunk_id(document_id, n), document_id, n, 1, f"{document_id} part{n}")
        for n in range(count)
    ]

    async def put(table: ChunkIndex, embedder: Embedder) -> None:
        await table.put("Title", chunks, await embedder.embed([each.text for each in chunks]))

    await index.write(put)


async def is_scattered(index: OpenIndex) -> bool:
    async with index.open_active() as (table, _):
        return await table.needs_compaction()


async def test_fragments_of_many_small_writes_are_merged_during_the_writes(index: OpenIndex):
    for number in range(3 * FRAGMENTS):
        await write_document(index, f"doc{number}")
        async with index.open_active() as (table, _):
            (match, *_) = await table.keyword_search(f"doc{number}", 1)
            assert match.chunk.document_id == f"doc{number}"

    async def is_merged() -> bool:
        return not await is_scattered(index)

    await eventually(is_merged)
    async with index.open_active() as (table, _):
        assert await table.document_ids() == sorted(f"doc{n}" for n in range(3 * FRAGMENTS))
        assert await table.count() == 6 * FRAGMENTS


async def test_two_writers_that_both_merge_lose_and_double_nothing(
    index: OpenIndex, settings: Settings
):
    async with open_index(settings) as other_index:
        for number in range(2 * FRAGMENTS):
            await asyncio.gather(
                write_document(index, f"a{number}"), write_document(other_index, f"b{number}")
            )
    async with index.open_active() as (table, _):
        assert await table.count() == 8 * FRAGMENTS


async def test_a_table_that_another_process_compacts_is_left_to_it(
    index: OpenIndex, settings: Settings
):
    async with open_index(settings) as other_index:
        (generation,) = (await other_index.generations()).write_targets
        async with other_index.store.compacting(generation) as is_ours:
            assert is_ours
            for number in range(FRAGMENTS):
                await write_document(index, f"doc{number}")
            await compact_table(index.store, generation)
            assert await is_scattered(index)
    await compact_table(index.store, generation)
    assert not await is_scattered(index)


async def test_a_process_that_was_killed_while_it_compacted_holds_nobody_up(
    index: OpenIndex, tmp_path: Path
):
    store = index.store
    assert isinstance(store, LanceStore)
    (generation,) = (await index.generations()).write_targets
    marker = tmp_path / "index" / f"{generation.table}.compacting"
    await write_document(index, "doc")
    marker.touch()
    async with store.compacting(generation) as is_ours:
        assert not is_ours
    # The marker is an hour old, or an hour in the future, where the clock was set back.
    for offset in (-3600, 3600):
        marker.touch()
        timestamp = datetime.now(UTC).timestamp() + offset
        os.utime(marker, (timestamp, timestamp))
        async with store.compacting(generation) as is_ours:
            assert is_ours
        assert not marker.exists()
    assert not [each for each in marker.parent.iterdir() if each.suffix == ".clock"]


async def test_a_write_is_whole_although_the_table_can_not_be_compacted(
    index: OpenIndex, monkeypatch: pytest.MonkeyPatch
):
    async def fail(self: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(lance_table.LanceTable, "compact", fail)
    with capture_logs() as logs:
        for number in range(FRAGMENTS):
            await write_document(index, f"doc{number}")
        await eventually(lambda: any("no room" in str(each.get("error")) for each in logs))
    async with index.open_active() as (table, _):
        assert await table.count() == 2 * FRAGMENTS
