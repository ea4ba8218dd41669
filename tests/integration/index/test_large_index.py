"""A search in a large index reads a bounded number of rows, and returns as many hits as it
should."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from switchyard.services.engine.identity.postgres import dsn
from switchyard.services.pipeline.index import lance_table, postgres_neighbours, postgres_table
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.lance_table import LanceTable
from switchyard.services.pipeline.index.open_index import index_store_at
from switchyard.services.pipeline.index.postgres_table import MAX_COMPARED_CHUNKS
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.chunk_tables import DIMENSIONS, random_vectors
from tests.support.postgres import SYSTEM_USER

LARGE = 1_000
"""Chunks from which a table gets an index of neighbours in these tests."""
GENERATION = Generation("chunks", "test", DIMENSIONS)


@pytest.fixture(autouse=True)
def large_from_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("lance", "postgres"):
        monkeypatch.setattr(
            f"switchyard.services.pipeline.index.{kind}_table.APPROXIMATE_FROM", LARGE
        )


async def put_vectors(
    index: ChunkIndex, document_id: str, chunk_vectors: list[list[float]]
) -> None:
    document_chunks = [
        Chunk(chunk_id(document_id, n), document_id, n, 1, f"text {n}")
        for n in range(len(chunk_vectors))
    ]
    await index.put("Title", document_chunks, chunk_vectors)


async def test_a_search_within_few_documents_returns_as_many_as_its_limit(url: str):
    store = index_store_at(url)
    all_vectors = random_vectors(LARGE + 500)
    try:
        async with store.table(GENERATION) as index:
            await put_vectors(index, "a", all_vectors)
            opposite = [[-value for value in all_vectors[7]]] * 20
            await put_vectors(index, "far", opposite)
            await index.compact()
            matches = await index.nearest(all_vectors[7], 20, document_ids=["far"])
            assert [match.chunk.document_id for match in matches] == ["far"] * 20
    finally:
        await store.close()


async def count_parts_read(index: ChunkIndex) -> dict[str, int]:
    """Search once, and return how many parts of the index of neighbours LanceDB has read for it."""
    assert isinstance(index, LanceTable)
    table: Any = index._table
    plan = await table.query().nearest_to([1.0] * DIMENSIONS).limit(10).analyze_plan()
    return {
        metric: sum(map(int, re.findall(rf"\b{metric}=(\d+)", plan)))
        for metric in ("parts_loaded", "partitions_searched", "deltas_searched")
    }


async def test_the_index_of_neighbours_is_read_once_and_not_by_each_search(tmp_path: Path):
    store = index_store_at(str(tmp_path / "index"))
    async with store.table(GENERATION) as index:
        await put_vectors(index, "a", random_vectors(LARGE))
        await index.compact()
        first_search = await count_parts_read(index)
    async with store.table(GENERATION) as index:
        second_search = await count_parts_read(index)
    assert first_search["partitions_searched"] == second_search["partitions_searched"] > 0
    assert (first_search["parts_loaded"] > 0, second_search["parts_loaded"]) == (True, 0)


async def test_repeated_compactions_keep_the_index_of_neighbours_in_few_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lance_table, "_MAX_SEGMENTS", 3)
    store = index_store_at(str(tmp_path / "index"))
    async with store.table(GENERATION) as index:
        segments_searched = []
        for number in range(5):
            await put_vectors(index, f"doc-{number}", random_vectors(LARGE))
            await index.compact()
            segments_searched.append((await count_parts_read(index))["deltas_searched"])
        assert max(segments_searched) < 3


async def test_indexes_of_an_earlier_version_are_replaced_or_removed_by_the_next_compaction(
    tmp_path: Path,
):
    # Imported here, as it takes 1.5 s: not in every process that collects tests.
    from lancedb.index import BTree, IvfFlat

    store = index_store_at(str(tmp_path / "index"))
    async with store.table(GENERATION) as index:
        assert isinstance(index, LanceTable)
        table: Any = index._table
        all_vectors = random_vectors(LARGE)
        await put_vectors(index, "a", all_vectors)
        await table.create_index("vector", config=IvfFlat(distance_type="cosine"))
        await table.create_index("id", config=BTree())
        (nearest_before,) = await index.nearest(all_vectors[7], 1)
        # With the index of ids, two processes that put a new document at once could write it twice.
        await table.add(await table.query().limit(20).to_arrow())
        assert await index.count() == LARGE + 20
        await index.compact()
        assert await index.count() == LARGE
        index_types = {each.columns[0]: each.index_type for each in await table.list_indices()}
        assert index_types == {"document_id": "BTree", "vector": "IvfSq", "words": "FTS"}
        assert await index.nearest(all_vectors[7], 1) == [nearest_before]


async def expect_a_large_table(url: str, *, keeps_walking: bool = False) -> None:
    """Make PostgreSQL prefer the index of neighbours, as it does in a large database, and end a
    walk along that index soon, unless the search asks it to go on."""
    if url.startswith("postgresql"):
        connection: Any = await asyncpg.connect(dsn(url))
        database = url.rpartition("/")[2]
        await connection.execute(f"ALTER DATABASE {database} SET cpu_operator_cost = 1")
        if not keeps_walking:
            await connection.execute(f"ALTER DATABASE {database} SET hnsw.max_scan_tuples = 1")
            await connection.execute(f"ALTER DATABASE {database} SET ivfflat.max_probes = 1")
        await connection.close()


@pytest.mark.parametrize("max_compared", [MAX_COMPARED_CHUNKS, 0], ids=["compared", "walked"])
async def test_a_search_with_a_narrow_filter_finds_the_nearest_chunks_that_pass_it(
    url: str, max_compared: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_table, "MAX_COMPARED_CHUNKS", max_compared)
    await expect_a_large_table(url)
    store = index_store_at(url)
    try:
        async with store.table(GENERATION) as index:
            all_vectors = random_vectors(LARGE + 500)
            await put_vectors(index, "others", all_vectors)
            for number in range(5):
                await put_vectors(
                    index,
                    f"far-{number}",
                    [[-value for value in all_vectors[number]], *all_vectors[number + 9 :: 300]],
                )
            await index.compact()
        async with store.table(GENERATION) as index:
            document_ids = ["far-1", "far-3"]
            for query in all_vectors[:20]:
                matches = await index.nearest(query, 12, document_ids=document_ids)
                exact_matches = await index.nearest(
                    query, 12, document_ids=document_ids, exact=True
                )
                assert len(exact_matches) == 12
                assert [match.chunk.id for match in matches] == [
                    match.chunk.id for match in exact_matches
                ]
    finally:
        await store.close()


WITH_LISTS_AND_WITH_A_GRAPH = pytest.mark.parametrize(
    "graph_from", [10 * LARGE, 0], ids=["lists", "graph"]
)


@pytest.mark.postgres
@WITH_LISTS_AND_WITH_A_GRAPH
@pytest.mark.parametrize("excess", [0, 1], ids=["as-many", "one-more"])
async def test_a_filtered_search_is_exact_up_to_a_number_of_chunks_and_approximate_above(
    pgvector_url: str, excess: int, graph_from: int, monkeypatch: pytest.MonkeyPatch
):
    filtered_count = 600
    monkeypatch.setattr(postgres_table, "MAX_COMPARED_CHUNKS", filtered_count - excess)
    monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", graph_from)
    # With these settings an approximate search misses chunks, in a graph as well as in lists.
    monkeypatch.setattr(postgres_neighbours, "_EF_SEARCH", 1)
    monkeypatch.setattr(postgres_neighbours, "_LIST_SHARE", LARGE)
    await expect_a_large_table(pgvector_url, keeps_walking=True)
    store = index_store_at(pgvector_url)
    try:
        async with store.table(GENERATION) as index:
            all_vectors = random_vectors(2 * LARGE)
            await put_vectors(index, "others", all_vectors[filtered_count:])
            await put_vectors(index, "left", all_vectors[:filtered_count])
            await index.compact()
        async with store.table(GENERATION) as index:
            missed = 0
            for query in random_vectors(2 * LARGE + 50)[2 * LARGE :]:
                matches = await index.nearest(query, 10, document_ids=["left"])
                exact_matches = await index.nearest(query, 10, document_ids=["left"], exact=True)
                assert len(matches) == 10
                missed += len(
                    {each.chunk.id for each in exact_matches} - {each.chunk.id for each in matches}
                )
            assert (missed > 0) == (excess > 0)
    finally:
        await store.close()


@pytest.mark.postgres
@WITH_LISTS_AND_WITH_A_GRAPH
async def test_an_index_of_neighbours_is_built_in_memory_that_it_fits_in(
    pgvector_url: str, graph_from: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", graph_from)
    connection: Any = await asyncpg.connect(dsn(pgvector_url))
    database = pgvector_url.rpartition("/")[2]
    for setting in ("maintenance_work_mem = '1MB'", "log_min_messages = notice"):
        await connection.execute(f"ALTER DATABASE {database} SET {setting}")
    log = Path(await connection.fetchval("SHOW data_directory")).parent / "postgres.log"
    await connection.close()
    log_size = log.stat().st_size
    store = index_store_at(pgvector_url)
    try:
        async with store.table(GENERATION) as index:
            await put_vectors(index, "a", random_vectors(3 * LARGE))
            await index.compact()
    finally:
        await store.close()
    logged = log.read_bytes()[log_size:].decode(errors="replace")
    assert "no longer fits" not in logged


@pytest.mark.postgres
async def test_an_index_of_neighbours_is_built_although_shared_memory_is_too_small(
    pgvector_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", 0)
    monkeypatch.setattr(postgres_neighbours, "_LINK_BYTES", 20_000)
    connection: Any = await asyncpg.connect(dsn(pgvector_url))
    database = pgvector_url.rpartition("/")[2]
    await connection.execute(f"ALTER DATABASE {database} SET min_parallel_table_scan_size = 0")
    store = index_store_at(pgvector_url)
    try:
        async with store.table(GENERATION) as index:
            await put_vectors(index, "a", random_vectors(3 * LARGE))
            (server_process,) = await connection.fetch(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            # Shared memory is a file: the server's process may make none of the 60 MB it needs.
            command = ["prlimit", f"--pid={server_process['pid']}", f"--fsize={32 * 1024**2}"]
            user = SYSTEM_USER if os.geteuid() == 0 else None
            subprocess.run(command, user=user, group=user, check=True)
            await index.compact()
        assert await connection.fetchval(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'chunks_neighbours'::regclass"
        )
    finally:
        await store.close()
        await connection.close()
