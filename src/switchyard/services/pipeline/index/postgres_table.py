"""The index of chunks in PostgreSQL: vectors by pgvector, words by an inverted index
(`postgres_words`)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from switchyard.services.pipeline.index.chunk_index import (
    APPROXIMATE_FROM,
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
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.postgres_counts import IS_COUNTED, count_words
from switchyard.services.pipeline.index.postgres_neighbours import (
    EXACTLY,
    INDEXED_DIMENSIONS,
    MAINTENANCE,
    SELECT_LIST_COUNT,
    index_neighbours,
    nearest,
    search_settings,
)
from switchyard.services.pipeline.index.postgres_words import (
    CHUNK_COLUMNS,
    MAX_WORD,
    keyword_search,
    word_candidates,
)
from switchyard.services.pipeline.index.word_index import (
    STEMMED_FROM,
    TOKENIZER_VERSION,
    query_terms,
)
from switchyard.services.pipeline.text.chunks import Chunk
from switchyard.services.pipeline.text.plain_text import words
from switchyard.services.pipeline.text.stems import stems

INLINE_DIMENSIONS = 1_900
"""Longest vectors that are stored in the table's own pages of 8 KiB, where a scan is quickest."""
MAX_COMPARED_CHUNKS = 5_000
"""Most chunks of a filter's documents for which a search compares all of them."""
_WORD_SEARCH_SETTINGS = (
    "SET LOCAL enable_seqscan = off; SET LOCAL work_mem = '32MB'; "
    "SET LOCAL plan_cache_mode = force_generic_plan"
)
"""Settings for a search by words. All searches share one plan. The plan never reads the whole
table, as the server would otherwise do for words that occur together less often than by chance. It
has enough memory for the index of a large table to return chunks, and not only their pages."""

Connect = Callable[[], AbstractAsyncContextManager[Any]]


async def create_table(connection: Any, generation: Generation) -> None:
    """Make the table of a generation, which must not exist, and its indexes."""
    name, length = generation.table, generation.dimensions
    await connection.execute(
        f"CREATE TABLE {name} (id text PRIMARY KEY, document_id text NOT NULL, "
        "index integer NOT NULL, page integer NOT NULL, title text NOT NULL, text text NOT NULL, "
        f"words text[] NOT NULL, vector vector({length}) NOT NULL) "
        # Texts are stored outside the table, so that reading other columns reads less.
        "WITH (toast_tuple_target = 128)"
    )
    storage = "PLAIN" if length <= INLINE_DIMENSIONS else "EXTERNAL"
    await connection.execute(
        f"ALTER TABLE {name} ALTER COLUMN id SET STORAGE PLAIN, "
        "ALTER COLUMN document_id SET STORAGE PLAIN, "
        f"ALTER COLUMN vector SET STORAGE {storage}"
    )
    await connection.execute(f"CREATE INDEX {name}_documents ON {name} (document_id, index)")
    await connection.execute(f"CREATE INDEX {name}_words ON {name} USING gin (words)")
    fields = {"embedder": generation.embedder, "dimensions": length, "wording": TOKENIZER_VERSION}
    description = json.dumps(fields)
    quoted_description = await connection.fetchval("SELECT quote_literal($1::text)", description)
    await connection.execute(f"COMMENT ON TABLE {name} IS {quoted_description}")


@dataclass(frozen=True, slots=True)
class TableDescription:
    """How a table's vectors and words were made, and which indexes it has."""

    embedder: str
    dimensions: int
    text_index_version: int = TOKENIZER_VERSION
    """TOKENIZER_VERSION of its words; 0 for a table from before there were versions."""
    lists: int | None = None
    """Lists of its index of neighbours (`postgres_neighbours`); None where it has no lists."""
    is_counted: bool = False
    """Whether the table of word counts (`postgres_counts`) can be used."""


