"""Define the interface of the index of chunks, which is searched by vector and by word.

`lance_table` keeps it in a directory or an object store, `postgres_table` in PostgreSQL with
pgvector. `open_index` chooses by JOBS_INDEX_URL.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import DependencyUnavailable, PermanentError
from switchyard.services.pipeline.text.chunks import Chunk

BATCH_SIZE = 4_096
"""Vectors in memory at once where many are read."""
APPROXIMATE_FROM = 50_000
"""Number of chunks from which compaction makes an index of neighbours. Below it, a search compares
every vector and is exact; above it, a search may miss some of the nearest."""


class IndexMismatch(PermanentError):
    """This process can't make the embedder that the index was made with, or the index has vectors
    of another length."""


class IndexUnavailable(DependencyUnavailable):
    """The index's store does not answer, or other processes write all the time. A job that fails
    with this error uses up no attempt."""


@dataclass(frozen=True, slots=True)
class Match:
    """A chunk that is near to a vector."""

    chunk: Chunk
    title: str
    similarity: float
    """Cosine, from -1 to 1."""


@dataclass(frozen=True, slots=True)
class NearDocument:
    """A document with at least one chunk near to a vector."""

    document_id: str
    title: str
    similarity: float
    """Cosine of its nearest chunk, from -1 to 1."""


@dataclass(frozen=True, slots=True)
class WordMatch:
    """A chunk that has words of a query."""

    chunk: Chunk
    title: str
    relevance: float
    """BM25: above 0, without an upper limit, and only to be compared within one answer."""


Key = str | int
"""The key by which an index finds a chunk again that it has just returned."""


@dataclass(frozen=True, slots=True)
class ChunkCandidate:
    """A chunk that is near to a vector or has words of a text, with the values from which its rank
    is computed."""

    key: Key
    similarity: float
    """Cosine to the vector, from -1 to 1; 0 to a vector of zeros."""
    relevance: float = 0.0
    """As in WordMatch; 0 for a chunk that only the search by vector found."""
    text: str = ""
    """The chunk's text; only the best chunk by words always has it."""


@dataclass(frozen=True, slots=True)
class IndexedText:
    """A chunk in the index, without its vector."""

    title: str
    chunk: Chunk


class ChunkIndex(Protocol):
    """Chunks with their vectors, all of one embedder. All methods raise IndexUnavailable."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        ...

    async def put(
        self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]
    ) -> None:
        """Write some chunks of a document, in place of those with the same numbers.

        Safe to repeat and to interrupt, as ids are the same each time. `drop_from` removes what is
        left of an earlier, longer text.
        """
        ...

    async def drop_from(self, document_id: str, number: int) -> None:
        """Remove a document's chunks from the number `number` on, if there are any."""
        ...

    async def delete_document(self, document_id: str) -> None:
        """Remove a document's chunks, if there are any."""
        ...

    async def count(self, document_id: str | None = None) -> int:
        """Count the chunks of a document, or all."""
        ...

    async def document_ids(self) -> list[str]:
        """Return the ids of the documents that have chunks, in order."""
        ...

    async def texts_of(self, document_id: str, start: int, limit: int) -> list[IndexedText]:
        """Return up to `limit` chunks of a document, in order, from the number `start` on."""
        ...

    async def vectors_at(self, document_id: str, numbers: Sequence[int]) -> list[list[float]]:
        """Return the vectors of a document's chunks with these numbers, in their order."""
        ...

    async def means_of(self, document_ids: Collection[str]) -> dict[str, list[float]]:
        """Return the mean of each document's vectors, of length 1 (or 0); documents without any are
        absent."""
        ...

    async def nearest(
        self,
        vector: Sequence[float],
        limit: int,
        *,
        document_ids: Collection[str] | None = None,
        exact: bool = False,
    ) -> list[Match]:
        """Return the chunks nearest to a vector, best first; with `document_ids`, of these
        documents alone. With `exact`, every vector is compared, however many there are.

        Nothing is near to a vector of zeros.
        """
        ...

    async def neighbours(
        self, vectors: Sequence[Sequence[float]], limit: int, *, excluding: str
    ) -> list[NearDocument]:
        """Return the documents of the `limit` chunks that are nearest to each vector, the nearest
        first, each once, and without the document `excluding`. A call with several vectors costs
        little more than with one."""
        ...

    async def keyword_search(
        self,
        text: str,
        limit: int,
        *,
        document_ids: Collection[str] | None = None,
    ) -> list[WordMatch]:
        """Return the chunks that have words of the text, the most relevant first; with
        `document_ids`, of these documents alone."""
        ...

    async def candidates(
        self,
        vector: Sequence[float],
        text: str,
        limit: int,
        *,
        document_ids: Collection[str] | None = None,
    ) -> list[ChunkCandidate]:
        """Return what `nearest` and `keyword_search` find, each chunk once, in no order. Only the
        values that ranking needs are read, as most candidates are not shown."""
        ...

    async def likenesses(self, keys: Sequence[Key], best: Sequence[Key]) -> dict[Key, float]:
        """Return the similarity of each candidate's chunk to the mean of the best ones: cosines,
        from -1 to 1. Chunks that were deleted meanwhile may be absent."""
        ...

    async def read_candidates(self, keys: Sequence[Key]) -> dict[Key, IndexedText]:
        """Read the chunks of some candidates; chunks that were deleted meanwhile are absent."""
        ...

    async def needs_compaction(self) -> bool:
        """Return whether writes have left so many pieces that leaving them would cost more than
        compaction."""
        ...

    async def compact(self) -> None:
        """Merge the pieces that writes have left, drop those that no reader needs, and index new
        rows. Takes seconds to minutes; others may read and write meanwhile."""
        ...


