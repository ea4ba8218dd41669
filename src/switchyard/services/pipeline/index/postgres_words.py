"""Search by words in PostgreSQL: an inverted index finds some candidates, and BM25 orders them.

PostgreSQL's own full-text search has no BM25, and finds no words in scripts without spaces. So the
words of a chunk are cut and stemmed as those of a query are (`services.pipeline.text.stems`), and
kept as an array with a GIN index.

Some words are in nearly every chunk, and say little about it. So a search does not read all chunks
with any word of a query: it looks for chunks with all of the query's rarest words first, then for
chunks that lack the most frequent of these words, and so on, until there are enough. Compaction
counts the chunks with each word (`postgres_counts`). For a table that was never compacted, the
server's own statistics have the common words, and the search counts the chunks with the other
words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from switchyard.services.pipeline.index.chunk_index import ChunkCandidate, WordMatch, chunk_of
from switchyard.services.pipeline.index.postgres_counts import COUNTED_FROM, counts_of

CHUNK_COLUMNS = "id, document_id, index, page, text, title"
"""The columns of `chunk_of`."""
MAX_WORD = 100
"""Characters of a word that are stored: an inverted index accepts no longer words."""
_CANDIDATES_FACTOR = 3
"""Chunks that are compared for each one that is asked for."""
_MAX_COUNTED = 500
"""Most chunks with a word that a search counts, if their number is not known."""
_COMBINED_WORDS = 6
"""Number of a query's rarest words whose combinations are all looked for."""
_MAX_COMPARED_CHUNKS = 500
"""Number of chunks to be searched below which all of them are compared."""
_K1, _B = 1.2, 0.75
"""The usual parameters of BM25."""


async def keyword_search(
    connection: Any,
    table: str,
    is_counted: bool,
    terms: Sequence[tuple[str, ...]],
    limit: int,
    document_ids: Collection[str] | None,
) -> list[WordMatch]:
    """Return the chunks that have any of these words (`query_terms`), the most relevant first; with
    `document_ids`, of these documents alone. `is_counted` comes from the table's description."""
    best = await _most_relevant(connection, table, is_counted, terms, limit, document_ids)
    rows = await connection.fetch(
        f"SELECT {CHUNK_COLUMNS} FROM {table} WHERE id = ANY($1)", [row["id"] for _, row in best]
    )
    rows_by_id = {row["id"]: row for row in rows}
    return [
        WordMatch(chunk_of(rows_by_id[row["id"]]), rows_by_id[row["id"]]["title"], relevance)
        for relevance, row in best
    ]


async def word_candidates(
    connection: Any,
    table: str,
    is_counted: bool,
    vector: Sequence[float],
    terms: Sequence[tuple[str, ...]],
    limit: int,
    document_ids: Collection[str] | None,
) -> list[ChunkCandidate]:
    """Return candidates for what `keyword_search` returns, with their similarity to the vector.
    Only the first has its text."""
    best = await _most_relevant(connection, table, is_counted, terms, limit, document_ids, vector)
    if not best:
        return []
    first_text = await connection.fetchval(
        f"SELECT text FROM {table} WHERE id = $1", best[0][1]["id"]
    )
    return [
        ChunkCandidate(
            row["id"], row["similarity"] or 0.0, relevance, "" if rank else first_text or ""
        )
        for rank, (relevance, row) in enumerate(best)
    ]


