"""An index is rebuilt for another embedder by one process at a time, and the old one is removed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index import index_rebuild
from switchyard.services.pipeline.index.chunk_index import IndexMismatch
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.generations import (
    Generation,
    Generations,
    decode_state,
    encode_state,
)
from switchyard.services.pipeline.index.index_rebuild import (
    RETIRED_RETENTION,
    AnotherRebuild,
    Progress,
    abandon_rebuild,
    begin_rebuild,
    compact_index,
    continue_rebuild,
)
from switchyard.services.pipeline.index.open_index import open_index
from tests.support.rebuilding import (
    always,
    new_embedder,
    open_hashed_index,
    read_contents,
    rebuild,
    texts_of_document,
    write_document,
)


async def test_a_rebuilt_index_replaces_the_old_one(url: str):
    async with open_hashed_index(url) as index:
        for n in range(5):
            await write_document(index, f"doc-{n}", n + 1, "old")
        before = await read_contents(index)
        assert (await index.generations()).active.dimensions == 64
        building = await rebuild(index)
        generations = await index.generations()
        assert (generations.active, generations.building) == (building, None)
        assert generations.active.embedder == "hashed-2-32"
        assert [each.generation.table for each in generations.retired] == ["chunks"]
        assert await read_contents(index) == before
        # It has that embedder already.
        assert (await begin_rebuild(index, new_embedder(index))).building is None


async def test_an_index_is_used_with_its_embedder_although_the_settings_name_another(url: str):
    async with open_hashed_index(url) as index:
        await write_document(index, "a", 3, "old")
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed", embed_dimensions=128)
    async with open_index(settings) as index:
        await write_document(index, "b", 2, "new")
        assert sorted(await read_contents(index)) == ["a", "b"]
        async with index.open_active() as (table, embedder):
            assert embedder.name == "hashed-2-64"
            assert await search(table, embedder, "the tide", 3)


async def test_an_index_of_an_unknown_embedder_is_refused(url: str):
    async with open_hashed_index(url) as index:
        unknown_generation = Generation("chunks", "some-model-64", 64)
        async with index.store.table(unknown_generation):
            pass
        with pytest.raises(IndexMismatch, match="JOBS_EMBED_BASE_URL, JOBS_EMBED_MODEL"):
            async with index.open_active():
                pass


async def test_an_interrupted_rebuild_continues_at_its_checkpoint(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_rebuild, "PROGRESS_INTERVAL", 1)
    async with open_hashed_index(url) as index:
        for n in range(4):
            await write_document(index, f"doc-{n}", 2, "old")
        building = (await begin_rebuild(index, new_embedder(index))).building
        assert building is not None
        assert not await continue_rebuild(index, building, always(True))
        stop_answers = iter([False, False, True])
        assert not await continue_rebuild(index, building, lambda: next(stop_answers))
        assert Progress.from_note(await index.store.progress(building)) == Progress(1, "doc-1")
        assert (await index.generations()).active.dimensions == 64
        assert await continue_rebuild(index, building, always(False))
        assert len(await read_contents(index)) == 4


async def test_one_rebuild_runs_at_a_time_and_it_can_be_abandoned(url: str):
    async with open_hashed_index(url) as index:
        await write_document(index, "a", 2, "old")
        building = (await begin_rebuild(index, new_embedder(index))).building
        assert building is not None
        assert (await begin_rebuild(index, new_embedder(index))).building == building
        with pytest.raises(AnotherRebuild, match=r"hashed-2-32.*jobctl index abandon"):
            await begin_rebuild(index, new_embedder(index, 16))
        assert await abandon_rebuild(index) == building
        assert await abandon_rebuild(index) is None
        # A process that was rebuilding stops.
        assert await continue_rebuild(index, building, always(False))
        assert (await index.generations()).active.dimensions == 64
        await rebuild(index, 16)
        assert (await read_contents(index)) == {"a": texts_of_document("a", 2, "old")}


async def test_a_replaced_index_is_removed_once_nobody_can_be_reading_it(url: str):
    async with open_hashed_index(url) as index:
        await write_document(index, "a", 2, "old")
        await rebuild(index)
        assert await compact_index(index) == []
        index_later = replace(index, clock=lambda: time.time() + RETIRED_RETENTION + 60)
        assert [each.table for each in await compact_index(index_later)] == ["chunks"]
        assert (await index.generations()).retired == ()
        assert await read_contents(index) == {"a": texts_of_document("a", 2, "old")}
        await rebuild(index, 16)
        await write_document(index, "b", 1, "new")
        assert sorted(await read_contents(index)) == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"active": 1, "building": null, "retired": [], "number": 1}',
        encode_state(Generations(Generation("x; DROP TABLE y", "e", 8))).decode(),
        "[" * 100_000,
    ],
)
def test_an_unreadable_list_of_generations_is_refused(text: str):
    with pytest.raises(IndexMismatch, match="can't be read"):
        decode_state(text)
