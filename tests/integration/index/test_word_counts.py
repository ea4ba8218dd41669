"""The chunks with each word are counted when a table is compacted, and not by each search."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from switchyard.services.engine.identity.postgres import dsn
from switchyard.services.pipeline.index import postgres_counts
from switchyard.services.pipeline.index.chunk_index import ChunkIndex, WordMatch
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.open_index import index_store_at
from switchyard.services.pipeline.index.postgres_table import _WORD_SEARCH_SETTINGS, PostgresTable
from switchyard.services.pipeline.index.postgres_words import word_counts_statement
from switchyard.services.pipeline.text.chunks import Chunk
from tests.support.chunk_tables import DIMENSIONS, open_table

pytestmark = pytest.mark.postgres
LARGE = 1_000
"""Chunks from which the words of a table are counted in these tests."""
QUERY = "half tenth rare"


@pytest.fixture(autouse=True)
def large_from_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_counts, "COUNTED_FROM", LARGE)


async def put_chunks(url: str, document_id: str, count: int = LARGE) -> None:
    """Write chunks: the word `common` is in all, `half` in every second, `tenth` in every tenth,
    `rare` in three."""
    steps = {"common": 1, "half": 2, "tenth": 10, "rare": count // 2 - 1}
    chunks = [
        Chunk(
            f"{document_id}-{n:05}",
            document_id,
            n,
            1,
            " ".join(word for word, step in steps.items() if n % step == 0),
        )
        for n in range(count)
    ]
    async with open_table(url) as index:
        await index.put("Title", chunks, [[1.0] * DIMENSIONS] * count)


async def compact(url: str) -> None:
    async with open_table(url) as index:
        await index.compact()


async def search_words(url: str, text: str) -> list[WordMatch]:
    async with open_table(url) as index:
        return await index.keyword_search(text, 10)


def is_counted(index: ChunkIndex) -> bool:
    assert isinstance(index, PostgresTable)
    return index._is_counted


@pytest.fixture
async def database_connection(pgvector_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn(pgvector_url))
    yield connection
    await connection.close()


async def read_word_shares(database_connection: Any) -> dict[str, float]:
    rows = await database_connection.fetch("SELECT word, part FROM chunks_counts")
    return {row["word"]: round(row["part"], 3) for row in rows}


async def test_words_of_a_large_table_are_counted_and_searches_use_the_counts(
    pgvector_url: str, database_connection: Any
):
    await put_chunks(pgvector_url, "a")
    before = await search_words(pgvector_url, QUERY)
    await compact(pgvector_url)
    assert await read_word_shares(database_connection) == {"common": 1, "half": 0.5, "tenth": 0.1}
    assert await search_words(pgvector_url, QUERY) == before

    (best, *_) = await search_words(pgvector_url, "tenth")
    await database_connection.execute("UPDATE chunks_counts SET part = 0.01 WHERE word = 'tenth'")
    (reweighted, *_) = await search_words(pgvector_url, "tenth")
    assert reweighted.chunk == best.chunk
    assert reweighted.relevance > best.relevance


async def test_only_chunks_with_uncounted_words_are_read_to_count_them(
    pgvector_url: str,
):
    await put_chunks(pgvector_url, "a")
    await compact(pgvector_url)
    async with open_table(pgvector_url) as index:
        assert isinstance(index, PostgresTable)
        statement = (
            f"EXPLAIN (ANALYZE) {word_counts_statement('chunks', is_counted=is_counted(index))}"
        )
        async with index._open_read(_WORD_SEARCH_SETTINGS) as connection:
            plans = [
                "\n".join(row[0] for row in await connection.fetch(statement, words))
                for words in (["common", "half", "tenth"], ["common", "rare"])
            ]
    scans = [
        next(line for line in plan.splitlines() if "Bitmap Index Scan on chunks_words" in line)
        for plan in plans
    ]
    assert ["never executed" in line for line in scans] == [True, False]


async def test_a_new_word_is_found_at_once(pgvector_url: str):
    await put_chunks(pgvector_url, "a")
    await compact(pgvector_url)
    async with open_table(pgvector_url) as index:
        assert is_counted(index)
        chunk = Chunk("new", "doc-new", 0, 1, "brandnew common")
        await index.put("Title", [chunk], [[1.0] * DIMENSIONS])
    assert (await search_words(pgvector_url, "common brandnew half"))[0].chunk.id == "new"


async def test_word_counts_are_used_until_the_table_has_doubled_or_halved(
    pgvector_url: str, database_connection: Any
):
    await put_chunks(pgvector_url, "a")
    await compact(pgvector_url)
    counted = []
    for document_id in ("b", "c"):
        await put_chunks(pgvector_url, document_id, 2 * LARGE // 3)
        await database_connection.execute("ANALYZE chunks")  # as the server does by itself
        async with open_table(pgvector_url) as index:
            counted.append(is_counted(index))
    assert counted == [True, False]
    await compact(pgvector_url)
    await database_connection.execute("DELETE FROM chunks WHERE document_id <> 'b'")
    async with open_table(pgvector_url) as index:
        assert is_counted(index)
    await database_connection.execute("VACUUM (ANALYZE) chunks")
    async with open_table(pgvector_url) as index:
        assert not is_counted(index)


async def test_words_of_a_small_table_are_not_counted(pgvector_url: str):
    await put_chunks(pgvector_url, "a", LARGE - 1)
    await compact(pgvector_url)
    async with open_table(pgvector_url) as index:
        assert not is_counted(index)


async def test_words_of_a_larger_table_are_counted_in_a_sample(
    pgvector_url: str, database_connection: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_counts, "_SAMPLED_CHUNKS", LARGE)
    await put_chunks(pgvector_url, "a", 4 * LARGE)
    await compact(pgvector_url)
    shares = await read_word_shares(database_connection)
    assert shares["common"] == 1
    assert shares["half"] == pytest.approx(0.5, abs=0.02)
    assert shares["tenth"] == pytest.approx(0.1, abs=0.02)


async def test_compactions_at_the_same_time_count_once(pgvector_url: str, database_connection: Any):
    await put_chunks(pgvector_url, "a")
    for _ in range(2):
        await asyncio.gather(*(compact(pgvector_url) for _ in range(3)))
        assert await read_word_shares(database_connection) == {
            "common": 1,
            "half": 0.5,
            "tenth": 0.1,
        }


async def test_word_counts_are_dropped_with_their_table(
    pgvector_url: str, database_connection: Any
):
    await put_chunks(pgvector_url, "a")
    await compact(pgvector_url)
    store = index_store_at(pgvector_url)
    try:
        await store.drop(Generation("chunks", "test", DIMENSIONS))
    finally:
        await store.close()
    assert (
        await database_connection.fetch("SELECT FROM pg_class WHERE relname LIKE 'chunks%'") == []
    )


async def test_a_user_without_access_to_word_counts_searches_without_them(
    pgvector_url: str, database_connection: Any
):
    await put_chunks(pgvector_url, "a")
    await compact(pgvector_url)
    reader = f"reader_{secrets.token_hex(4)}"
    await database_connection.execute(f"CREATE ROLE {reader} LOGIN PASSWORD 'secret'")
    tables = "chunks, chunk_index_generations, chunk_index_notes"
    await database_connection.execute(f"GRANT SELECT ON {tables} TO {reader}")
    url = re.sub("//[^@]*@", f"//{reader}:secret@", pgvector_url)
    try:
        assert [each.chunk for each in await search_words(url, QUERY)] == [
            each.chunk for each in await search_words(pgvector_url, QUERY)
        ]
    finally:
        await database_connection.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}")
