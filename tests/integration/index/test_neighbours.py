"""PostgreSQL's index of neighbours: of which kind it is, and that searches use it."""

from __future__ import annotations

import asyncpg
import pytest

from switchyard.services.engine.identity.postgres import dsn
from switchyard.services.pipeline.index import postgres_neighbours, postgres_table
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.postgres_neighbours import search_settings
from switchyard.services.pipeline.index.postgres_table import PostgresTable
from tests.support.chunk_tables import DIMENSIONS, make_chunks, open_table, random_vectors

pytestmark = pytest.mark.postgres
LARGE = 1_000
"""Chunks from which a table gets an index of neighbours in these tests."""
GRAPH = "chunks_neighbours"
"""Name of the index if it is a graph."""
LISTS = "chunks_lists"
"""Name of the index if it is made of lists."""


@pytest.fixture(autouse=True)
def large_from_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_table, "APPROXIMATE_FROM", LARGE)


async def set_database_option(url: str, setting: str) -> None:
    """Set an option of the database for later connections."""
    connection = await asyncpg.connect(dsn(url))
    await connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {setting}")
    await connection.close()


async def read_neighbour_indexes(index: ChunkIndex) -> set[str]:
    """Return the names of the indexes of neighbours that the table has."""
    assert isinstance(index, PostgresTable)
    async with index._connect() as connection:
        rows = await connection.fetch("SELECT indexname FROM pg_indexes WHERE tablename = 'chunks'")
    return {row["indexname"] for row in rows} & {GRAPH, LISTS}


async def explain_nearest(index: ChunkIndex) -> str:
    """Return the plan of a search for the nearest chunks."""
    assert isinstance(index, PostgresTable)
    statement = index._nearest_statement("id", "$1::real[]::vector", "$2", "")
    async with index._open_read(search_settings(index._lists)) as connection:
        rows = await connection.fetch(f"EXPLAIN {statement}", [1.0] * DIMENSIONS, 10)
    return "\n".join(row[0] for row in rows)


async def find_nearest_ids(index: ChunkIndex, vectors: list[list[float]]) -> list[str]:
    """Return the id of the chunk that a search finds first for each vector."""
    neighbours = await index.neighbours(vectors[:3], 1, excluding="nobody")
    assert [each.document_id for each in neighbours] == ["a"]
    assert neighbours[0].similarity == pytest.approx(1, abs=1e-6)
    return [(await index.nearest(each, 10))[0].chunk.id for each in vectors]


async def test_the_number_of_chunks_decides_which_kind_of_index_a_compaction_builds(
    pgvector_url: str, monkeypatch: pytest.MonkeyPatch
):
    # PostgreSQL prefers the index, as if comparing all vectors took long.
    await set_database_option(pgvector_url, "cpu_operator_cost = 1")
    vectors = random_vectors(LARGE)
    expected_ids = [chunk.id for chunk in make_chunks("a", 20)]
    async with open_table(pgvector_url) as old_index:
        await old_index.put("Title", make_chunks("a", LARGE), vectors)
        assert isinstance(old_index, PostgresTable)
        async with old_index._connect() as connection:  # as an earlier version made it
            await connection.execute(
                f"CREATE INDEX {GRAPH} ON chunks USING hnsw (vector vector_cosine_ops)"
            )
        assert GRAPH in await explain_nearest(old_index)
        await old_index.compact()
        assert await read_neighbour_indexes(old_index) == {LISTS}
        assert await find_nearest_ids(old_index, vectors[:20]) == expected_ids

        async with open_table(pgvector_url) as index:
            assert f"Index Scan using {LISTS}" in await explain_nearest(index)
            assert await find_nearest_ids(index, vectors[:20]) == expected_ids
            monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", LARGE)
            await index.compact()
            assert await read_neighbour_indexes(index) == {GRAPH}
            assert await find_nearest_ids(index, vectors[:20]) == expected_ids

    async with open_table(pgvector_url) as index:
        assert f"Index Scan using {GRAPH}" in await explain_nearest(index)
        assert await find_nearest_ids(index, vectors[:20]) == expected_ids


async def test_vectors_of_any_length_fit_into_lists_of_half_precision_numbers(pgvector_url: str):
    vectors = random_vectors(LARGE)
    async with open_table(pgvector_url) as index:
        await index.put("Title", make_chunks("a", LARGE), vectors)
        await index.compact()
    async with open_table(pgvector_url) as index:
        scaled_vectors = [[scale * value for value in vectors[7]] for scale in (1e9, 1e-9)]
        await index.put("Title", make_chunks("long", 2), scaled_vectors)
        for query in (vectors[7], *scaled_vectors):
            matches = await index.nearest(query, 3)
            assert {match.chunk.id for match in matches[:3]} == {
                make_chunks("a", 8)[7].id,
                *(chunk.id for chunk in make_chunks("long", 2)),
            }


async def test_settings_for_building_an_index_end_with_the_build(pgvector_url: str):
    await set_database_option(pgvector_url, "maintenance_work_mem = '1MB'")
    async with open_table(pgvector_url) as index:
        assert isinstance(index, PostgresTable)
        await index.put("Title", make_chunks("a", LARGE), random_vectors(LARGE))
        await index.compact()
        assert await read_neighbour_indexes(index) == {LISTS}
        async with index._connect() as connection:
            assert await connection.fetchval("SHOW maintenance_work_mem") == "1MB"
