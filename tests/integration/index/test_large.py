"""A search in a large index reads a bounded number of rows, and returns as many hits as it
should."""

from __future__ import annotations

import os
import random
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
from tests.support.postgres import SYSTEM_USER

DIMENSIONS = 8
LARGE = 1_000
GENERATION = Generation("chunks", "test", DIMENSIONS)


@pytest.fixture(autouse=True)
def large_from_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("lance", "postgres"):
        monkeypatch.setattr(
            f"switchyard.services.pipeline.index.{kind}_table.APPROXIMATE_FROM", LARGE
        )


def vectors(count: int) -> list[list[float]]:
    randomly = random.Random(3)
    return [[randomly.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(count)]


async def put(index: ChunkIndex, document_id: str, chunk_vectors: list[list[float]]) -> None:
    document_chunks = [
        Chunk(chunk_id(document_id, n), document_id, n, 1, f"text {n}")
        for n in range(len(chunk_vectors))
    ]
    await index.put("Title", document_chunks, chunk_vectors)


async def test_a_search_within_few_documents_returns_as_many_as_its_limit(url: str):
    store = index_store_at(url)
    all_vectors = vectors(LARGE + 500)
    try:
        async with store.table(GENERATION) as index:
            await put(index, "a", all_vectors)
            opposite = [[-value for value in all_vectors[7]]] * 20
            await put(index, "far", opposite)
            await index.compact()
            matches = await index.nearest(all_vectors[7], 20, document_ids=["far"])
            assert [match.chunk.document_id for match in matches] == ["far"] * 20
    finally:
        await store.close()


async def searched(index: ChunkIndex) -> dict[str, int]:
    """Search once, and return how many parts of the index LanceDB has read for it."""
    assert isinstance(index, LanceTable)
    table: Any = index._table
    plan = await table.query().nearest_to([1.0] * DIMENSIONS).limit(10).analyze_plan()
    return {
        name: sum(map(int, re.findall(rf"\b{name}=(\d+)", plan)))
        for name in ("parts_loaded", "partitions_searched", "deltas_searched")
    }


async def test_the_index_of_neighbours_is_read_once_and_not_for_each_search(tmp_path: Path):
    store = index_store_at(str(tmp_path / "index"))
    async with store.table(GENERATION) as index:
        await put(index, "a", vectors(LARGE))
        await index.compact()
        first = await searched(index)
    async with store.table(GENERATION) as index:
        again = await searched(index)
    assert first["partitions_searched"] == again["partitions_searched"] > 0
    assert (first["parts_loaded"] > 0, again["parts_loaded"]) == (True, 0)


async def test_the_index_of_neighbours_does_not_fall_to_pieces_night_by_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lance_table, "_MAX_SEGMENTS", 3)
    store = index_store_at(str(tmp_path / "index"))
    async with store.table(GENERATION) as index:
        pieces = []
        for night in range(5):
            await put(index, f"doc-{night}", vectors(LARGE))
            await index.compact()
            pieces.append((await searched(index))["deltas_searched"])
        assert max(pieces) < 3


async def test_indexes_of_an_earlier_version_are_replaced_or_removed_by_the_next_compaction(
    tmp_path: Path,
):
    # Here, and not for every process that collects tests: it takes 1.5 s.
    from lancedb.index import BTree, IvfFlat

    store = index_store_at(str(tmp_path / "index"))
    async with store.table(GENERATION) as index:
        assert isinstance(index, LanceTable)
        table: Any = index._table
        all_vectors = vectors(LARGE)
        await put(index, "a", all_vectors)
        await table.create_index("vector", config=IvfFlat(distance_type="cosine"))
        await table.create_index("id", config=BTree())
        (before,) = await index.nearest(all_vectors[7], 1)
        # With it, two processes that put the same new document at once could write it twice.
        await table.add(await table.query().limit(20).to_arrow())
        assert await index.count() == LARGE + 20
        await index.compact()
        assert await index.count() == LARGE
        kinds = {each.columns[0]: each.index_type for each in await table.list_indices()}
        assert kinds == {"document_id": "BTree", "vector": "IvfSq", "words": "FTS"}
        assert await index.nearest(all_vectors[7], 1) == [before]


async def expect_a_large_table(url: str, *, walks_on: bool = False) -> None:
    """Make PostgreSQL prefer the index of neighbours, as it does in a large database, and end a
    walk along that index soon, unless the search asks it to walk on."""
    if url.startswith("postgresql"):
        connection: Any = await asyncpg.connect(dsn(url))
        name = url.rpartition("/")[2]
        await connection.execute(f"ALTER DATABASE {name} SET cpu_operator_cost = 1")
        if not walks_on:
            await connection.execute(f"ALTER DATABASE {name} SET hnsw.max_scan_tuples = 1")
            await connection.execute(f"ALTER DATABASE {name} SET ivfflat.max_probes = 1")
        await connection.close()


