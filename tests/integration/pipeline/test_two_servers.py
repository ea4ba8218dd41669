"""Workers whose settings name different embedding servers, on one index."""

import pytest

from switchyard.services.index.chunk_index import ChunkIndex, IndexMismatch
from switchyard.services.index.embedder import Embedder, embedder_for
from switchyard.services.index.opening import OpenIndex, open_index
from switchyard.services.index.rebuilding import begin
from switchyard.services.settings import Settings
from switchyard.services.text.chunks import Chunk, chunk_id
from tests.support import llm_server as server
from tests.support.llm_server import DIMENSIONS, LlmServer


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

    with LlmServer() as old, LlmServer() as new:
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
            await begin(after, embedder_for(after.settings))
            assert len((await before.generations()).written) == 2
            old.always(server.embeds(model="old-model"))
            with pytest.raises(IndexMismatch, match=r"'new-model'.*'old-model'"):
                await put(before, "c")
            with pytest.raises(IndexMismatch, match=r"'old-model'.*'new-model'"):
                await put(after, "d")