async def _most_relevant(
    connection: Any,
    table: str,
    is_counted: bool,
    terms: Sequence[tuple[str, ...]],
    limit: int,
    document_ids: Collection[str] | None,
    vector: Sequence[float] | None = None,
) -> list[tuple[float, Any]]:
    """Return BM25 and row of each chunk, best first. With a vector, a row has the chunk's
    similarity to it."""
    terms = [tuple(form[:MAX_WORD] for form in word) for word in terms]
    forms = list(dict.fromkeys(form for word in terms for form in word))
    if not forms:
        return []
    counts = await connection.fetch(word_counts_statement(table, is_counted=is_counted), forms)
    chunk_counts = {row["word"]: row["number"] for row in counts if row["number"]}
    word_weights = _weigh_words(
        terms, chunk_counts, max((row["chunks"] for row in counts), default=0)
    )
    if not word_weights:
        return []
    vector_values = None if vector is None else list(vector)
    rows = await _fetch_candidates(
        connection, table, word_weights, limit * _CANDIDATES_FACTOR, document_ids, vector_values
    )
    index_of_form = {form: number for number, form in enumerate(_forms(word_weights))}
    form_indices = [
        (weight, [index_of_form[form] for form in word]) for word, weight in word_weights.items()
    ]
    return _rank_by_relevance(rows, form_indices)[:limit]


def word_counts_statement(table: str, *, is_counted: bool) -> str:
    """Return the statement for the number of chunks with each word, and of all chunks."""
    share = "SELECT parts[array_position(words, asked.word)] FROM common"
    if is_counted:
        share = f"SELECT part FROM {counts_of(table)} AS counted WHERE counted.word = asked.word"
    return _WORD_COUNTS.format(table=table, share=share, most=_MAX_COUNTED, large=COUNTED_FROM)


async def _fetch_candidates(
    connection: Any,
    table: str,
    word_weights: Mapping[tuple[str, ...], float],
    limit: int,
    document_ids: Collection[str] | None,
    vector_values: list[float] | None,
) -> Sequence[Any]:
    """Fetch the chunks with the rarest words; fetch all chunks if there are few. A row has the
    chunk's length, the count of each form in it, in the forms' order, and its similarity to the
    vector."""
    filter_values = None if document_ids is None else list(document_ids)
    word_groups = combinations({word[0]: weight for word, weight in word_weights.items()})
    word_groups += [form for word in word_weights for form in word[1:]]
    ids_expression, values = _SELECT_IDS.format(table=table), [word_groups, filter_values, limit]
    if filter_values is not None and len(filter_values) < _MAX_COMPARED_CHUNKS:
        filtered_ids: list[str] = await connection.fetchval(
            _SELECT_FEW_IDS.format(table=table, few=_MAX_COMPARED_CHUNKS), filter_values
        )
        if len(filtered_ids) < _MAX_COMPARED_CHUNKS:
            ids_expression, values = "$3", [filtered_ids]
    # One statement finds and compares the chunks, which saves a round trip.
    statement = _SELECT_FEATURES.format(table=table, ids=ids_expression)
    parameters = _forms(word_weights), vector_values
    rows: Sequence[Any] = await connection.fetch(statement, *parameters, *values)
    return rows


def combinations(weights: Mapping[str, float]) -> list[str]:
    """Return words to look for together, with spaces between: all combinations of the rarest words,
    the combination that weighs most first, and then each of the others alone."""
    ordered = sorted(weights, key=lambda word: (-weights[word], word))
    rarest = ordered[:_COMBINED_WORDS]
    combined = [
        [word for index, word in enumerate(rarest) if number >> index & 1]
        for number in range(1, 1 << len(rarest))
    ]
    combined.sort(key=lambda combination: -sum(weights[word] for word in combination))
    return [" ".join(combination) for combination in combined] + ordered[_COMBINED_WORDS:]


def _weigh_words(
    terms: Sequence[tuple[str, ...]], chunk_counts: Mapping[str, float], chunks: float
) -> dict[tuple[str, ...], float]:
    """Return the weight of each word that any chunk has. A key is the tuple of the word's forms
    that any chunk has, the most frequent first. `chunk_counts` has the number of chunks with each
    form, `chunks` the number of all chunks."""
    word_weights: dict[tuple[str, ...], float] = {}
    for word in terms:
        stored_forms = tuple(
            sorted((form for form in word if form in chunk_counts), key=lambda f: -chunk_counts[f])
        )
        if stored_forms:
            chunk_count = sum(chunk_counts[form] for form in stored_forms)
            word_weights[stored_forms] = math.log(
                1 + (max(chunks, chunk_count) - chunk_count + 0.5) / (chunk_count + 0.5)
            )
    return word_weights


