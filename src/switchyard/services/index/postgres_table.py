"""The index of chunks in PostgreSQL: vectors by pgvector, words by an inverted index
(`postgres_words`)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from switchyard.services.index.chunk_index import (
    APPROXIMATE_FROM,
    IndexedText,
    Match,
    NearDocument,
    WordMatch,
    best_first,
    each_once,
    require_pairs,
    unit,
)
from switchyard.services.index.generations import Generation
from switchyard.services.index.postgres_words import CHUNK, LONGEST_WORD, chunk_of, with_words
from switchyard.services.index.words import WORDING
from switchyard.services.text.chunks import Chunk
from switchyard.services.text.plain import words

INLINE_DIMENSIONS = 1_900
"""Vectors up to this length lie in the table's own pages of 8 KiB, where a scan is quickest."""
INDEXED_DIMENSIONS = 2_000
"""Vectors up to this length can have an index of neighbours (HNSW)."""
_MAINTENANCE = 24 * 3600.0
"""Seconds that one statement of maintenance may take."""
_BUILDING = 512 * 1024**2
"""Bytes that the server takes at most to build an index of neighbours, if its own setting is less.
What does not fit is added one by one, from the disk."""
_NODE = 1_200
"""Bytes of a vector's links while that is built, and some more."""
COMPARED = 5_000
"""Chunks within the documents of a filter up to which a search compares all of them."""
_LOOKED_AT = 800
"""Vectors that a search looks at in the index of neighbours (`ef_search`), of 1,000 that it can:
docs/vectors.md tells what it finds so."""
_LOOKED_AT_FOR_EACH = 200
"""The same for each of several: what one misses, another one may find."""

_SEARCHING = "SET LOCAL jit = off; SET LOCAL plan_cache_mode = force_custom_plan"
"""What the server is told for each search: to compile takes longer than it."""
_EXACTLY = "SET LOCAL enable_indexscan = off"
"""What it is told so that it compares all vectors that fit a filter."""
_BY_WORDS = "SET LOCAL enable_seqscan = off; SET LOCAL work_mem = '32MB'"
"""What it is told besides for a search by words. Words that are together less often than by chance
would have it read the table; and in a large one, too, the index is to tell the chunks, and not only
their pages."""

Connect = Callable[[], AbstractAsyncContextManager[Any]]


