"""Count how many chunks have each word, when a large table is compacted.

A search weighs the words of its query by these counts. Counting the chunks with a word means
visiting each of them, and their pages push others out of the server's memory, above all those of
the index of neighbours. So the counts of common words are kept in a table beside the chunks; rare
words are counted by each search, so a new word is found at once.

The counts hold for a table of about that size: once it has doubled, or lost half of its chunks,
each search counts all words, until the next compaction.
"""

from __future__ import annotations

from typing import Any

from switchyard.services.pipeline.index.postgres_neighbours import MAINTENANCE

COUNTED_FROM = 10_000
"""Chunks from which a table is large: words of smaller ones are counted by each search."""
_SAMPLED_CHUNKS = 50_000
"""Approximate number of chunks whose words are counted in a large table: a random sample."""
_MIN_SAMPLED_CHUNKS = 20
"""A word is kept if at least this many of the sampled chunks have it."""

IS_COUNTED = """coalesce((
    SELECT obj_description(counts.oid, 'pg_class')::real * 2 >= pg_class.reltuples
        AND pg_class.reltuples * 2 >= obj_description(counts.oid, 'pg_class')::real
    FROM pg_class AS counts WHERE counts.relname = pg_class.relname || '_counts'
        AND counts.relnamespace = pg_class.relnamespace
        AND has_table_privilege(counts.oid, 'SELECT')
), false)"""
"""Expression on a row of pg_class: whether its table of word counts is recent enough (see above),
and readable by us. The comment of that table is the number of chunks when they were counted."""


def counts_of(table: str) -> str:
    """Return the name of the table that keeps, for each word of `table`, the share of chunks that
    have it (column `part`)."""
    return f"{table}_counts"


async def count_words(connection: Any, table: str) -> None:
    """Count the words of that table, if it is large. Call it after ANALYZE: the size is read from
    its statistics."""
    chunk_count = await connection.fetchval(
        "SELECT reltuples FROM pg_class WHERE oid = to_regclass($1)", table
    )
    if not chunk_count or chunk_count < COUNTED_FROM:
        return
    counts = counts_of(table)
    async with connection.transaction():
        # Only one process counts at a time. The chunks' table is locked first, as by whoever drops
        # both tables: in another order the two could wait for each other.
        await connection.execute(
            f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE", timeout=MAINTENANCE
        )
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {counts} (word text PRIMARY KEY, part real NOT NULL)"
        )
        await connection.execute(f"DELETE FROM {counts}")
        await connection.execute(
            _COUNT.format(
                table=table, counts=counts, percent=min(100, 100 * _SAMPLED_CHUNKS / chunk_count)
            ),
            timeout=MAINTENANCE,
        )
        await connection.execute(f"COMMENT ON TABLE {counts} IS '{chunk_count:.0f}'")


_COUNT = f"""
WITH sample AS MATERIALIZED (
    SELECT words FROM {{table}} TABLESAMPLE SYSTEM ({{percent}}) REPEATABLE (1)
)
INSERT INTO {{counts}}
SELECT word, count(*)::real / (SELECT count(*) FROM sample)
FROM sample CROSS JOIN LATERAL (SELECT DISTINCT unnest(words) AS word) AS chunk_words
GROUP BY word HAVING count(*) >= {_MIN_SAMPLED_CHUNKS}
"""
