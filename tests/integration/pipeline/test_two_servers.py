"""Workers whose settings name different embedding servers, on one index."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.pipeline.index.chunk_index import ChunkIndex, IndexMismatch
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.embedder import Embedder, embedder_for
from switchyard.services.pipeline.index.embedder_probe import VERIFICATION_TTL
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.index_check import check_index
from switchyard.services.pipeline.index.index_rebuild import begin_rebuild, continue_rebuild
from switchyard.services.pipeline.index.open_index import OpenIndex, open_index
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support import llm_server as server
from tests.support.llm_server import DIMENSIONS, FakeLlmServer


async def put(index: OpenIndex, document_id: str) -> None:
    chunk = Chunk(chunk_id(document_id, 0), document_id, 0, 1, "The tide comes and goes.")

    async def work(table: ChunkIndex, embedder: Embedder) -> None:
        await table.put("Title", [chunk], await embedder.embed([chunk.text]))

    await index.write(work)


async def test_a_server_of_another_model_writes_nothing_into_an_index(settings: Settings) -> None:
    def of(url: str, model: str) -> Settings:
        return settings.model_copy(
            update={"embed_base_url": url, "embed_model": model, "embed_dimensions": DIMENSIONS}
        )

    with FakeLlmServer() as old, FakeLlmServer() as new:
        new.always(server.embeds(model="new-model"))  # whichever it is asked for
        async with (
            open_index(of(old.url, "old-model")) as before,
            open_index(of(new.url, "new-model")) as after,
        ):
            await put(before, "a")
            with pytest.raises(IndexMismatch, match=r"'old-model'.*'new-model'"):
                await put(after, "b")
            assert (await before.count("a"), await before.count("b")) == (1, 0)
            # And while it is rebuilt: each generation takes vectors of its own model alone.
            await begin_rebuild(after, embedder_for(after.settings))
            assert len((await before.generations()).write_targets) == 2
            old.always(server.embeds(model="old-model"))
            with pytest.raises(IndexMismatch, match=r"'new-model'.*'old-model'"):
                await put(before, "c")
            with pytest.raises(IndexMismatch, match=r"'old-model'.*'new-model'"):
                await put(after, "d")


@pytest.fixture(params=["lancedb", pytest.param("pgvector", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "pgvector":
        return request.getfixturevalue("pgvector_url")
    return str(tmp_path / "index")


async def test_other_weights_under_the_name_of_the_model_write_and_find_nothing_until_a_rebuild(
    settings: Settings, url: str
) -> None:
    def of(server_url: str) -> Settings:
        return settings.model_copy(
            update={
                "index_url": SecretStr(url),
                "embed_base_url": server_url,
                "embed_model": "model",
                "embed_dimensions": DIMENSIONS,
            }
        )

    with FakeLlmServer() as one, FakeLlmServer() as two:
        two.always(server.embeds(weights="others "))
        async with open_index(of(one.url)) as before, open_index(of(two.url)) as after:
            await put(before, "a")
            with pytest.raises(IndexMismatch, match=r"'model-8'.*jobctl index rebuild --force"):
                await put(after, "b")
            async with after.open_active() as (table, embedder):
                with pytest.raises(IndexMismatch):
                    await search(table, embedder, "tide")
                assert await search(table, embedder, "tide", mode=SearchMode.KEYWORD)
            assert (await before.count("a"), await before.count("b")) == (1, 0)
            *_, check = await check_index(after.settings)
            assert (check.status, check.finding) == ("wrong", Finding.INDEX_VECTORS)
            assert "rebuild --force" in check.remedy
            *_, check = await check_index(before.settings)
            assert check.status == "ok"

            state = await begin_rebuild(after, embedder_for(after.settings), force=True)
            assert state.building is not None
            assert await continue_rebuild(after, state.building, lambda: False)
            await put(after, "b")
            assert (await after.count("a"), await after.count("b")) == (1, 1)
            with pytest.raises(IndexMismatch):
                await put(before, "c")


async def test_a_server_that_gets_other_weights_is_noticed_by_who_asks_it_for_long(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeLlmServer() as one:
        changes = {
            "embed_base_url": one.url,
            "embed_model": "model",
            "embed_dimensions": DIMENSIONS,
        }
        async with open_index(settings.model_copy(update=changes)) as index:
            await put(index, "a")
            request_count = len(one.requests)
            await put(index, "b")
            assert len(one.requests) == request_count + 1  # it was compared a moment ago
            one.always(server.embeds(weights="others "))
            for generation in index.verified.verified_at:
                index.verified.verified_at[generation] -= VERIFICATION_TTL + 1
            with pytest.raises(IndexMismatch):
                await put(index, "c")
            # An index from before there were probes is known by what it holds.
            monkeypatch.setattr(index.store, "probe", no_probe)
            with pytest.raises(IndexMismatch):
                await put(index, "c")


async def no_probe(generation: Generation) -> None:
    return None


async def test_the_doctor_reports_an_unreachable_embedding_server(settings: Settings) -> None:
    with FakeLlmServer() as one:
        with_both = settings.model_copy(
            update={"embed_base_url": one.url, "embed_model": "m", "embed_dimensions": DIMENSIONS}
        )
        async with open_index(with_both) as index:
            await put(index, "a")
    *_, check = await check_index(with_both)
    assert (check.status, check.finding) == ("warning", Finding.EMBEDDER_AWAY)