SELECT_DESCRIPTION = (
    # to_regclass may not see a table that was made within this transaction.
    f"SELECT obj_description(oid, 'pg_class') AS comment, {SELECT_LIST_COUNT} AS lists, "
    f"{IS_COUNTED} AS counted "
    "FROM pg_class WHERE relname = $1 AND relkind = 'r' AND pg_table_is_visible(oid)"
)
"""The row that `description_of` reads, for a table's name."""


def description_of(row: Any) -> TableDescription | None:
    """Read a table's description; None where there is no such table."""
    if row is None or row["comment"] is None:
        return None
    try:
        fields = json.loads(row["comment"])
        embedder = str(fields["embedder"]), int(fields["dimensions"])
    except (ValueError, KeyError, TypeError):
        return TableDescription("unknown", 0, 0)
    try:
        tokenizer_version = int(fields["wording"])
    except (ValueError, KeyError, TypeError):
        tokenizer_version = 0
    return TableDescription(*embedder, tokenizer_version, row["lists"], row["counted"])


async def fetch_description(connection: Any, name: str) -> TableDescription | None:
    """Fetch a table's description; None where there is no such table."""
    return description_of(await connection.fetchrow(SELECT_DESCRIPTION, name))


class PostgresTable:
    """A table of PostgreSQL as a ChunkIndex."""

    def __init__(
        self,
        connect: Connect,
        generation: Generation,
        description: TableDescription,
    ) -> None:
        self._connect = connect
        self._name = generation.table
        self._lists = description.lists
        self._is_counted = description.is_counted
        self._has_stems = description.text_index_version >= STEMMED_FROM
        self.dimensions = generation.dimensions

    async def put(
        self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]
    ) -> None:
        if chunks:
            to_words = stems if self._has_stems else words
            rows = await asyncio.to_thread(_rows, title, chunks, vectors, to_words)
            async with self._connect() as connection:
                await connection.executemany(
                    f"INSERT INTO {self._name} "
                    "(id, document_id, index, page, title, text, words, vector) "
                    "VALUES ($1, $2, $3, $4, $5, $6, $7, $8::real[]::vector) "
                    "ON CONFLICT (id) DO UPDATE SET page = excluded.page, title = excluded.title, "
                    "text = excluded.text, words = excluded.words, vector = excluded.vector",
                    rows,
                )

    async def drop_from(self, document_id: str, number: int) -> None:
        async with self._connect() as connection:
            await connection.execute(
                f"DELETE FROM {self._name} WHERE document_id = $1 AND index >= $2",
                document_id,
                number,
            )

    async def delete_document(self, document_id: str) -> None:
        await self.drop_from(document_id, 0)

    async def count(self, document_id: str | None = None) -> int:
        async with self._connect() as connection:
            return int(
                await connection.fetchval(
                    f"SELECT count(*) FROM {self._name} WHERE $1::text IS NULL OR document_id = $1",
                    document_id,
                )
            )

    async def document_ids(self) -> list[str]:
        async with self._connect() as connection:
            rows = await connection.fetch(f"SELECT DISTINCT document_id FROM {self._name}")
        return sorted(row[0] for row in rows)

    async def texts_of(self, document_id: str, start: int, limit: int) -> list[IndexedText]:
        async with self._connect() as connection:
            rows = await connection.fetch(
                f"SELECT {CHUNK_COLUMNS} FROM {self._name} "
                "WHERE document_id = $1 AND index >= $2 AND index < $3 ORDER BY index",
                document_id,
                start,
                start + limit,
            )
        return [IndexedText(row["title"], chunk_of(row)) for row in rows]

    async def vectors_at(self, document_id: str, numbers: Sequence[int]) -> list[list[float]]:
        async with self._connect() as connection:
            rows = await connection.fetch(
                f"SELECT vector::real[] FROM {self._name} "
                "WHERE document_id = $1 AND index = ANY($2) ORDER BY index",
                document_id,
                list(numbers),
            )
        return [list(row[0]) for row in rows]

    async def means_of(self, document_ids: Collection[str]) -> dict[str, list[float]]:
        import numpy as np

        async with self._connect() as connection:
            rows = await connection.fetch(
                f"SELECT document_id, avg(vector)::real[] FROM {self._name} "
                "WHERE document_id = ANY($1) GROUP BY document_id",
                list(document_ids),
            )
        return {row[0]: normalize(np.array(row[1], dtype=np.float64)) for row in rows}

    async def nearest(
        self,
        vector: Sequence[float],
        limit: int,
        *,
        document_ids: Collection[str] | None = None,
        exact: bool = False,
    ) -> list[Match]:
        rows = await self._nearest_rows(CHUNK_COLUMNS, vector, limit, document_ids, exact=exact)
        return sort_matches(
            [Match(chunk_of(row), row["title"], similarity=1 - row["distance"]) for row in rows]
        )

    async def _nearest_rows(
        self,
        columns: str,
        vector: Sequence[float],
        limit: int,
        document_ids: Collection[str] | None,
        *,
        exact: bool = False,
    ) -> list[Any]:
        """Return these columns and the `distance` of the chunks nearest to a vector."""
        if not any(vector) or (document_ids is not None and not document_ids):
            return []
        values: list[Any] = [list(vector), limit]
        condition = ""
        if document_ids is not None:
            values.append(list(document_ids))
            condition = "WHERE document_id = ANY($3) "
        query_vector = "$1::real[]::vector"
        rows: list[Any] = []
        async with self._open_read(search_settings(self._lists)) as connection:
            if not exact and not await self._has_few_chunks(connection, document_ids):
                rows = await connection.fetch(
                    self._nearest_statement(columns, query_vector, "$2", condition), *values
                )
            if len(rows) < limit:  # not searched yet, or the index returned too few
                await connection.execute(EXACTLY)
                rows = await connection.fetch(
                    nearest(self._name, columns, query_vector, "$2", condition), *values
                )
        return [row for row in rows if not math.isnan(row["distance"])]

    def _nearest_statement(
        self, columns: str, query_vector: str, limit: str, condition: str
    ) -> str:
        return nearest(
            self._name,
            columns,
            query_vector,
            limit,
            condition,
            lists=self._lists,
            dimensions=self.dimensions,
        )

    async def _has_few_chunks(self, connection: Any, document_ids: Collection[str] | None) -> bool:
        """Return whether the documents have so few chunks that comparing all of them is quicker
        than the index of neighbours, which would also miss some."""
        if document_ids is None:
            return False
        count = await connection.fetchval(
            f"SELECT count(*) FROM (SELECT FROM {self._name} WHERE document_id = ANY($1) "
            f"LIMIT {MAX_COMPARED_CHUNKS + 1}) AS counted",
            list(document_ids),
        )
        return int(count) <= MAX_COMPARED_CHUNKS

    async def neighbours(
        self, vectors: Sequence[Sequence[float]], limit: int, *, excluding: str
    ) -> list[NearDocument]:
        query_vectors = [json.dumps(list(vector)) for vector in vectors if any(vector)]
        nearest_query = self._nearest_statement(
            "document_id, title", "query_vector::vector", "$3", "WHERE document_id <> $2 "
        )
        async with self._open_read(
            search_settings(self._lists, several_vectors=True)
        ) as connection:
            rows = await connection.fetch(
                "SELECT near.* FROM unnest($1::text[]) AS query_vector "
                f"CROSS JOIN LATERAL ({nearest_query}) AS near",
                query_vectors,
                excluding,
                limit,
            )
        return unique_documents(
            NearDocument(row["document_id"], row["title"], similarity=1 - row["distance"])
            for row in rows
            if not math.isnan(row["distance"])
        )

    async def keyword_search(
        self, text: str, limit: int, *, document_ids: Collection[str] | None = None
    ) -> list[WordMatch]:
        if document_ids is not None and not document_ids:
            return []
        async with self._open_read(_WORD_SEARCH_SETTINGS) as connection:
            return await keyword_search(
                connection, self._name, self._is_counted, self._terms(text), limit, document_ids
            )

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
        rows = await self._nearest_rows("id", vector, limit, document_ids)
        return [ChunkCandidate(row["id"], 1 - row["distance"]) for row in rows]

    async def _word_candidates(
        self, vector: Sequence[float], text: str, limit: int, document_ids: Collection[str] | None
    ) -> list[ChunkCandidate]:
        if document_ids is not None and not document_ids:
            return []
        async with self._open_read(_WORD_SEARCH_SETTINGS) as connection:
            terms = self._terms(text)
            return await word_candidates(
                connection, self._name, self._is_counted, vector, terms, limit, document_ids
            )

    def _terms(self, text: str) -> list[tuple[str, ...]]:
        return query_terms(text, has_stems=self._has_stems)

    async def likenesses(self, keys: Sequence[Key], best: Sequence[Key]) -> dict[Key, float]:
        if not keys or not best:
            return {}
        async with self._connect() as connection:
            rows = await connection.fetch(
                "SELECT id, NULLIF(1 - (vector <=> (SELECT avg(vector) "
                f"FROM {self._name} WHERE id = ANY($2))), 'NaN') AS likeness "
                f"FROM {self._name} WHERE id = ANY($1)",
                list(keys),
                list(best),
            )
        return {row["id"]: row["likeness"] or 0.0 for row in rows}

    async def read_candidates(self, keys: Sequence[Key]) -> dict[Key, IndexedText]:
        if not keys:
            return {}
        async with self._connect() as connection:
            rows = await connection.fetch(
                f"SELECT {CHUNK_COLUMNS} FROM {self._name} WHERE id = ANY($1)", list(keys)
            )
        return {row["id"]: IndexedText(row["title"], chunk_of(row)) for row in rows}

    @asynccontextmanager
    async def _open_read(self, settings: str) -> AsyncIterator[Any]:
        """Open a transaction for a search, with these settings; all reads in it see one state."""
        async with self._connect() as connection:
            await connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}")
            try:
                yield connection
            except (TimeoutError, asyncio.CancelledError):
                raise  # the connection is dropped: a rollback would have to wait for the query
            except BaseException:
                await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")

    async def needs_compaction(self) -> bool:
        return False  # autovacuum does it

    async def compact(self) -> None:
        """Vacuum and analyse the table. Where there are many chunks, also index the vectors and
        count the words."""
        chunk_count = await self.count()
        if chunk_count >= APPROXIMATE_FROM and self.dimensions <= INDEXED_DIMENSIONS:
            async with self._connect() as connection:
                try:
                    await index_neighbours(connection, self._name, self.dimensions, chunk_count)
                finally:
                    connection.terminate()  # `index_neighbours` has changed its settings
        async with self._connect() as connection:
            await connection.execute(f"VACUUM (ANALYZE) {self._name}", timeout=MAINTENANCE)
            await count_words(connection, self._name)


def _rows(
    title: str,
    chunks: Sequence[Chunk],
    vectors: Sequence[Sequence[float]],
    to_words: Callable[[str], list[str]],
) -> list[tuple[Any, ...]]:
    require_pairs(chunks, vectors)
    return [
        (
            chunk.id,
            chunk.document_id,
            chunk.index,
            chunk.page,
            _storable(title),
            _storable(chunk.text),
            [_storable(word[:MAX_WORD]) for word in to_words(chunk.text)],
            list(vector),
        )
        for chunk, vector in zip(chunks, vectors, strict=True)
    ]


def _storable(text: str) -> str:
    """Return the text as PostgreSQL accepts it: without NUL and halves of surrogate pairs."""
    return text.replace("\0", " ").encode(errors="replace").decode()
