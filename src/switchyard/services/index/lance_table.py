"""The index of chunks in LanceDB, in a directory or an object store.

Several processes write it at once. LanceDB commits optimistically, with a gap that is closed here:
two upserts of the same new id would both insert it, so `id` is declared the primary key, by which
they conflict. And whoever has a table open sees it as it was then: what must be of this moment
looks for the latest version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from switchyard.services.index.chunk_index import (
    APPROXIMATE_FROM,
    BATCH,
    IndexedText,
    Match,
    WordMatch,
    best_first,
    require_pairs,
    unit,
)
from switchyard.services.index.commits import retried
from switchyard.services.index.words import (
    add_word_index,
    has_word_index,
    words_query,
)
from switchyard.services.text.chunks import Chunk
from switchyard.services.text.plain import normalised

_CHUNK_COLUMNS = ("id", "document_id", "index", "page", "text", "title")
WORDS_COLUMN = "words"
"""The text, normalised: words are looked for there, and the text is shown as it was."""
_KEPT = timedelta(hours=1)
"""Versions of a table that are younger stay: a reader that is slow may still be at one."""
_PROBED = 8
"""Of the parts of a large index, one in so many is looked at for neighbours."""


class LanceTable:
    """A table of LanceDB as a ChunkIndex. Cheap enough to open per job."""

    def __init__(self, table: Any, dimensions: int, wording: int) -> None:
        self._table = table
        self.dimensions = dimensions
        self._words = WORDS_COLUMN if wording else "text"
        """A table from before words were kept beside the text is searched by the text."""

    async def put(
        self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]
    ) -> None:
        if chunks:
            rows = await asyncio.to_thread(self._rows, title, chunks, vectors)
            await retried(lambda: self._upsert(rows))

    async def drop_from(self, document_id: str, number: int) -> None:
        orphans = f"document_id = {_quoted(document_id)} AND index >= {number}"
        # A delete that finds nothing is a commit nevertheless, which others may collide with.
        if await self._table.count_rows(orphans):
            await retried(lambda: self._table.delete(orphans))

    async def delete_document(self, document_id: str) -> None:
        await retried(lambda: self._table.delete(f"document_id = {_quoted(document_id)}"))

    async def count(self, document_id: str | None = None) -> int:
        where = None if document_id is None else f"document_id = {_quoted(document_id)}"
        await self._table.checkout_latest()
        return int(await self._table.count_rows(where))

    async def document_ids(self) -> list[str]:
        await self._table.checkout_latest()
        batches = await self._table.query().select(["document_id"]).to_batches()
        found: set[str] = set()
        async for batch in batches:
            found.update(batch.column("document_id").unique().to_pylist())
        return sorted(found)

    async def texts_of(self, document_id: str, start: int, limit: int) -> list[IndexedText]:
        where = (
            f"document_id = {_quoted(document_id)} AND index >= {start} AND index < {start + limit}"
        )
        await self._table.checkout_latest()
        rows = await self._table.query().where(where).select(list(_CHUNK_COLUMNS)).to_list()
        return [
            IndexedText(row["title"], _chunk(row))
            for row in sorted(rows, key=lambda row: row["index"])
        ]

    async def vectors_at(self, document_id: str, numbers: Sequence[int]) -> list[list[float]]:
        if not numbers:
            return []
        chosen = ", ".join(str(int(number)) for number in numbers)
        query = self._table.query().where(
            f"document_id = {_quoted(document_id)} AND index IN ({chosen})"
        )
        rows = await query.select(["index", "vector"]).to_list()
        return [row["vector"] for row in sorted(rows, key=lambda row: row["index"])]

    async def means_of(self, document_ids: Collection[str]) -> dict[str, list[float]]:
        """Read batch by batch: vectors of large documents do not fit into memory."""
        if not document_ids:
            return {}
        query = self._table.query().where(_one_of(document_ids))
        batches = await query.select(["document_id", "vector"]).to_batches(max_batch_length=BATCH)
        sums: dict[str, Any] = {}
        async for batch in batches:
            _add_up(sums, batch, self.dimensions)
        return {document_id: unit(total) for document_id, total in sums.items()}

    async def nearest(
        self,
        vector: Sequence[float],
        limit: int,
        *,
        excluding: str | None = None,
        within: Collection[str] | None = None,
        of: Collection[str] | None = None,
        exact: bool = False,
    ) -> list[Match]:
        if not any(vector) or (within is not None and not within) or (of is not None and not of):
            return []
        query = self._table.query().nearest_to(list(vector)).distance_type("cosine").limit(limit)
        if exact:
            query = query.bypass_vector_index()
        elif parts := await self._neighbour_parts():
            query = query.nprobes(max(1, parts // _PROBED))
        conditions = [_one_of(within)] if within is not None else []
        if of is not None:
            conditions.append(_one_of(of, "id"))
        if excluding is not None:
            conditions.append(f"document_id != {_quoted(excluding)}")
        if conditions:
            query = query.where(" AND ".join(conditions))
        rows = await query.select([*_CHUNK_COLUMNS, "_distance"]).to_list()
        return best_first(
            [
                Match(_chunk(row), row["title"], similarity=1 - row["_distance"])
                for row in rows
                if row["_distance"] is not None
            ]
        )

    async def with_words(
        self, text: str, limit: int, *, within: Collection[str] | None = None
    ) -> list[WordMatch]:
        """A table from before there was an index of words gets one."""
        query = words_query(text)
        if query is None or (within is not None and not within):
            return []
        if not await has_word_index(self._table, self._words):
            await retried(lambda: add_word_index(self._table, self._words))
        found = self._table.query().nearest_to_text(query, columns=[self._words]).limit(limit)
        if within is not None:
            found = found.where(_one_of(within))
        rows = await found.select([*_CHUNK_COLUMNS, "_score"]).to_list()
        matches = [WordMatch(_chunk(row), row["title"], relevance=row["_score"]) for row in rows]
        return sorted(matches, key=lambda match: (-match.relevance, match.chunk.id))

    async def compact(self) -> None:
        """Merge small files, drop versions older than an hour, index the columns that writes and
        filters look up, and vectors where there are many."""
        from lancedb.index import BTree, IvfFlat

        number = await self._table.count_rows()
        if number:
            indices = await self._table.list_indices()
            indexed = {column for index in indices for column in index.columns}
            for column in sorted({"id", "document_id"} - indexed):
                await retried(partial(self._table.create_index, column, config=BTree()))
            if number >= APPROXIMATE_FROM and "vector" not in indexed:
                config = IvfFlat(distance_type="cosine", num_partitions=_parts_of(number))
                await retried(partial(self._table.create_index, "vector", config=config))
        await retried(lambda: self._table.optimize(cleanup_older_than=_KEPT))

    async def _neighbour_parts(self) -> int:
        """Parts of the index of vectors; 0 where there is none."""
        for index in await self._table.list_indices():
            if list(index.columns) == ["vector"]:
                return _parts_of(await self._table.count_rows())
        return 0

    async def _upsert(self, rows: Any) -> None:
        merge = self._table.merge_insert("id").when_matched_update_all()
        await merge.when_not_matched_insert_all().execute(rows)

    def _rows(self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]) -> Any:
        import pyarrow as pa

        require_pairs(chunks, vectors)
        rows = [
            {
                "id": chunk.id,
                "document_id": chunk.document_id,
                "index": chunk.index,
                "page": chunk.page,
                "text": chunk.text,
                "title": title,
                "vector": list(vector),
                WORDS_COLUMN: normalised(chunk.text),
            }
            for chunk, vector in zip(chunks, vectors, strict=True)
        ]
        schema = columns_of(self.dimensions, has_words=self._words == WORDS_COLUMN)
        return pa.Table.from_pylist(rows, schema=schema)


def _parts_of(number: int) -> int:
    """Parts into which an index of so many vectors is divided."""
    return max(1, math.isqrt(number))


def _add_up(sums: dict[str, Any], batch: Any, dimensions: int) -> None:
    """Add each document's vectors of a batch to its sum."""
    import numpy as np

    vectors = batch.column("vector").flatten().to_numpy().reshape(-1, dimensions)
    owners = batch.column("document_id").dictionary_encode()
    numbers = owners.indices.to_numpy()
    for number, document_id in enumerate(owners.dictionary.to_pylist()):
        part = vectors[numbers == number].sum(axis=0, dtype=np.float64)
        sums[document_id] = sums[document_id] + part if document_id in sums else part


def columns_of(dimensions: int, *, has_words: bool = True) -> Any:
    """The schema; without words, that of a table from before they were kept."""
    import pyarrow as pa

    # Without a primary key, two upserts of the same new id at once insert it twice.
    primary_key = {"lance-schema:unenforced-primary-key": "true"}
    words = [pa.field(WORDS_COLUMN, pa.string(), nullable=False)] if has_words else []
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False, metadata=primary_key),
            pa.field("document_id", pa.string(), nullable=False),
            pa.field("index", pa.int32(), nullable=False),
            pa.field("page", pa.int32(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("title", pa.string(), nullable=False),
            pa.field("vector", pa.list_(pa.float32(), dimensions), nullable=False),
            *words,
        ]
    )


def _chunk(row: Mapping[str, Any]) -> Chunk:
    return Chunk(row["id"], row["document_id"], row["index"], row["page"], row["text"])


def _one_of(ids: Collection[str], column: str = "document_id") -> str:
    return f"{column} IN ({', '.join(map(_quoted, sorted(set(ids))))})"


def _quoted(text: str) -> str:
    """A string literal of the filter language."""
    return "'" + text.replace("'", "''") + "'"
