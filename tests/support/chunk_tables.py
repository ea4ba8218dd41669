"""Tables of chunks in an index of either kind, and their contents in tests."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.open_index import index_store_at
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id

DIMENSIONS = 8


def chunks(document_id: str, count: int, text: str = "text") -> list[Chunk]:
    return [Chunk(chunk_id(document_id, n), document_id, n, 1, f"{text} {n}") for n in range(count)]


def vector(angle: float) -> list[float]:
    return [math.cos(angle), math.sin(angle), *[0.0] * (DIMENSIONS - 2)]


@asynccontextmanager
async def opened(
    url: str, embedder: str = "test", dimensions: int = DIMENSIONS, table: str = "chunks"
) -> AsyncIterator[ChunkIndex]:
    store = index_store_at(url)
    try:
        async with store.table(Generation(table, embedder, dimensions)) as index:
            yield index
    finally:
        await store.close()


async def put(index: ChunkIndex, document_id: str, count: int, text: str = "text") -> None:
    vectors = [vector(n / 10) for n in range(count)]
    await index.put("Title", chunks(document_id, count, text), vectors)
    await index.drop_from(document_id, count)


async def texts(index: ChunkIndex) -> list[str]:
    return sorted(match.chunk.text for match in await index.nearest(vector(0), 10_000))
