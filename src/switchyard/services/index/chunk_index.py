"""The index of chunks, by vector and by word: one LanceDB table `chunks`, in a directory or an
object store.

Several processes write it at once. LanceDB commits optimistically, with two gaps that this
module closes: two upserts of the same new id would both insert it (so `id` is declared the
primary key, by which they conflict), and two creations of the table would overwrite one another
(so creation is guarded by a marker that only one process can put).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from switchyard.services.files.storage import Storage
from switchyard.services.index.commits import FIRST_WAIT, retried
from switchyard.services.index.words import (
    add_word_index,
    has_word_index,
    words_query,
)
from switchyard.services.jobs.outcomes import PermanentError, RetryableError
from switchyard.services.text.chunks import Chunk

TABLE = "chunks"

_CREATION_TIMEOUT = 30.0
"""Seconds after which a creation's marker belongs to a process that died."""
_MARKER = f"{TABLE}.creating"
_EMBEDDER = b"embedder"
_BATCH = 4_096
"""Vectors in memory at once where many are read."""
_CHUNK_COLUMNS = ("id", "document_id", "index", "page", "text", "title")


class IndexMismatch(PermanentError):
    """The table was made by another embedder or for vectors of another length."""


@dataclass(frozen=True, slots=True)
class Match:
    """A chunk that is near to a vector."""

    chunk: Chunk
    title: str
    similarity: float
    """Cosine, from -1 to 1."""


@dataclass(frozen=True, slots=True)
class WordMatch:
    """A chunk that has words of a query."""

    chunk: Chunk
    title: str
    relevance: float
    """BM25: above 0, without an upper limit, and only to be compared within one answer."""