def _forms(word_weights: Mapping[tuple[str, ...], float]) -> list[str]:
    """Return all forms of some words, sorted."""
    return sorted({form for word in word_weights for form in word})


def _rank_by_relevance(
    rows: Sequence[Any], form_indices: Sequence[tuple[float, Sequence[int]]]
) -> list[tuple[float, Any]]:
    """Return BM25 and row of the candidates that have any of the words, best first. The mean length
    of a chunk is that of the candidates. `form_indices` are each word's weight and the indices of
    its forms in a row's counts."""
    mean_length = sum(row["length"] for row in rows) / max(len(rows), 1)
    matches = []
    for row in rows:
        length_factor = _K1 * (1 - _B + _B * row["length"] / mean_length) if mean_length else _K1
        counts = row["counts"]
        relevance = 0.0
        for weight, indices in form_indices:
            count = sum(counts[index] for index in indices)
            relevance += weight * count * (_K1 + 1) / (count + length_factor)
        if relevance > 0:
            matches.append((relevance, row))
    return sorted(matches, key=lambda each: (-each[0], each[1]["id"]))


_WORD_COUNTS = """
WITH total AS MATERIALIZED (
    SELECT CASE WHEN reltuples < {large}
        THEN (SELECT count(*) FROM (SELECT FROM {table} LIMIT {large}) AS first)
        ELSE reltuples END AS chunks
    FROM pg_class WHERE oid = to_regclass('{table}')
),
common AS MATERIALIZED (
    SELECT stats.most_common_elems::text::text[] AS words, stats.most_common_elem_freqs AS parts
    FROM total CROSS JOIN pg_stats AS stats JOIN pg_class ON relname = stats.tablename
        AND relnamespace::regnamespace::text = stats.schemaname
    WHERE chunks >= {large} AND pg_class.oid = to_regclass('{table}') AND stats.attname = 'words'
)
SELECT asked.word, total.chunks, coalesce(
    ({share}) * total.chunks,
    (SELECT count(*) FROM
        (SELECT FROM {table} WHERE words @> ARRAY[asked.word] LIMIT {most}) AS counted)
) AS number
FROM unnest($1::text[]) AS asked(word) CROSS JOIN total
"""
"""The server's statistics are read only where `share` refers to them."""
_SELECT_IDS = """
WITH RECURSIVE step AS (
    SELECT 0 AS number, ARRAY[]::text[] AS ids
    UNION ALL
    SELECT number + 1, ids || ARRAY(
        SELECT id FROM (
            SELECT id, document_id FROM {table}
            WHERE words @> string_to_array(($3::text[])[number + 1], ' ') OFFSET 0
        ) AS chunk
        WHERE id <> ALL(ids) AND ($4::text[] IS NULL OR document_id = ANY($4))
        LIMIT $5 - cardinality(ids)
    )
    FROM step WHERE cardinality(ids) < $5 AND number < cardinality($3)
)
SELECT ids FROM step ORDER BY number DESC LIMIT 1
"""
"""Looks for one combination of words after the other, until there are enough chunks."""
_SELECT_FEW_IDS = """
SELECT coalesce(array_agg(id), ARRAY[]::text[])
FROM (SELECT id FROM {table} WHERE document_id = ANY($1) LIMIT {few}) AS few
"""
_SELECT_FEATURES = """
SELECT id, cardinality(words) AS length,
    ARRAY(SELECT cardinality(array_positions(words, asked.word))
        FROM unnest($1::text[]) WITH ORDINALITY AS asked(word, at) ORDER BY at) AS counts,
    NULLIF(1 - (vector <=> (SELECT $2::real[]::vector)), 'NaN') AS similarity
FROM (
    SELECT id, words || ARRAY[]::text[] AS words, vector
    FROM {table} WHERE id = ANY(({ids})::text[]) OFFSET 0
) AS chunk
"""
"""The empty array that is appended to `words` makes the server fetch and unpack them once for each
chunk; otherwise it would do so for each word that is asked for."""
