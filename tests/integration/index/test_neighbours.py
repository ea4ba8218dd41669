"""Which index of neighbours PostgreSQL has, and that searches use it."""

from __future__ import annotations

import random

import asyncpg
import pytest

from switchyard.services.engine.identity.postgres import dsn
from switchyard.services.pipeline.index import postgres_neighbours, postgres_table
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.postgres_neighbours import search_settings
from switchyard.services.pipeline.index.postgres_table import PostgresTable
from tests.support.chunk_tables import DIMENSIONS, chunks, opened

pytestmark = pytest.mark.postgres
LARGE = 1_000
GRAPH = "chunks_neighbours"
LISTS = "chunks_lists"


@pytest.fixture(autouse=True)
def large_from_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_table, "APPROXIMATE_FROM", LARGE)


def random_vectors(count: int) -> list[list[float]]:
    random_numbers = random.Random(3)
    return [[random_numbers.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(count)]


async def set_database_option(url: str, setting: str) -> None:
    """Set an option of the database for later connections."""
    connection = await asyncpg.connect(dsn(url))
    await connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {setting}")
    await connection.close()


async def neighbour_indexes(index: ChunkIndex) -> set[str]:
    """Return the names of the indexes of neighbours that the table has."""
    assert isinstance(index, PostgresTable)
    async with index._connect() as connection:
        rows = await connection.fetch("SELECT indexname FROM pg_indexes WHERE tablename = 'chunks'")
    return {row["indexname"] for row in rows} & {GRAPH, LISTS}


async def explain_nearest(index: ChunkIndex) -> str:
    """Return the plan of a search for the nearest chunks."""
    assert isinstance(index, PostgresTable)
    statement = index._nearest("id", "$1::real[]::vector", "$2", "")
    async with index._open_read(search_settings(index._lists)) as connection:
        rows = await connection.fetch(f"EXPLAIN {statement}", [1.0] * DIMENSIONS, 10)
    return "\n".join(row[0] for row in rows)


async def nearest_ids(index: ChunkIndex, vectors: list[list[float]]) -> list[str]:
    """Return the id of the chunk that a search finds first for each vector."""
    near = await index.neighbours(vectors[:3], 1, excluding="nobody")
    assert [each.document_id for each in near] == ["a"]
    assert near[0].similarity == pytest.approx(1, abs=1e-6)
    return [(await index.nearest(each, 10))[0].chunk.id for each in vectors]


async def test_the_number_of_chunks_decides_the_kind_of_index_which_replaces_the_other_kind(
    pgvector_url: str, monkeypatch: pytest.MonkeyPatch
):
    await set_database_option(
        pgvector_url, "cpu_operator_cost = 1"
    )  # as if comparing all vectors took long
    vectors = random_vectors(LARGE)
    expected_ids = [chunk.id for chunk in chunks("a", 20)]
    async with opened(pgvector_url) as before:
        await before.put("Title", chunks("a", LARGE), vectors)
        assert isinstance(before, PostgresTable)
        async with before._connect() as connection:  # as an earlier version made it
            await connection.execute(
                f"CREATE INDEX {GRAPH} ON chunks USING hnsw (vector vector_cosine_ops)"
            )
        assert GRAPH in await explain_nearest(before)
        await before.compact()
        assert await neighbour_indexes(before) == {LISTS}
        assert await nearest_ids(before, vectors[:20]) == expected_ids

        async with opened(pgvector_url) as index:
            assert f"Index Scan using {LISTS}" in await explain_nearest(index)
            assert await nearest_ids(index, vectors[:20]) == expected_ids
            monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", LARGE)
            await index.compact()
            assert await neighbour_indexes(index) == {GRAPH}
            assert await nearest_ids(index, vectors[:20]) == expected_ids

    async with opened(pgvector_url) as index:
        assert f"Index Scan using {GRAPH}" in await explain_nearest(index)
        assert await nearest_ids(index, vectors[:20]) == expected_ids


async def test_vectors_of_any_length_fit_into_lists_of_halved_numbers(pgvector_url: str):
    vectors = random_vectors(LARGE)
    async with opened(pgvector_url) as index:
        await index.put("Title", chunks("a", LARGE), vectors)
        await index.compact()
    async with opened(pgvector_url) as index:
        long = [[scale * value for value in vectors[7]] for scale in (1e9, 1e-9)]
        await index.put("Title", chunks("long", 2), long)
        for query in (vectors[7], *long):
            matches = await index.nearest(query, 3)
            assert {match.chunk.id for match in matches[:3]} == {
                chunks("a", 8)[7].id,
                *(chunk.id for chunk in chunks("long", 2)),
            }


async def test_settings_for_building_an_index_end_with_the_build(pgvector_url: str):
    await set_database_option(pgvector_url, "maintenance_work_mem = '1MB'")
    async with opened(pgvector_url) as index:
        assert isinstance(index, PostgresTable)
        await index.put("Title", chunks("a", LARGE), random_vectors(LARGE))
        await index.compact()
        assert await neighbour_indexes(index) == {LISTS}
        async with index._connect() as connection:
            assert await connection.fetchval("SHOW maintenance_work_mem") == "1MB"