@pytest.mark.parametrize("compared", [MAX_COMPARED_CHUNKS, 0], ids=["compared", "walked"])
async def test_a_narrow_filter_finds_the_nearest_of_what_it_leaves(
    url: str, compared: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_table, "MAX_COMPARED_CHUNKS", compared)
    await expect_a_large_table(url)
    store = index_store_at(url)
    try:
        async with store.table(GENERATION) as index:
            all_vectors = vectors(LARGE + 500)
            await put(index, "others", all_vectors)
            for number in range(5):
                await put(
                    index,
                    f"far-{number}",
                    [[-v for v in all_vectors[number]], *all_vectors[number + 9 :: 300]],
                )
            await index.compact()
        async with store.table(GENERATION) as index:
            within = ["far-1", "far-3"]
            for query in all_vectors[:20]:
                matches = await index.nearest(query, 12, document_ids=within)
                best = await index.nearest(query, 12, document_ids=within, exact=True)
                assert len(best) == 12
                assert [match.chunk.id for match in matches] == [match.chunk.id for match in best]
    finally:
        await store.close()


KINDS = pytest.mark.parametrize("graph_from", [10 * LARGE, 0], ids=["lists", "graph"])


@pytest.mark.postgres
@KINDS
@pytest.mark.parametrize("beyond", [0, 1], ids=["as-many", "one-more"])
async def test_a_filtered_search_is_exact_up_to_a_number_of_chunks_and_approximate_above(
    pgvector_url: str, beyond: int, graph_from: int, monkeypatch: pytest.MonkeyPatch
):
    filtered_count = 600
    monkeypatch.setattr(postgres_table, "MAX_COMPARED_CHUNKS", filtered_count - beyond)
    monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", graph_from)
    # A walk of such small steps goes astray, and so does one look into the nearest list.
    monkeypatch.setattr(postgres_neighbours, "_EF_SEARCH", 1)
    monkeypatch.setattr(postgres_neighbours, "_LIST_SHARE", LARGE)
    await expect_a_large_table(pgvector_url, walks_on=True)
    store = index_store_at(pgvector_url)
    try:
        async with store.table(GENERATION) as index:
            all_vectors = vectors(2 * LARGE)
            await put(index, "others", all_vectors[filtered_count:])
            await put(index, "left", all_vectors[:filtered_count])
            await index.compact()
        async with store.table(GENERATION) as index:
            missed = 0
            for query in vectors(2 * LARGE + 50)[2 * LARGE :]:
                matches = await index.nearest(query, 10, document_ids=["left"])
                best = await index.nearest(query, 10, document_ids=["left"], exact=True)
                assert len(matches) == 10
                missed += len(
                    {each.chunk.id for each in best} - {each.chunk.id for each in matches}
                )
            assert (missed > 0) == (beyond > 0)
    finally:
        await store.close()


@pytest.mark.postgres
@KINDS
async def test_an_index_of_neighbours_is_built_in_memory_that_it_fits_in(
    pgvector_url: str, graph_from: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", graph_from)
    connection: Any = await asyncpg.connect(dsn(pgvector_url))
    name = pgvector_url.rpartition("/")[2]
    for setting in ("maintenance_work_mem = '1MB'", "log_min_messages = notice"):
        await connection.execute(f"ALTER DATABASE {name} SET {setting}")
    log = Path(await connection.fetchval("SHOW data_directory")).parent / "postgres.log"
    await connection.close()
    before = log.stat().st_size
    store = index_store_at(pgvector_url)
    try:
        async with store.table(GENERATION) as index:
            await put(index, "a", vectors(3 * LARGE))
            await index.compact()
    finally:
        await store.close()
    logged = log.read_bytes()[before:].decode(errors="replace")
    assert "no longer fits" not in logged


@pytest.mark.postgres
async def test_an_index_of_neighbours_is_built_although_processes_have_too_little_memory_to_share(
    pgvector_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_neighbours, "GRAPH_FROM", 0)
    monkeypatch.setattr(postgres_neighbours, "_LINK_BYTES", 20_000)
    connection: Any = await asyncpg.connect(dsn(pgvector_url))
    name = pgvector_url.rpartition("/")[2]
    await connection.execute(f"ALTER DATABASE {name} SET min_parallel_table_scan_size = 0")
    store = index_store_at(pgvector_url)
    try:
        async with store.table(GENERATION) as index:
            await put(index, "a", vectors(3 * LARGE))
            (ours,) = await connection.fetch(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            # Shared memory is a file: the server's process may make none of the 60 MB it wants.
            limited = ["prlimit", f"--pid={ours['pid']}", f"--fsize={32 * 1024**2}"]
            user = SYSTEM_USER if os.geteuid() == 0 else None
            subprocess.run(limited, user=user, group=user, check=True)
            await index.compact()
        assert await connection.fetchval(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'chunks_neighbours'::regclass"
        )
    finally:
        await store.close()
        await connection.close()