async def merge_candidates(
    vector_search: Coroutine[Any, Any, list[ChunkCandidate]],
    word_search: Coroutine[Any, Any, list[ChunkCandidate]],
) -> list[ChunkCandidate]:
    """Run both searches at the same time, and return each chunk once; of a chunk that both found,
    the candidate of the word search. Where one search fails, the other is ended."""
    tasks = asyncio.create_task(vector_search), asyncio.create_task(word_search)
    try:
        candidates = itertools.chain.from_iterable(await asyncio.gather(*tasks))
        return list({each.key: each for each in candidates}.values())
    finally:
        await end_tasks(*tasks)


def normalize(vector: Any) -> list[float]:
    """Scale a numpy vector to length 1; zeros stay zeros."""
    length = float((vector * vector).sum()) ** 0.5
    return [float(value) / length for value in vector] if length else [0.0] * len(vector)


def require_pairs(chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]) -> None:
    """Raise ValueError where there are not as many vectors as chunks."""
    if len(chunks) != len(vectors):
        raise ValueError(f"{len(chunks)} chunks and {len(vectors)} vectors")


def unique_documents(documents: Iterable[NearDocument]) -> list[NearDocument]:
    """Return each document once, with the similarity of its nearest chunk; the nearest first, equal
    ones by their ids."""
    nearest: dict[str, NearDocument] = {}
    for each in documents:
        nearest_so_far = nearest.get(each.document_id)
        if nearest_so_far is None or each.similarity > nearest_so_far.similarity:
            nearest[each.document_id] = each
    return sorted(nearest.values(), key=lambda each: (-each.similarity, each.document_id))


def sort_matches(matches: list[Match]) -> list[Match]:
    """Sort matches by similarity, the best first; equal ones by their chunks' ids."""
    return sorted(matches, key=lambda match: (-match.similarity, match.chunk.id))


def chunk_of(row: Any) -> Chunk:
    """Make a chunk from a row of either kind of index."""
    return Chunk(row["id"], row["document_id"], row["index"], row["page"], row["text"])


def recovery_hint(made_by: str, length: int) -> str:
    """Return which settings to change so that an index made by that embedder can be used as it
    is."""
    for offline in ("wordllama", "hashed"):
        if made_by.startswith(f"{offline}-"):
            return (
                f"unset JOBS_EMBED_BASE_URL and set JOBS_EMBED_OFFLINE={offline} and "
                f"JOBS_EMBED_DIMENSIONS={length} to use it"
            )
    if made_by.startswith("local-"):
        return (
            "unset JOBS_EMBED_BASE_URL, and set JOBS_EMBED_OFFLINE to its model's folder, or to "
            f"minilm, and JOBS_EMBED_DIMENSIONS={length} to use it"
        )
    return "set JOBS_EMBED_BASE_URL, JOBS_EMBED_MODEL and JOBS_EMBED_DIMENSIONS back to use it"
