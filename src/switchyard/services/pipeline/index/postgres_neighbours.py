"""Indexes of nearest neighbours in PostgreSQL, which compaction makes where there are many vectors.

Below GRAPH_FROM chunks it is pgvector's IVF: vectors lie in lists, each around a centre, and a
search reads the lists with the nearest centres. Reading the vectors of a list takes a third of the
time of visiting as many along a graph, so a search can read many of the lists. From GRAPH_FROM on
it is a graph (HNSW), where a search takes hardly longer as it grows. IVF keeps vectors in half
precision; the best found are compared again in full precision.
"""

from __future__ import annotations

from typing import Any

INDEXED_DIMENSIONS = 2_000
"""Longest vectors that can have an index of neighbours."""
GRAPH_FROM = 200_000
"""Number of chunks from which the index is a graph."""
MAINTENANCE = 24 * 3600.0
"""Seconds that one statement of maintenance may take."""
_MAX_LISTS, _VECTORS_IN_LIST = 1_000, 50
"""Most lists of an index, and, while there are fewer lists, vectors in each. The memory to build
lists grows with the square of their number."""
_LIST_SHARE = 3
"""A search reads one list in this many; docs/vectors.md tells how much it finds."""
_LIST_SHARE_OF_SEVERAL = 12
"""The same number where a search has several vectors: what one of them misses another may find."""
_EF_SEARCH, _EF_SEARCH_OF_SEVERAL = 800, 200
"""pgvector's `ef_search` (at most 1,000): for one vector, and for each of several."""
_REFINE_FACTOR = 2
"""For each chunk that is asked for, the number of chunks from the lists that are compared in full
precision."""
_BUILD_MEMORY = 512 * 1024**2
"""Most bytes that the server uses to build a graph, unless its own setting is higher. Vectors that
do not fit are added one by one, from the disk."""
_LINK_BYTES = 1_200
"""Bytes that a vector's links take while the graph is built, with some to spare."""
_SAMPLES_PER_LIST = 50
"""Vectors per list that pgvector samples to find the centres; at least 10,000 in total."""

SELECT_LIST_COUNT = """(
    SELECT option_value::integer
    FROM pg_index JOIN pg_class AS lists_index ON lists_index.oid = indexrelid,
        pg_options_to_table(lists_index.reloptions)
    WHERE indrelid = pg_class.oid AND indisvalid
        AND lists_index.relname = pg_class.relname || '_lists' AND option_name = 'lists'
)"""
"""Expression on a row of pg_class: the number of lists of its table; NULL where it has none."""
EXACTLY = "SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = on"
"""Settings with which the server compares all vectors that fit a filter."""


def search_settings(lists: int | None, *, several_vectors: bool = False) -> str:
    """Return the settings of a transaction that searches an index with this number of lists, of
    which a part is read, or the graph where `lists` is None. The server searches on, step by step,
    until it has found enough or reaches its own limit."""
    # Planned for each query: a filter may have one document or thousands.
    plan_each_query = "SET LOCAL plan_cache_mode = force_custom_plan"
    if lists is None:
        number = _EF_SEARCH_OF_SEVERAL if several_vectors else _EF_SEARCH
        return (
            f"{plan_each_query}; SET LOCAL hnsw.ef_search = {number}; "
            "SET LOCAL hnsw.iterative_scan = strict_order"
        )
    number = -(-lists // (_LIST_SHARE_OF_SEVERAL if several_vectors else _LIST_SHARE))
    # work_mem: the vectors of the lists are sorted, in memory.
    return (
        f"{plan_each_query}; SET LOCAL ivfflat.probes = {number}; "
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
    by the lists where there are any. `where` is empty, or a WHERE clause that ends with a blank."""
    source = f"{table} {where}"
    if lists is not None:
        source = (
            f"(SELECT {columns}, vector FROM {source} "
            f"ORDER BY {_half_precision('vector', dimensions)} <=> "
            f"{_half_precision(query_vector, dimensions)} "
            f"LIMIT {limit} * {_REFINE_FACTOR}) AS found "
        )
    return (
        f"SELECT {columns}, vector <=> {query_vector} AS distance FROM {source}"
        f"ORDER BY distance LIMIT {limit}"
    )


def _half_precision(vector: str, dimensions: int) -> str:
    """Return SQL for a vector in half precision, scaled to length 1 first: large numbers don't fit
    into it."""
    return f"(l2_normalize({vector})::halfvec({dimensions}))"


async def index_neighbours(connection: Any, table: str, dimensions: int, number: int) -> None:
    """Make the index for `number` vectors, unless it is there, in place of the other kind. Changes
    settings of the connection, which must not be used for anything else."""
    import asyncpg

    lists_index, graph_index = f"{table}_lists", f"{table}_neighbours"
    is_graph = number >= GRAPH_FROM
    name, other_index = (graph_index, lists_index) if is_graph else (lists_index, graph_index)
    is_valid = await connection.fetchval(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", name
    )
    if not is_valid:
        lists = None if is_graph else max(1, min(number // _VECTORS_IN_LIST, _MAX_LISTS))
        await connection.execute(
            "SELECT set_config(name, greatest(setting::bigint, $1)::text, false) "
            "FROM pg_settings WHERE name = 'maintenance_work_mem'",
            _build_memory(number, dimensions, lists) // 1024,
        )
        try:
            await _build(connection, name, table, dimensions, lists)
        except (asyncpg.DiskFullError, asyncpg.OutOfMemoryError):
            # A container may have little shared memory, which parallel workers need: build with
            # one process.
            await connection.execute("SET max_parallel_maintenance_workers = 0")
            await _build(connection, name, table, dimensions, lists)
    await connection.execute(
        f"DROP INDEX CONCURRENTLY IF EXISTS {other_index}", timeout=MAINTENANCE
    )


def _build_memory(number: int, dimensions: int, lists: int | None) -> int:
    """Return the bytes of memory to build the index with; lists need 450 MB at most."""
    if lists is None:
        return min(number * (4 * dimensions + _LINK_BYTES), _BUILD_MEMORY)
    samples = max(_SAMPLES_PER_LIST * lists, 10_000)
    return (
        samples * (2 * dimensions + 4 * lists + 64) + lists * (12 * dimensions + 4 * lists) + 2**24
    )


async def _build(
    connection: Any, name: str, table: str, dimensions: int, lists: int | None
) -> None:
    if lists is None:
        columns = "hnsw (vector vector_cosine_ops)"
    else:
        halved_vector = _half_precision("vector", dimensions)
        columns = f"ivfflat ({halved_vector} halfvec_cosine_ops) WITH (lists = {lists})"
    # An invalid index is left over from a build that was killed.
    await connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", timeout=MAINTENANCE)
    await connection.execute(
        f"CREATE INDEX CONCURRENTLY {name} ON {table} USING {columns}", timeout=MAINTENANCE
    )
