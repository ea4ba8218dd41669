"""The index of chunks in LanceDB, in a directory or an object store.

Several processes write it at once. LanceDB commits optimistically, with a gap that is closed here:
two upserts of the same new id would both insert it. So `id` is declared the primary key, which
makes them conflict, and has no index, as upserts that use an index do not notice the conflict. An
open table shows the version at which it was opened: reads that must be up to date switch to the
latest one first.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from switchyard.services.pipeline.index.chunk_index import (
    APPROXIMATE_FROM,
    BATCH_SIZE,
    ChunkCandidate,
    IndexedText,
    Key,
    Match,
    NearDocument,
    WordMatch,
    chunk_of,
    merge_candidates,
    normalize,
    require_pairs,
    sort_matches,
    unique_documents,
)
from switchyard.services.pipeline.index.lance_commits import retry_on_conflict
from switchyard.services.pipeline.index.lance_vectors import add_up, cosines
from switchyard.services.pipeline.index.native_memory import trim_heap
from switchyard.services.pipeline.index.word_index import (
    STEMMED_FROM,
    add_word_index,
    full_text_query,
    has_word_index,
)
from switchyard.services.pipeline.text.chunks import Chunk
from switchyard.services.pipeline.text.plain_text import normalised
from switchyard.services.pipeline.text.stems import stemmed

_CHUNK_COLUMNS = ("id", "document_id", "index", "page", "text", "title")
WORDS_COLUMN = "words"
"""The column of stems, in which words are looked for; the text itself is kept unchanged."""
_VERSION_RETENTION = timedelta(minutes=10)
"""Versions of a table that are younger stay: a slow reader may still use them."""
_MIN_FRAGMENTS = 64
"""Number of small fragments above which merging costs less than leaving them. Every read and upsert
looks into each fragment (some 0.2 ms); merging rewrites a table of up to a million rows (some 30 µs
a row). For a larger table, both cost the same at half the square root of the number of its rows."""
_VECTORS_IN_PART = 4_096
"""Vectors in a part of the index of neighbours: as many as LanceDB uses by default."""
_MIN_PROBED_PARTS = 32
"""Fewest parts that a search for neighbours reads, in some ten milliseconds. Of a large index, it
reads one part in _PROBED_SHARE."""
_PROBED_SHARE = 8
_REFINE_FACTOR = 2
"""Number of chunks compared by their full vectors for each chunk that is asked for. The index of
neighbours has only a byte for each number of a vector, so that a search reads a quarter of the
bytes."""
_MAX_EQUAL = 200
"""Chunks that a search by words reads beyond those that are asked for, to choose among chunks of
equal score; of these chunks, only ids and scores are read."""
_MAX_SEGMENTS = 8
"""Number of segments from which the index of neighbours is rebuilt. Each compaction adds a segment
with the new vectors, and each search reads all segments."""


class LanceTable:
    """A table of LanceDB as a ChunkIndex. Cheap enough to open per job."""

    def __init__(self, table: Any, dimensions: int, text_index_version: int) -> None:
        """Use an open table. A table from before there was a column of stems is searched by its
        text."""
        self._table = table
        self.dimensions = dimensions
        self._words_column = WORDS_COLUMN if text_index_version else "text"
        self._has_stems = text_index_version >= STEMMED_FROM

    async def put(
        self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]
    ) -> None:
        if chunks:
            rows = await asyncio.to_thread(self._rows, title, chunks, vectors)
            await retry_on_conflict(lambda: self._upsert(rows))

    async def drop_from(self, document_id: str, number: int) -> None:
        condition = f"document_id = {_quote(document_id)} AND index >= {number}"
        # Even a delete that finds nothing is a commit, with which others may conflict.
        if await self._table.count_rows(condition):
            await retry_on_conflict(lambda: self._table.delete(condition))

    async def delete_document(self, document_id: str) -> None:
        await retry_on_conflict(lambda: self._table.delete(f"document_id = {_quote(document_id)}"))

    async def count(self, document_id: str | None = None) -> int:
        condition = None if document_id is None else f"document_id = {_quote(document_id)}"
        await self._table.checkout_latest()
        return int(await self._table.count_rows(condition))

    async def document_ids(self) -> list[str]:
        await self._table.checkout_latest()
        batches = await self._table.query().select(["document_id"]).to_batches()
        ids: set[str] = set()
        async for batch in batches:
            ids.update(batch.column("document_id").unique().to_pylist())
        return sorted(ids)

    async def texts_of(self, document_id: str, start: int, limit: int) -> list[IndexedText]:
        condition = (
            f"document_id = {_quote(document_id)} AND index >= {start} AND index < {start + limit}"
        )
        await self._table.checkout_latest()
        rows = await self._table.query().where(condition).select(list(_CHUNK_COLUMNS)).to_list()
        return [
            IndexedText(row["title"], chunk_of(row))
            for row in sorted(rows, key=lambda row: row["index"])
        ]

    async def vectors_at(self, document_id: str, numbers: Sequence[int]) -> list[list[float]]:
        if not numbers:
            return []
        number_list = ", ".join(str(int(number)) for number in numbers)
        query = self._table.query().where(
            f"document_id = {_quote(document_id)} AND index IN ({number_list})"
        )
        rows = await query.select(["index", "vector"]).to_list()
        return [row["vector"] for row in sorted(rows, key=lambda row: row["index"])]

    async def means_of(self, document_ids: Collection[str]) -> dict[str, list[float]]:
        """Read the vectors in batches: those of large documents do not fit into memory."""
        if not document_ids:
            return {}
        query = self._table.query().where(_is_in(document_ids))
        batches = await query.select(["document_id", "vector"]).to_batches(
            max_batch_length=BATCH_SIZE
        )
        sums: dict[str, Any] = {}
        async for batch in batches:
            add_up(sums, batch, self.dimensions)
        return {document_id: normalize(total) for document_id, total in sums.items()}

    async def nearest(
        self,
        vector: Sequence[float],
        limit: int,
        *,
        document_ids: Collection[str] | None = None,
        exact: bool = False,
    ) -> list[Match]:
        if not any(vector) or (document_ids is not None and not document_ids):
            return []
        query = await self._nearest_query(list(vector), limit, exact=exact)
        if document_ids is not None:
            query = query.where(_is_in(document_ids))
        rows = await query.select([*_CHUNK_COLUMNS, "_distance"]).to_list()
        return sort_matches(
            [
                Match(chunk_of(row), row["title"], similarity=1 - row["_distance"])
                for row in rows
                if row["_distance"] is not None
            ]
        )

    async def neighbours(
        self, vectors: Sequence[Sequence[float]], limit: int, *, excluding: str
    ) -> list[NearDocument]:
        query_vectors = [list(vector) for vector in vectors if any(vector)]
        if not query_vectors:
            return []
        query = (await self._nearest_query(query_vectors, limit)).where(
            f"document_id != {_quote(excluding)}"
        )
        rows = await query.select(["document_id", "title", "_distance"]).to_list()
        return unique_documents(
            NearDocument(row["document_id"], row["title"], similarity=1 - row["_distance"])
            for row in rows
            if row["_distance"] is not None
        )

    async def _nearest_query(self, vectors: list[Any], limit: int, *, exact: bool = False) -> Any:
        """Build a query for the rows nearest to a vector, or to each of several."""
        query = self._table.query().nearest_to(vectors).distance_type("cosine").limit(limit)
        if exact:
            return query.bypass_vector_index()
        parts = await self._table.count_rows() // _VECTORS_IN_PART
        # The search reads more parts only until enough rows are found that fit the conditions.
        query = query.maximum_nprobes(0).minimum_nprobes(
            max(_MIN_PROBED_PARTS, parts // _PROBED_SHARE)
        )
        return query.refine_factor(_REFINE_FACTOR)

    async def keyword_search(
        self, text: str, limit: int, *, document_ids: Collection[str] | None = None
    ) -> list[WordMatch]:
        relevances = await self._relevances(text, limit, document_ids)
        stored = await self.read_candidates(list(relevances))
        matches = [
            WordMatch(stored[key].chunk, stored[key].title, relevance)
            for key, relevance in relevances.items()
            if key in stored
        ]
        return sorted(matches, key=lambda match: (-match.relevance, match.chunk.id))

    async def _relevances(
        self, text: str, limit: int, document_ids: Collection[str] | None
    ) -> dict[int, float]:
        """Return BM25 of the rows with words of a text, by their ids. Of rows with equal scores the
        first in the table are taken, as LanceDB's own choice varies."""
        search = await self._keyword_query(text, limit + _MAX_EQUAL, document_ids)
        if search is None:
            return {}
        rows = await search.select(["_score"]).with_row_id().to_arrow()
        scores = zip(
            rows.column("_rowid").to_pylist(), rows.column("_score").to_pylist(), strict=True
        )
        return dict(sorted(scores, key=lambda each: (-each[1], each[0]))[:limit])

    async def _keyword_query(
        self, text: str, limit: int, document_ids: Collection[str] | None
    ) -> Any | None:
        """Build a query for the rows with words of a text; None where there can be none. A table
        from before there was an index of words gets one."""
        query = full_text_query(text, has_stems=self._has_stems)
        if query is None or (document_ids is not None and not document_ids):
            return None
        if not await has_word_index(self._table, self._words_column):
            await retry_on_conflict(lambda: add_word_index(self._table, self._words_column))
        search = (
            self._table.query().nearest_to_text(query, columns=[self._words_column]).limit(limit)
        )
        return search if document_ids is None else search.where(_is_in(document_ids))

    async def candidates(
        self,
        vector: Sequence[float],
        text: str,
        limit: int,
        *,
        document_ids: Collection[str] | None = None,
    ) -> list[ChunkCandidate]:
        return await merge_candidates(
            self._vector_candidates(vector, limit, document_ids),
            self._word_candidates(vector, text, limit, document_ids),
        )

    async def _vector_candidates(
        self, vector: Sequence[float], limit: int, document_ids: Collection[str] | None
    ) -> list[ChunkCandidate]:
        if not any(vector) or (document_ids is not None and not document_ids):
            return []
        # A factor of 1 is enough: a chunk that is not among the first by a byte for each number is
        # not among the best of both searches.
        query = (await self._nearest_query(list(vector), limit)).refine_factor(1)
        if document_ids is not None:
            query = query.where(_is_in(document_ids))
        rows = await query.select(["_distance"]).with_row_id().to_list()
        return [
            ChunkCandidate(row["_rowid"], 1 - row["_distance"])
            for row in rows
            if row["_distance"] is not None
        ]

    async def _word_candidates(
        self, vector: Sequence[float], text: str, limit: int, document_ids: Collection[str] | None
    ) -> list[ChunkCandidate]:
        relevances = await self._relevances(text, limit, document_ids)
        if not relevances:
            return []
        query = self._table.take_row_ids(list(relevances)).select(["text", "vector"])
        rows = await query.with_row_id().to_arrow()
        candidates = zip(
            rows.column("_rowid").to_pylist(),
            cosines(vector, rows.column("vector")),
            rows.column("text").to_pylist(),
            strict=True,
        )
        return [
            ChunkCandidate(key, similarity, relevances[key], text=text)
            for key, similarity, text in candidates
        ]

    async def likenesses(self, keys: Sequence[Key], best: Sequence[Key]) -> dict[Key, float]:
        import numpy as np

        if not keys or not best:
            return {}
        query = self._table.take_row_ids(list({*keys, *best})).select(["vector"])
        rows = await query.with_row_id().to_arrow()
        column = rows.column("vector")
        row_ids = rows.column("_rowid").to_pylist()
        vectors = column.combine_chunks().flatten().to_numpy().reshape(len(row_ids), -1)
        best_keys = set(best)
        best_indices = [index for index, key in enumerate(row_ids) if key in best_keys]
        mean = vectors[best_indices].sum(axis=0, dtype=np.float64)
        return dict(zip(row_ids, cosines(mean, column), strict=True))

    async def read_candidates(self, keys: Sequence[Key]) -> dict[Key, IndexedText]:
        if not keys:
            return {}
        query = self._table.take_row_ids(list(keys)).select(list(_CHUNK_COLUMNS)).with_row_id()
        rows = await query.to_list()
        return {row["_rowid"]: IndexedText(row["title"], chunk_of(row)) for row in rows}

    async def needs_compaction(self) -> bool:
        stats = await self._table.stats()
        fragments = int(stats["fragment_stats"]["num_small_fragments"])
        return fragments >= max(_MIN_FRAGMENTS, math.isqrt(int(stats["num_rows"])) // 2)

    async def compact(self) -> None:
        """Merge small files, drop versions older than _VERSION_RETENTION, and index the column that
        writes and filters look up, and the vectors where there are many."""
        try:
            await self._compact()
        finally:
            await asyncio.to_thread(trim_heap)

    async def _compact(self) -> None:
        from lancedb.index import BTree, IvfSq

        # First of all, as it moves rows and then updates all indexes.
        await retry_on_conflict(lambda: self._table.optimize(cleanup_older_than=_VERSION_RETENTION))
        row_count = await self._table.count_rows()
        if not row_count:
            return
        indexed = {index.columns[0]: index for index in await self._table.list_indices()}
        if "document_id" not in indexed:
            await retry_on_conflict(
                partial(self._table.create_index, "document_id", config=BTree())
            )
        if "id" in indexed:  # earlier versions made one, with which upserts missed each other
            await self._drop_duplicates()
            await retry_on_conflict(partial(self._table.drop_index, indexed["id"].name))
        segments = await self._count_segments(indexed.get("vector"))
        if row_count >= APPROXIMATE_FROM and not 0 < segments < _MAX_SEGMENTS:
            # Into as many parts as LanceDB takes by itself: smaller ones it would join again.
            config = IvfSq(distance_type="cosine")
            await retry_on_conflict(partial(self._table.create_index, "vector", config=config))

    async def _drop_duplicates(self) -> None:
        """Keep one row of each id. Safe beside writers: rows that they write or move get new row
        ids, and the old ids are not used again."""
        rows = await self._table.query().select(["id"]).with_row_id().to_arrow()
        kept_ids = rows.group_by("id").aggregate([("_rowid", "min")]).column("_rowid_min")
        duplicates = sorted(set(rows.column("_rowid").to_pylist()).difference(kept_ids.to_pylist()))
        for start in range(0, len(duplicates), BATCH_SIZE):
            row_ids = ", ".join(map(str, duplicates[start : start + BATCH_SIZE]))
            await retry_on_conflict(partial(self._table.delete, f"_rowid IN ({row_ids})"))

    async def _count_segments(self, index: Any | None) -> int:
        """Count the segments of an index of neighbours; 0 without an index, and for the kind that
        earlier versions made, which has to be rebuilt."""
        if index is None or index.index_type != "IvfSq":
            return 0
        stats = await self._table.index_stats(index.name)
        return 0 if stats is None else int(stats.num_indices or 1)

    async def _upsert(self, rows: Any) -> None:
        merge = self._table.merge_insert("id").use_index(False).when_matched_update_all()
        await merge.when_not_matched_insert_all().execute(rows)

    def _rows(self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]) -> Any:
        import pyarrow as pa

        require_pairs(chunks, vectors)
        to_words = stemmed if self._has_stems else normalised
        rows = [
            {
                "id": chunk.id,
                "document_id": chunk.document_id,
                "index": chunk.index,
                "page": chunk.page,
                "text": chunk.text,
                "title": title,
                "vector": list(vector),
                WORDS_COLUMN: to_words(chunk.text),
            }
            for chunk, vector in zip(chunks, vectors, strict=True)
        ]
        schema = table_schema(self.dimensions, has_words=self._words_column == WORDS_COLUMN)
        return pa.Table.from_pylist(rows, schema=schema)


def table_schema(dimensions: int, *, has_words: bool = True) -> Any:
    """Return the schema of a table; with `has_words` False, that of tables from before
    there was a column of stems."""
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


def _is_in(ids: Collection[str]) -> str:
    return f"document_id IN ({', '.join(map(_quote, sorted(set(ids))))})"


def _quote(text: str) -> str:
    """Return the text as a string literal of LanceDB's filters."""
    return "'" + text.replace("'", "''") + "'"
