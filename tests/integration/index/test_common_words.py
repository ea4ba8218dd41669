"""A search by words reads few chunks, however many have the words."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from switchyard.services.pipeline.index import postgres_words
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.postgres_table import _WORD_SEARCH_SETTINGS, PostgresTable
from switchyard.services.pipeline.index.postgres_words import combinations, word_counts_statement
from switchyard.services.pipeline.index.word_index import MAX_QUERY_WORDS
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.chunk_tables import DIMENSIONS, open_table

pytestmark = pytest.mark.postgres
DOCUMENTS, CHUNKS_PER_DOCUMENT = 30, 40
ZERO_VECTOR = [0.0] * DIMENSIONS
"""A vector that is near to no chunk, so that candidates are found by their words alone."""


@pytest.fixture
async def index(pgvector_url: str) -> AsyncIterator[ChunkIndex]:
    """Yield an index with 1,200 chunks of 30 documents: the word `common` is in all, `half` in
    half of them, `tenth` in a tenth, `rare` in three."""
    rng = random.Random(5)
    async with open_table(pgvector_url) as table:
        for number in range(DOCUMENTS):
            document_id = f"doc-{number:02}"
            chunks = []
            for chunk_number in range(CHUNKS_PER_DOCUMENT):
                shares = [("common", 1.0), ("half", 0.5), ("tenth", 0.1), ("third", 0.3)]
                chosen_words = [word for word, share in shares if rng.random() < share]
                if number % 10 == 3 and chunk_number == 7:
                    chosen_words.append("rare")
                text = " ".join([*chosen_words, *["filling"] * rng.randrange(5)])
                chunks.append(
                    Chunk(chunk_id(document_id, chunk_number), document_id, chunk_number, 1, text)
                )
            await table.put("Title", chunks, [[1.0] * DIMENSIONS] * CHUNKS_PER_DOCUMENT)
        await table.compact()
        yield table


@pytest.fixture
def ranked_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect, for each search, the number of chunks that it ranked."""
    counts: list[int] = []
    by_relevance = postgres_words._rank_by_relevance

    def record_count(rows: Any, weights: Any) -> Any:
        counts.append(len(rows))
        return by_relevance(rows, weights)

    monkeypatch.setattr(postgres_words, "_rank_by_relevance", record_count)
    return counts


async def test_words_that_all_chunks_have_cost_no_more_than_others(
    index: ChunkIndex, ranked_counts: list[int]
):
    matches = await index.keyword_search("common rare half", 10)
    first = {match.chunk.document_id for match in matches[:3]}
    assert first == {"doc-03", "doc-13", "doc-23"}
    candidates = await index.candidates(ZERO_VECTOR, "common rare half", 10)
    matches_by_key = await index.read_candidates([each.key for each in candidates])
    best = max(candidates, key=lambda each: each.relevance)
    assert best.text == matches_by_key[best.key].chunk.text
    assert {each.text for each in candidates if each is not best} == {""}
    assert len(await index.keyword_search("common", 10)) == 10
    assert max(ranked_counts) <= 30


async def test_chunks_with_the_most_telling_words_come_before_those_that_lack_one(
    index: ChunkIndex,
):
    matches = await index.keyword_search("half tenth third common", 20)
    assert len(matches) == 20
    assert all("tenth" in match.chunk.text.split() for match in matches)
    relevances = [match.relevance for match in matches]
    assert all(relevance >= following for relevance, following in pairwise(relevances))


async def test_a_search_with_a_high_limit_returns_all_chunks_with_a_word(index: ChunkIndex):
    matches = await index.keyword_search("tenth rare", DOCUMENTS * CHUNKS_PER_DOCUMENT)
    assert {match.chunk.id for match in matches} == {
        each.chunk.id
        for document_id in await index.document_ids()
        for each in await index.texts_of(document_id, 0, CHUNKS_PER_DOCUMENT)
        if {"tenth", "rare"} & set(each.chunk.text.split())
    }


@pytest.mark.parametrize("documents", [1, 20])
async def test_the_best_chunks_are_found_within_few_documents_and_within_many(
    index: ChunkIndex, documents: int
):
    document_ids = [f"doc-{number:02}" for number in range(3, 3 + documents)]
    matches = await index.keyword_search("rare common", 10, document_ids=document_ids)
    assert "rare" in matches[0].chunk.text
    assert len(matches) == 10
    assert {match.chunk.document_id for match in matches} <= set(document_ids)


async def test_the_index_of_words_finds_chunks_before_and_after_their_compaction(
    index: ChunkIndex,
):
    assert isinstance(index, PostgresTable)
    await index.put("Title", [Chunk("new", "doc-new", 0, 1, "rare brandnew")], [[1.0] * DIMENSIONS])
    assert [match.chunk.id for match in await index.keyword_search("brandnew", 10)] == ["new"]
    async with index._open_read(_WORD_SEARCH_SETTINGS) as connection:
        ids_subquery = postgres_words._SELECT_IDS.format(table="chunks")
        features_statement = postgres_words._SELECT_FEATURES.format(
            table="chunks", ids=ids_subquery
        )
        for statement, values in (
            (word_counts_statement("chunks", is_counted=False), [["rare"]]),
            (features_statement, [["common", "rare"], ZERO_VECTOR, ["rare common"], None, 9]),
        ):
            plan = await connection.fetch(f"EXPLAIN (ANALYZE) {statement}", *values)
            text = "\n".join(row[0] for row in plan)
            assert "Bitmap Index Scan on chunks_words" in text, text


async def test_a_query_of_too_many_words_is_searched_by_its_first_ones(index: ChunkIndex):
    query = " ".join(["common", *(f"word{number}" for number in range(MAX_QUERY_WORDS))])
    candidates = await index.candidates(ZERO_VECTOR, query, 10)
    assert len(candidates) == 10
    query_with_common_last = " ".join(
        [*(f"word{number}" for number in range(MAX_QUERY_WORDS)), "common"]
    )
    assert await index.candidates(ZERO_VECTOR, query_with_common_last, 10) == []


def test_combinations_begin_with_all_words_and_leave_out_the_least_telling_first():
    assert combinations({"a": 5.0, "b": 1.0, "c": 3.0}) == [
        "a c b",
        "a c",
        "a b",
        "a",
        "c b",
        "c",
        "b",
    ]
    of_many_words = combinations({f"w{number}": 1.0 + number for number in range(64)})
    assert len(of_many_words) == 2**6 - 1 + 58  # all combinations of six, and 58 alone
    assert combinations({}) == []
