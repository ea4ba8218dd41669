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
from tests.support.rebuilding import always, contents, opened, other, rebuilt, texts, write


async def test_an_index_is_built_anew_and_swapped(url: str):
    async with opened(url) as index:
        for n in range(5):
            await write(index, f"doc-{n}", n + 1, "old")
        before = await contents(index)
        assert (await index.generations()).active.dimensions == 64
        building = await rebuilt(index)
        now = await index.generations()
        assert (now.active, now.building) == (building, None)
        assert now.active.embedder == "hashed-2-32"
        assert [each.generation.table for each in now.retired] == ["chunks"]
        assert await contents(index) == before
        assert (await begin_rebuild(index, other(index))).building is None  # it is of that embedder


async def test_the_settings_name_another_embedder_and_the_index_is_used_as_it_is(url: str):
    async with opened(url) as index:
        await write(index, "a", 3, "old")
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed", embed_dimensions=128)
    async with open_index(settings) as index:
        await write(index, "b", 2, "new")
        assert sorted(await contents(index)) == ["a", "b"]
        async with index.open_active() as (table, embedder):
            assert embedder.name == "hashed-2-64"
            assert await search(table, embedder, "the tide", 3)


async def test_an_index_whose_embedder_nobody_can_make_is_refused(url: str):
    async with opened(url) as index:
        of_unknown_model = Generation("chunks", "some-model-64", 64)
        async with index.store.table(of_unknown_model):
            pass
        with pytest.raises(IndexMismatch, match="JOBS_EMBED_BASE_URL, JOBS_EMBED_MODEL"):
            async with index.open_active():
                pass


async def test_an_interrupted_rebuild_goes_on_at_its_checkpoint(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_rebuild, "PROGRESS_INTERVAL", 1)
    async with opened(url) as index:
        for n in range(4):
            await write(index, f"doc-{n}", 2, "old")
        building = (await begin_rebuild(index, other(index))).building
        assert building is not None
        assert not await continue_rebuild(index, building, always(True))
        turns = iter([False, False, True])
        assert not await continue_rebuild(index, building, lambda: next(turns))
        assert Progress.from_note(await index.store.progress(building)) == Progress(1, "doc-1")
        assert (await index.generations()).active.dimensions == 64
        assert await continue_rebuild(index, building, always(False))
        assert len(await contents(index)) == 4


async def test_one_rebuild_runs_at_a_time_and_it_can_be_abandoned(url: str):
    async with opened(url) as index:
        await write(index, "a", 2, "old")
        building = (await begin_rebuild(index, other(index))).building
        assert building is not None
        assert (await begin_rebuild(index, other(index))).building == building
        with pytest.raises(AnotherRebuild, match=r"hashed-2-32.*jobctl index abandon"):
            await begin_rebuild(index, other(index, 16))
        assert await abandon_rebuild(index) == building
        assert await abandon_rebuild(index) is None
        assert await continue_rebuild(index, building, always(False))  # who was at it stops
        assert (await index.generations()).active.dimensions == 64
        await rebuilt(index, 16)
        assert (await contents(index)) == {"a": texts("a", 2, "old")}


async def test_a_replaced_index_is_removed_once_nobody_can_be_reading_it(url: str):
    async with opened(url) as index:
        await write(index, "a", 2, "old")
        await rebuilt(index)
        assert await compact_index(index) == []
        by_the_ledger = replace(index, clock=lambda: time.time() + RETIRED_RETENTION + 60)
        assert [each.table for each in await compact_index(by_the_ledger)] == ["chunks"]
        assert (await index.generations()).retired == ()
        assert await contents(index) == {"a": texts("a", 2, "old")}
        await rebuilt(index, 16)
        await write(index, "b", 1, "new")
        assert sorted(await contents(index)) == ["a", "b"]


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
def test_a_catalogue_that_somebody_else_has_written_is_refused(text: str):
    with pytest.raises(IndexMismatch, match="can't be read"):
        decode_state(text)