async def create_table(connection: Any, generation: Generation) -> None:
    """Make the table, with its indexes; it is not there yet."""
    name, length = generation.table, generation.dimensions
    await connection.execute(
        f"CREATE TABLE {name} (id text PRIMARY KEY, document_id text NOT NULL, "
        "index integer NOT NULL, page integer NOT NULL, title text NOT NULL, text text NOT NULL, "
        f"words text[] NOT NULL, vector vector({length}) NOT NULL) "
        # Texts lie beside the table, so that whoever looks at the rest reads less.
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
    made = {"embedder": generation.embedder, "dimensions": length, "wording": WORDING}
    told = json.dumps(made)
    quoted = await connection.fetchval("SELECT quote_literal($1::text)", told)
    await connection.execute(f"COMMENT ON TABLE {name} IS {quoted}")


async def made_by(connection: Any, name: str) -> tuple[str, int] | None:
    """Embedder and length of the vectors of a table; None where there is no such table."""
    told = await _told_of(connection, name)
    if told is None:
        return None
    try:
        found = json.loads(told)
        return str(found["embedder"]), int(found["dimensions"])
    except (ValueError, KeyError, TypeError):
        return "unknown", 0


async def wording_of(connection: Any, name: str) -> int | None:
    """How the words of a table were cut, 0 for any way before there were such numbers; None where
    there is no such table."""
    told = await _told_of(connection, name)
    if told is None:
        return None
    try:
        return int(json.loads(told)["wording"])
    except (ValueError, KeyError, TypeError):
        return 0


async def _told_of(connection: Any, name: str) -> str | None:
    # Not by to_regclass: what that has once not found, it may find only in the next transaction.
    told: str | None = await connection.fetchval(
        "SELECT obj_description(oid, 'pg_class') FROM pg_class "
        "WHERE relname = $1 AND relkind = 'r' AND pg_table_is_visible(oid)",
        name,
    )
    return told


class PostgresTable:
    """A table of PostgreSQL as a ChunkIndex."""

    def __init__(self, connect: Connect, generation: Generation) -> None:
        self._connect = connect
        self._name = generation.table
        self.dimensions = generation.dimensions

    async def put(
        self, title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]
    ) -> None:
        if chunks:
            rows = await asyncio.to_thread(_rows, title, chunks, vectors)
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
                f"SELECT {CHUNK} FROM {self._name} "
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
        return {row[0]: unit(np.array(row[1], dtype=np.float64)) for row in rows}

    async def nearest(
        self,
        vector: Sequence[float],
        limit: int,
        *,
        within: Collection[str] | None = None,
        exact: bool = False,
    ) -> list[Match]:
        if not any(vector) or (within is not None and not within):
            return []
        values: list[Any] = [list(vector), limit]
        where = ""
        if within is not None:
            values.append(list(within))
            where = "WHERE document_id = ANY($3) "
        query = (
            f"SELECT {CHUNK}, vector <=> $1::real[]::vector AS distance FROM {self._name} "
            f"{where}ORDER BY distance LIMIT $2"
        )
        rows: list[Any] = []
        async with self._reading(_near(_LOOKED_AT)) as connection:
            if not exact and not await self._are_few(connection, within):
                rows = await connection.fetch(query, *values)
            if len(rows) < limit:  # not asked for, or the walk along the index has ended too early
                await connection.execute(_EXACTLY)
                rows = await connection.fetch(query, *values)
        return best_first(
            [
                Match(chunk_of(row), row["title"], similarity=1 - row["distance"])
                for row in rows
                if not math.isnan(row["distance"])
            ]
        )

    async def _are_few(self, connection: Any, within: Collection[str] | None) -> bool:
        """Whether all chunks of these documents are compared sooner than a walk along the index
        of neighbours, past all others, finds the nearest of them; it would miss some, too."""
        if within is None:
            return False
        found = await connection.fetchval(
            f"SELECT count(*) FROM (SELECT FROM {self._name} WHERE document_id = ANY($1) "
            f"LIMIT {COMPARED + 1}) AS counted",
            list(within),
        )
        return int(found) <= COMPARED

    async def neighbours(
        self, vectors: Sequence[Sequence[float]], limit: int, *, excluding: str
    ) -> list[NearDocument]:
        asked = [json.dumps(list(vector)) for vector in vectors if any(vector)]
        async with self._reading(_near(_LOOKED_AT_FOR_EACH)) as connection:
            rows = await connection.fetch(
                "SELECT near.* FROM unnest($1::text[]) AS asked CROSS JOIN LATERAL ("
                "SELECT document_id, title, vector <=> asked::vector AS distance "
                f"FROM {self._name} WHERE document_id <> $2 ORDER BY distance LIMIT $3) AS near",
                asked,
                excluding,
                limit,
            )
        return each_once(
            NearDocument(row["document_id"], row["title"], similarity=1 - row["distance"])
            for row in rows
            if not math.isnan(row["distance"])
        )

    async def with_words(
        self,
        text: str,
        limit: int,
        *,
        within: Collection[str] | None = None,
        near: Sequence[float] | None = None,
    ) -> list[WordMatch]:
        if within is not None and not within:
            return []
        async with self._reading(_BY_WORDS) as connection:
            return await with_words(connection, self._name, text, limit, within, near)

    @asynccontextmanager
    async def _reading(self, told: str) -> AsyncIterator[Any]:
        """A connection for a search, with these settings besides. All that is read is of one
        moment."""
        async with self._connect() as connection:
            transaction = connection.transaction(isolation="repeatable_read", readonly=True)
            await transaction.start()
            try:
                await connection.execute(f"{_SEARCHING}; {told}")
                yield connection
            except (TimeoutError, asyncio.CancelledError):
                raise  # the connection is given up: to roll back would take as long again
            except BaseException:
                await transaction.rollback()
                raise
            await transaction.commit()

    async def is_scattered(self) -> bool:
        return False  # the server clears up behind writers by itself

    async def compact(self) -> None:
        """Have the server clear away what was replaced, look at how words and documents are
        spread, and index the vectors where there are many."""
        number = await self.count()
        async with self._connect() as connection:
            if number >= APPROXIMATE_FROM and self.dimensions <= INDEXED_DIMENSIONS:
                await self._index_neighbours(connection, number)
            await connection.execute(f"VACUUM (ANALYZE) {self._name}", timeout=_MAINTENANCE)

    async def _index_neighbours(self, connection: Any, number: int) -> None:
        import asyncpg

        is_valid = await connection.fetchval(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)",
            f"{self._name}_neighbours",
        )
        if is_valid:
            return
        needed = min(number * (4 * self.dimensions + _NODE), _BUILDING)
        # The pool resets what is set here.
        await connection.execute(
            "SELECT set_config(name, greatest(setting::bigint, $1)::text, false) "
            "FROM pg_settings WHERE name = 'maintenance_work_mem'",
            needed // 1024,
        )
        try:
            await self._build_neighbours(connection)
        except (asyncpg.DiskFullError, asyncpg.OutOfMemoryError):
            # A container has little of the memory that processes share: one alone needs none.
            await connection.execute("SET max_parallel_maintenance_workers = 0")
            await self._build_neighbours(connection)

    async def _build_neighbours(self, connection: Any) -> None:
        index = f"{self._name}_neighbours"
        # What is there is what somebody began who was killed.
        await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}", timeout=_MAINTENANCE)
        await connection.execute(
            f"CREATE INDEX CONCURRENTLY {index} ON {self._name} "
            "USING hnsw (vector vector_cosine_ops)",
            timeout=_MAINTENANCE,
        )


def _near(number: int) -> str:
    """Settings of a transaction in which the index of neighbours is looked through in steps of so
    many vectors, until enough are found."""
    return f"SET LOCAL hnsw.ef_search = {number}; SET LOCAL hnsw.iterative_scan = strict_order"


def _rows(
    title: str, chunks: Sequence[Chunk], vectors: Sequence[Sequence[float]]
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
            [_storable(word[:LONGEST_WORD]) for word in words(chunk.text)],
            list(vector),
        )
        for chunk, vector in zip(chunks, vectors, strict=True)
    ]


def _storable(text: str) -> str:
    """What PostgreSQL takes: no NUL, and no half of a surrogate pair."""
    return text.replace("\0", " ").encode(errors="replace").decode()
