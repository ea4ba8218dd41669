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
from tests.support import llm_server
from tests.support.llm_server import DIMENSIONS, FakeLlmServer


async def write_document(index: OpenIndex, document_id: str) -> None:
    chunk = Chunk(chunk_id(document_id, 0), document_id, 0, 1, "The tide comes and goes.")

    async def put_chunk(table: ChunkIndex, embedder: Embedder) -> None:
        await table.put("Title", [chunk], await embedder.embed([chunk.text]))

    await index.write(put_chunk)


async def test_a_server_of_another_model_writes_nothing_into_an_index(settings: Settings) -> None:
    def make_settings(url: str, model: str) -> Settings:
        return settings.model_copy(
            update={"embed_base_url": url, "embed_model": model, "embed_dimensions": DIMENSIONS}
        )

    with FakeLlmServer() as old_server, FakeLlmServer() as new_server:
        new_server.always(llm_server.embeds(model="new-model"))  # whichever model is requested
        async with (
            open_index(make_settings(old_server.url, "old-model")) as old_index,
            open_index(make_settings(new_server.url, "new-model")) as new_index,
        ):
            await write_document(old_index, "a")
            with pytest.raises(IndexMismatch, match=r"'old-model'.*'new-model'"):
                await write_document(new_index, "b")
            assert (await old_index.count("a"), await old_index.count("b")) == (1, 0)
            # During a rebuild, too, each generation takes vectors of its own model alone.
            await begin_rebuild(new_index, embedder_for(new_index.settings))
            assert len((await old_index.generations()).write_targets) == 2
            old_server.always(llm_server.embeds(model="old-model"))
            with pytest.raises(IndexMismatch, match=r"'new-model'.*'old-model'"):
                await write_document(old_index, "c")
            with pytest.raises(IndexMismatch, match=r"'old-model'.*'new-model'"):
                await write_document(new_index, "d")


@pytest.fixture(params=["lancedb", pytest.param("pgvector", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty index; the tests run once for each kind of index."""
    if request.param == "pgvector":
        return request.getfixturevalue("pgvector_url")
    return str(tmp_path / "index")


async def test_other_weights_under_the_same_model_name_write_and_find_nothing_until_a_rebuild(
    settings: Settings, url: str
) -> None:
    def make_settings(server_url: str) -> Settings:
        return settings.model_copy(
            update={
                "index_url": SecretStr(url),
                "embed_base_url": server_url,
                "embed_model": "model",
                "embed_dimensions": DIMENSIONS,
            }
        )

    with FakeLlmServer() as old_server, FakeLlmServer() as new_server:
        new_server.always(llm_server.embeds(weights="others "))
        async with (
            open_index(make_settings(old_server.url)) as old_index,
            open_index(make_settings(new_server.url)) as new_index,
        ):
            await write_document(old_index, "a")
            with pytest.raises(IndexMismatch, match=r"'model-8'.*jobctl index rebuild --force"):
                await write_document(new_index, "b")
            async with new_index.open_active() as (table, embedder):
                with pytest.raises(IndexMismatch):
                    await search(table, embedder, "tide")
                assert await search(table, embedder, "tide", mode=SearchMode.KEYWORD)
            assert (await old_index.count("a"), await old_index.count("b")) == (1, 0)
            *_, check = await check_index(new_index.settings)
            assert (check.status, check.finding) == ("wrong", Finding.INDEX_VECTORS)
            assert "rebuild --force" in check.remedy
            *_, check = await check_index(old_index.settings)
            assert check.status == "ok"

            state = await begin_rebuild(new_index, embedder_for(new_index.settings), force=True)
            assert state.building is not None
            assert await continue_rebuild(new_index, state.building, lambda: False)
            await write_document(new_index, "b")
            assert (await new_index.count("a"), await new_index.count("b")) == (1, 1)
            with pytest.raises(IndexMismatch):
                await write_document(old_index, "c")


async def test_a_long_running_process_notices_that_a_server_has_other_weights(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeLlmServer() as embedding_server:
        update = {
            "embed_base_url": embedding_server.url,
            "embed_model": "model",
            "embed_dimensions": DIMENSIONS,
        }
        async with open_index(settings.model_copy(update=update)) as index:
            await write_document(index, "a")
            request_count = len(embedding_server.requests)
            await write_document(index, "b")
            # The server was verified a moment ago: one request is enough.
            assert len(embedding_server.requests) == request_count + 1
            embedding_server.always(llm_server.embeds(weights="others "))
            for generation in index.verifications.verified_at:
                index.verifications.verified_at[generation] -= VERIFICATION_TTL + 1
            with pytest.raises(IndexMismatch):
                await write_document(index, "c")
            # An index without a stored probe is verified by the vectors that it holds.
            monkeypatch.setattr(index.store, "probe", return_no_probe)
            with pytest.raises(IndexMismatch):
                await write_document(index, "c")


async def return_no_probe(generation: Generation) -> None:
    return None


async def test_the_doctor_reports_an_unreachable_embedding_server(settings: Settings) -> None:
    with FakeLlmServer() as embedding_server:
        embedding_settings = settings.model_copy(
            update={
                "embed_base_url": embedding_server.url,
                "embed_model": "m",
                "embed_dimensions": DIMENSIONS,
            }
        )
        async with open_index(embedding_settings) as index:
            await write_document(index, "a")
    *_, check = await check_index(embedding_settings)
    assert (check.status, check.finding) == ("warning", Finding.EMBEDDER_AWAY)
