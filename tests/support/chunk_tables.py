"""Tables of chunks in an index of either store, and chunks and vectors to write to them."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.open_index import index_store_at
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id

DIMENSIONS = 8


def make_chunks(document_id: str, count: int, text: str = "text") -> list[Chunk]:
    return [Chunk(chunk_id(document_id, n), document_id, n, 1, f"{text} {n}") for n in range(count)]


def make_vector(angle: float) -> list[float]:
    """Return a vector of length one, at this angle in radians to `make_vector(0)`."""
    return [math.cos(angle), math.sin(angle), *[0.0] * (DIMENSIONS - 2)]


def random_vectors(count: int) -> list[list[float]]:
    """Return the first vectors of one random sequence."""
    rng = random.Random(3)
    return [[rng.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(count)]


@asynccontextmanager
async def open_table(
    url: str, embedder: str = "test", dimensions: int = DIMENSIONS, table: str = "chunks"
) -> AsyncIterator[ChunkIndex]:
    store = index_store_at(url)
    try:
        async with store.table(Generation(table, embedder, dimensions)) as index:
            yield index
    finally:
        await store.close()


async def put_chunks(index: ChunkIndex, document_id: str, count: int, text: str = "text") -> None:
    """Write this many chunks of a document, and delete its further ones."""
    vectors = [make_vector(n / 10) for n in range(count)]
    await index.put("Title", make_chunks(document_id, count, text), vectors)
    await index.drop_from(document_id, count)


async def read_texts(index: ChunkIndex) -> list[str]:
    """Return the texts of all chunks, in alphabetical order."""
    return sorted(match.chunk.text for match in await index.nearest(make_vector(0), 10_000))
