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
from tests.support.chunk_tables import DIMENSIONS, opened

pytestmark = pytest.mark.postgres
DOCUMENTS, EACH = 30, 40
NOWHERE = [0.0] * DIMENSIONS


@pytest.fixture
async def index(pgvector_url: str) -> AsyncIterator[ChunkIndex]:
    """Yield an index with 1,200 chunks of 30 documents: the word `common` is in all, `half` and
    `tenth` in those shares, `rare` in three."""
    randomly = random.Random(5)
    async with opened(pgvector_url) as table:
        for number in range(DOCUMENTS):
            document_id = f"doc-{number:02}"
            chunks = []
            for chunk_number in range(EACH):
                parts = [("common", 1.0), ("half", 0.5), ("tenth", 0.1), ("third", 0.3)]
                chosen_words = [word for word, share in parts if randomly.random() < share]
                if number % 10 == 3 and chunk_number == 7:
                    chosen_words.append("rare")
                text = " ".join([*chosen_words, *["filling"] * randomly.randrange(5)])
                chunks.append(
                    Chunk(chunk_id(document_id, chunk_number), document_id, chunk_number, 1, text)
                )
            await table.put("Title", chunks, [[1.0] * DIMENSIONS] * EACH)
        await table.compact()
        yield table


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect, for each search, the number of chunks that it compared."""
    numbers: list[int] = []
    by_relevance = postgres_words._rank_by_relevance

    def noted(rows: Any, weights: Any) -> Any:
        numbers.append(len(rows))
        return by_relevance(rows, weights)

    monkeypatch.setattr(postgres_words, "_rank_by_relevance", noted)
    return numbers


async def test_words_that_all_chunks_have_cost_no_more_than_others(
    index: ChunkIndex, compared: list[int]
):
    matches = await index.keyword_search("common rare half", 10)
    first = {match.chunk.document_id for match in matches[:3]}
    assert first == {"doc-03", "doc-13", "doc-23"}
    candidates = await index.candidates(NOWHERE, "common rare half", 10)
    found_by_key = await index.read_candidates([each.key for each in candidates])
    best = max(candidates, key=lambda each: each.relevance)
    assert best.text == found_by_key[best.key].chunk.text
    assert {each.text for each in candidates if each is not best} == {""}
    assert len(await index.keyword_search("common", 10)) == 10
    assert max(compared) <= 30


async def test_chunks_with_the_most_telling_words_come_before_those_that_lack_one(
    index: ChunkIndex,
):
    matches = await index.keyword_search("half tenth third common", 20)
    assert len(matches) == 20
    assert all("tenth" in match.chunk.text.split() for match in matches)
    relevances = [match.relevance for match in matches]
    assert all(one >= other for one, other in pairwise(relevances))


async def test_a_search_with_a_high_limit_returns_all_chunks_with_a_word(index: ChunkIndex):
    matches = await index.keyword_search("tenth rare", DOCUMENTS * EACH)
    assert {match.chunk.id for match in matches} == {
        each.chunk.id
        for document_id in await index.document_ids()
        for each in await index.texts_of(document_id, 0, EACH)
        if {"tenth", "rare"} & set(each.chunk.text.split())
    }


@pytest.mark.parametrize("documents", [1, 20])
async def test_within_few_documents_and_within_many_the_best_are_found(
    index: ChunkIndex, documents: int
):
    within = [f"doc-{number:02}" for number in range(3, 3 + documents)]
    matches = await index.keyword_search("rare common", 10, document_ids=within)
    assert "rare" in matches[0].chunk.text
    assert len(matches) == 10
    assert {match.chunk.document_id for match in matches} <= set(within)


async def test_words_are_found_by_their_index_before_any_compaction_and_behind_it(
    index: ChunkIndex,
):
    assert isinstance(index, PostgresTable)
    await index.put("Title", [Chunk("new", "doc-new", 0, 1, "rare brandnew")], [[1.0] * DIMENSIONS])
    assert [match.chunk.id for match in await index.keyword_search("brandnew", 10)] == ["new"]
    async with index._open_read(_WORD_SEARCH_SETTINGS) as connection:
        matches = postgres_words._SELECT_IDS.format(table="chunks")
        compared = postgres_words._SELECT_FEATURES.format(table="chunks", ids=matches)
        for statement, values in (
            (word_counts_statement("chunks", is_counted=False), [["rare"]]),
            (compared, [["common", "rare"], NOWHERE, ["rare common"], None, 9]),
        ):
            plan = await connection.fetch(f"EXPLAIN (ANALYZE) {statement}", *values)
            text = "\n".join(row[0] for row in plan)
            assert "Bitmap Index Scan on chunks_words" in text, text


async def test_the_first_words_of_a_query_that_is_cut_off_are_looked_for(index: ChunkIndex):
    many = " ".join(["common", *(f"word{number}" for number in range(MAX_QUERY_WORDS))])
    candidates = await index.candidates(NOWHERE, many, 10)
    assert len(candidates) == 10
    beyond = " ".join([*(f"word{number}" for number in range(MAX_QUERY_WORDS)), "common"])
    assert await index.candidates(NOWHERE, beyond, 10) == []


def test_words_are_looked_for_together_first_and_the_least_telling_one_is_left_out_first():
    assert combinations({"a": 5.0, "b": 1.0, "c": 3.0}) == [
        "a c b",
        "a c",
        "a b",
        "a",
        "c b",
        "c",
        "b",
    ]
    many = combinations({f"w{number}": 1.0 + number for number in range(64)})
    assert len(many) == 2**6 - 1 + 58
    assert combinations({}) == []