class ChunkIndex:
    """Chunks with their vectors. Open it with `ChunkIndex.open`; cheap enough to open per job."""

    def __init__(self, table: Any, dimensions: int) -> None:
        self._table = table
        self.dimensions = dimensions

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, embedder: str, dimensions: int) -> AsyncIterator[ChunkIndex]:
        """The index at this address, for vectors of the embedder of that name; made if need be.

        Raises IndexMismatch, and RetryableError when another process does not get done making it.
        """
        import lancedb

        connection: Any = await lancedb.connect_async(url)
        try:
            table = await _open_table(connection)
            if table is None:
                table = await _create_table(connection, url, embedder, dimensions)
            _check(await table.schema(), embedder, dimensions)
            yield cls(table, dimensions)
        finally:
            connection.close()

    async def put(
        self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]
    ) -> None:
        """Write some chunks of a document, in place of those with the same numbers.

        Safe to repeat and to interrupt: ids are the same each time, and what is left of a longer
        text, `drop_from` removes. Raises RetryableError when other writers win every time.
        """
        if chunks:
            rows = await asyncio.to_thread(self._rows, title, chunks, vectors)
            await retried(lambda: self._upsert(rows))

    async def drop_from(self, document_id: str, number: int) -> None:
        """Remove a document's chunks from that number on; it does not matter whether there are
        any. Raises RetryableError when other writers win every time."""
        orphans = f"document_id = {_quoted(document_id)} AND index >= {number}"
        # A delete that finds nothing is a commit nevertheless, which others may collide with.
        if await self._table.count_rows(orphans):
            await retried(lambda: self._table.delete(orphans))

    async def delete_document(self, document_id: str) -> None:
        """Remove a document's chunks; it does not matter whether there are any."""
        await retried(lambda: self._table.delete(f"document_id = {_quoted(document_id)}"))

    async def count(self, document_id: str | None = None) -> int:
        """Chunks of a document, or of all."""
        where = None if document_id is None else f"document_id = {_quoted(document_id)}"
        return int(await self._table.count_rows(where))

    async def vectors_at(self, document_id: str, numbers: Sequence[int]) -> list[list[float]]:
        """The vectors of a document's chunks of these numbers, in their order."""
        if not numbers:
            return []
        chosen = ", ".join(str(int(number)) for number in numbers)
        query = self._table.query().where(
            f"document_id = {_quoted(document_id)} AND index IN ({chosen})"
        )
        rows = await query.select(["index", "vector"]).to_list()
        return [row["vector"] for row in sorted(rows, key=lambda row: row["index"])]

    async def means_of(self, document_ids: Collection[str]) -> dict[str, list[float]]:
        """The mean of each document's vectors, of length 1 (or 0); documents without any are
        absent. Reads them batch by batch: of large documents they do not fit into memory."""
        if not document_ids:
            return {}
        query = self._table.query().where(_one_of(document_ids))
        batches = await query.select(["document_id", "vector"]).to_batches(max_batch_length=_BATCH)
        sums: dict[str, Any] = {}
        async for batch in batches:
            _add_up(sums, batch, self.dimensions)
        return {document_id: _unit(total) for document_id, total in sums.items()}

    async def nearest(
        self,
        vector: Sequence[float],
        limit: int,
        *,
        excluding: str | None = None,
        within: Collection[str] | None = None,
        of: Collection[str] | None = None,
    ) -> list[Match]:
        """The chunks nearest to a vector, best first; `excluding` leaves one document out,
        `within` leaves out all documents but these, and `of` all chunks but those of these ids.

        Nothing is near to a vector of zeros.
        """
        if not any(vector) or (within is not None and not within) or (of is not None and not of):
            return []
        query = self._table.query().nearest_to(list(vector)).distance_type("cosine").limit(limit)
        conditions = [_one_of(within)] if within is not None else []
        if of is not None:
            conditions.append(_one_of(of, "id"))
        if excluding is not None:
            conditions.append(f"document_id != {_quoted(excluding)}")
        if conditions:
            query = query.where(" AND ".join(conditions))
        rows = await query.select([*_CHUNK_COLUMNS, "_distance"]).to_list()
        matches = [
            Match(_chunk(row), row["title"], similarity=1 - row["_distance"])
            for row in rows
            if row["_distance"] is not None
        ]
        # Equal distances come in any order; callers and tests want one.
        return sorted(matches, key=lambda match: (-match.similarity, match.chunk.id))

    async def with_words(
        self, text: str, limit: int, *, within: Collection[str] | None = None
    ) -> list[WordMatch]:
        """The chunks that have words of the text, the most relevant first; `within` leaves out
        all documents but these. A table from before there was an index of words gets one."""
        query = words_query(text)
        if query is None or (within is not None and not within):
            return []
        if not await has_word_index(self._table):
            await retried(lambda: add_word_index(self._table))
        found = self._table.query().nearest_to_text(query, columns=["text"]).limit(limit)
        if within is not None:
            found = found.where(_one_of(within))
        rows = await found.select([*_CHUNK_COLUMNS, "_score"]).to_list()
        matches = [WordMatch(_chunk(row), row["title"], relevance=row["_score"]) for row in rows]
        return sorted(matches, key=lambda match: (-match.relevance, match.chunk.id))

    async def optimize(self) -> None:
        """Merge small files, drop versions older than a day, index the columns that writes and
        filters look up. For a maintenance job; others may read and write meanwhile."""
        from lancedb.index import BTree

        if await self._table.count_rows():
            indices = await self._table.list_indices()
            indexed = {column for index in indices for column in index.columns}
            for column in sorted({"id", "document_id"} - indexed):
                await retried(partial(self._table.create_index, column, config=BTree()))
        await retried(lambda: self._table.optimize(cleanup_older_than=timedelta(days=1)))

    async def _upsert(self, rows: Any) -> None:
        merge = self._table.merge_insert("id").when_matched_update_all()
        await merge.when_not_matched_insert_all().execute(rows)

    def _rows(self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]) -> Any:
        import pyarrow as pa

        if len(chunks) != len(vectors):
            raise ValueError(f"{len(chunks)} chunks and {len(vectors)} vectors")
        rows = [
            {
                "id": chunk.id,
                "document_id": chunk.document_id,
                "index": chunk.index,
                "page": chunk.page,
                "text": chunk.text,
                "title": title,
                "vector": list(vector),
            }
            for chunk, vector in zip(chunks, vectors, strict=True)
        ]
        return pa.Table.from_pylist(rows, schema=_columns(self.dimensions))


async def _open_table(connection: Any) -> Any | None:
    try:
        return await connection.open_table(TABLE)
    except ValueError as error:
        if "not found" not in str(error):
            raise
        return None


