"""Fill, read and rebuild whole indexes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.embedder import Embedder, embedder_for
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.index_rebuild import begin_rebuild, continue_rebuild
from switchyard.services.pipeline.index.open_index import OpenIndex, open_index
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id


@asynccontextmanager
async def open_hashed_index(url: str) -> AsyncIterator[OpenIndex]:
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed", embed_dimensions=64)
    async with open_index(settings) as index:
        yield index


def new_embedder(index: OpenIndex, dimensions: int = 32) -> Embedder:
    """Return the embedder that an index is rebuilt for."""
    return embedder_for(index.settings.model_copy(update={"embed_dimensions": dimensions}))


async def write_document(index: OpenIndex, document_id: str, count: int, text: str) -> None:
    """Write chunks as `embed_content` does."""
    chunks = [
        Chunk(chunk_id(document_id, n), document_id, n, 1, f"the tide {text} {document_id} {n}")
        for n in range(count)
    ]

    async def put(table: ChunkIndex, embedder: Embedder) -> None:
        vectors = await embedder.embed([chunk.text for chunk in chunks])
        await table.put(text, chunks, vectors)
        await table.drop_from(document_id, count)

    await index.write(put)


async def write_documents(index: OpenIndex, names: Iterable[str], text: str) -> None:
    """Write documents of three chunks each, at once: each write to LanceDB takes longer than the
    one before it."""
    chunks = [
        Chunk(chunk_id(name, n), name, n, 1, f"the tide {text} {name} {n}")
        for name in names
        for n in range(3)
    ]

    async def put(table: ChunkIndex, embedder: Embedder) -> None:
        await table.put(text, chunks, await embedder.embed([chunk.text for chunk in chunks]))

    await index.write(put)


async def read_contents(index: OpenIndex) -> dict[str, list[str]]:
    """Return the texts of every document in the generation that is searched. Fails where a chunk is
    there twice, or has another length of vector."""
    async with index.open_active() as (table, embedder):
        texts_by_document = {
            document_id: [each.chunk.text for each in await table.texts_of(document_id, 0, 10_000)]
            for document_id in await table.document_ids()
        }
        assert sum(map(len, texts_by_document.values())) == await table.count()
        assert table.dimensions == embedder.dimensions
        return texts_by_document


def texts_of_document(document_id: str, count: int, text: str) -> list[str]:
    return [f"the tide {text} {document_id} {n}" for n in range(count)]


def always(answer: bool) -> Callable[[], bool]:
    return lambda: answer


async def rebuild(index: OpenIndex, dimensions: int = 32) -> Generation:
    building = (await begin_rebuild(index, new_embedder(index, dimensions))).building
    assert building is not None
    while not await continue_rebuild(index, building, always(False)):
        pass
    return building
