"""Indexes of neighbours in PostgreSQL, which compaction makes where there are many vectors.

Up to GRAPH_FROM chunks it is pgvector's IVF: vectors lie in lists, each around a centre, and a
search looks through the lists with the nearest centres. Reading a list costs a third of the time
that it takes to come to as many vectors on the way along a graph, so a good part of them can be
looked at. From there on it is a graph (HNSW), where a search takes hardly longer as it grows. IVF
keeps halves of full numbers, and the best found are compared by their full vectors.
"""

from __future__ import annotations

from typing import Any

INDEXED_DIMENSIONS = 2_000
"""Vectors up to this length can have an index of neighbours."""
GRAPH_FROM = 200_000
"""Chunks from which it is a graph."""
MAINTENANCE = 24 * 3600.0
"""Seconds that one statement of maintenance may take."""
_LISTS, _IN_LIST = 1_000, 50
"""Lists that there are at most, and vectors in one of fewer lists. To make more takes a memory that
grows by their square."""
_SHARE = 3
"""One in this many lists is searched: docs/vectors.md tells how much a search finds that way."""
_SHARE_FOR_EACH = 12
"""The same for each of several vectors: what one misses, another one may find."""
_LOOKED_AT, _LOOKED_AT_FOR_EACH = 800, 200
"""Vectors that a search keeps in sight on its way along a graph (`ef_search`), of 1,000 that it
can; and for each of several."""
_COMPARED = 2
"""For each chunk that is asked for, so many from the lists are compared by their full vectors."""
_BUILDING = 512 * 1024**2
"""Bytes that the server takes at most to build a graph, if its own setting is less. What does not
fit is added one by one, from the disk."""
_NODE = 1_200
"""Bytes that a vector's links take while the graph is built, with some to spare."""
_SAMPLES = 50
"""Vectors by which pgvector finds a list's centre, 10,000 for all at least."""

LISTS = """(
    SELECT option_value::integer FROM pg_index JOIN pg_class AS own ON own.oid = indexrelid,
        pg_options_to_table(own.reloptions)
    WHERE indrelid = pg_class.oid AND indisvalid AND own.relname = pg_class.relname || '_lists'
        AND option_name = 'lists'
)"""
"""Of a row of pg_class: how many lists its table has; NULL where it has none."""
EXACTLY = "SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = on"
"""What the server is told so that it compares all vectors that fit a filter."""


def search_settings(lists: int | None, *, for_each: bool = False) -> str:
    """Return the settings of a transaction that searches these lists, or the graph where there are
    none. The server searches on, step by step, until it has found enough or reaches its own
    limit."""
    planned = "SET LOCAL plan_cache_mode = force_custom_plan"  # by the documents of a filter
    if lists is None:
        number = _LOOKED_AT_FOR_EACH if for_each else _LOOKED_AT
        return (
            f"{planned}; SET LOCAL hnsw.ef_search = {number}; "
            "SET LOCAL hnsw.iterative_scan = strict_order"
        )
    number = -(-lists // (_SHARE_FOR_EACH if for_each else _SHARE))
    # What is looked at is sorted, in memory.
    return (
        f"{planned}; SET LOCAL ivfflat.probes = {number}; "
        "SET LOCAL ivfflat.iterative_scan = relaxed_order; "
        "SET LOCAL enable_seqscan = off; SET LOCAL work_mem = '32MB'"
    )


def nearest(
    table: str,
    columns: str,
    query_vector: str,
    limit: str,
    where: str = "",
    *,
    lists: int | None = None,
    dimensions: int = 0,
) -> str:
    """Return the statement for the chunks nearest to a vector, with their `distance`, best first;
    by the lists where there are any."""
    source = f"{table} {where}"
    if lists is not None:
        source = (
            f"(SELECT {columns}, vector FROM {source} "
            f"ORDER BY {_half_precision('vector', dimensions)} <=> "
            f"{_half_precision(query_vector, dimensions)} "
            f"LIMIT {limit} * {_COMPARED}) AS found "
        )
    return (
        f"SELECT {columns}, vector <=> {query_vector} AS distance FROM {source}"
        f"ORDER BY distance LIMIT {limit}"
    )


def _half_precision(vector: str, dimensions: int) -> str:
    """Return SQL for a vector in half precision; scaled to length 1 first, as large numbers don't
    fit."""
    return f"(l2_normalize({vector})::halfvec({dimensions}))"


async def index_neighbours(connection: Any, table: str, dimensions: int, number: int) -> None:
    """Make the index for so many vectors, unless it is there, in place of the other kind. Leaves
    settings behind: the connection is for nobody else."""
    import asyncpg

    names = [f"{table}_lists", f"{table}_neighbours"]
    other, name = names if number >= GRAPH_FROM else reversed(names)
    is_valid = await connection.fetchval(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", name
    )
    if not is_valid:
        lists = None if number >= GRAPH_FROM else max(1, min(number // _IN_LIST, _LISTS))
        await connection.execute(
            "SELECT set_config(name, greatest(setting::bigint, $1)::text, false) "
            "FROM pg_settings WHERE name = 'maintenance_work_mem'",
            _memory(number, dimensions, lists) // 1024,
        )
        try:
            await _build(connection, name, table, dimensions, lists)
        except (asyncpg.DiskFullError, asyncpg.OutOfMemoryError):
            # A container has little of the memory that processes share: one alone needs none.
            await connection.execute("SET max_parallel_maintenance_workers = 0")
            await _build(connection, name, table, dimensions, lists)
    await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {other}", timeout=MAINTENANCE)


def _memory(number: int, dimensions: int, lists: int | None) -> int:
    """Return the bytes to build the index in. Lists need a certain amount, at most 450 MB."""
    if lists is None:
        return min(number * (4 * dimensions + _NODE), _BUILDING)
    samples = max(_SAMPLES * lists, 10_000)
    return (
        samples * (2 * dimensions + 4 * lists + 64) + lists * (12 * dimensions + 4 * lists) + 2**24
    )


async def _build(
    connection: Any, name: str, table: str, dimensions: int, lists: int | None
) -> None:
    if lists is None:
        columns = "hnsw (vector vector_cosine_ops)"
    else:
        halved = _half_precision("vector", dimensions)
        columns = f"ivfflat ({halved} halfvec_cosine_ops) WITH (lists = {lists})"
    # What is there is what somebody began who was killed.
    await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", timeout=MAINTENANCE)
    await connection.execute(
        f"CREATE INDEX CONCURRENTLY {name} ON {table} USING {columns}", timeout=MAINTENANCE
    )