async def _create_table(connection: Any, url: str, embedder: str, dimensions: int) -> Any:
    """The table, made by this process or by the one that was first."""
    beside = Storage(_as_url(url))
    deadline = asyncio.get_running_loop().time() + 2 * _CREATION_TIMEOUT
    while asyncio.get_running_loop().time() < deadline:
        if await beside.put_new_async(_MARKER, b""):
            try:
                table = await _open_table(connection)
                if table is None:
                    schema = _columns(dimensions).with_metadata({_EMBEDDER: embedder.encode()})
                    table = await connection.create_table(TABLE, schema=schema)
                    await add_word_index(table)
                return table
            finally:
                await beside.delete_async(_MARKER)
        await asyncio.sleep(FIRST_WAIT)
        table = await _open_table(connection)
        if table is not None:
            return table
        await _drop_stale_marker(beside)
    raise RetryableError(f"the index at {url} is being made by another process for too long")


async def _drop_stale_marker(beside: Storage) -> None:
    marker = await beside.stat_async(_MARKER)
    oldest = datetime.now(UTC) - timedelta(seconds=_CREATION_TIMEOUT)
    if marker is not None and marker.modified < oldest:
        await beside.delete_async(_MARKER)


def _as_url(address: str) -> str:
    return address if "://" in address else Path(address).absolute().as_uri()


def _add_up(sums: dict[str, Any], batch: Any, dimensions: int) -> None:
    """Add each document's vectors of a batch to its sum."""
    import numpy as np

    vectors = batch.column("vector").flatten().to_numpy().reshape(-1, dimensions)
    owners = batch.column("document_id").dictionary_encode()
    numbers = owners.indices.to_numpy()
    for number, document_id in enumerate(owners.dictionary.to_pylist()):
        part = vectors[numbers == number].sum(axis=0, dtype=np.float64)
        sums[document_id] = sums[document_id] + part if document_id in sums else part


def _unit(total: Any) -> list[float]:
    length = float((total * total).sum()) ** 0.5
    return [float(value) / length for value in total] if length else [0.0] * len(total)


def _columns(dimensions: int) -> Any:
    import pyarrow as pa

    # Without a primary key, two upserts of the same new id at once insert it twice.
    primary_key = {"lance-schema:unenforced-primary-key": "true"}
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False, metadata=primary_key),
            pa.field("document_id", pa.string(), nullable=False),
            pa.field("index", pa.int32(), nullable=False),
            pa.field("page", pa.int32(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("title", pa.string(), nullable=False),
            pa.field("vector", pa.list_(pa.float32(), dimensions), nullable=False),
        ]
    )


def _check(schema: Any, embedder: str, dimensions: int) -> None:
    made_by = (schema.metadata or {}).get(_EMBEDDER, b"unknown").decode()
    length = schema.field("vector").type.list_size
    if (made_by, length) != (embedder, dimensions):
        raise IndexMismatch(
            f"the index holds vectors of {made_by!r}, length {length}; this process embeds with "
            f"{embedder!r}, length {dimensions}: {_way_back(made_by, length)}, or give "
            "JOBS_INDEX_URL a new place and index the documents again"
        )


def _way_back(made_by: str, length: int) -> str:
    """What to set so that this index can be used as it is."""
    for offline in ("wordllama", "hashed"):
        if made_by.startswith(f"{offline}-"):
            return (
                f"unset JOBS_EMBED_BASE_URL and set JOBS_EMBED_OFFLINE={offline} and "
                f"JOBS_EMBED_DIMENSIONS={length} to use it"
            )
    return "set JOBS_EMBED_BASE_URL, JOBS_EMBED_MODEL and JOBS_EMBED_DIMENSIONS back to use it"


def _chunk(row: Mapping[str, Any]) -> Chunk:
    return Chunk(row["id"], row["document_id"], row["index"], row["page"], row["text"])


def _one_of(ids: Collection[str], column: str = "document_id") -> str:
    return f"{column} IN ({', '.join(map(_quoted, sorted(set(ids))))})"


def _quoted(text: str) -> str:
    """A string literal of the filter language."""
    return "'" + text.replace("'", "''") + "'"
