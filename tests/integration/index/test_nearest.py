"""Vectors of the index: the nearest of them, their means, and an index of neighbours."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from switchyard.services.pipeline.index import lance_table
from tests.support.chunk_tables import DIMENSIONS, make_chunks, make_vector, open_table, put_chunks


async def test_the_nearest_come_first_with_their_chunk_title_and_similarity(url: str):
    async with open_table(url) as index:
        await put_chunks(index, "a", 10)
        await put_chunks(index, "b", 1)
        matches = await index.nearest(make_vector(0.31), 3)
        assert [match.chunk.index for match in matches] == [3, 4, 2]
        assert matches[0].chunk == make_chunks("a", 10)[3]
        assert matches[0].title == "Title"
        assert matches[0].similarity == pytest.approx(math.cos(0.01))
        assert await index.nearest([0.0] * DIMENSIONS, 3) == []


async def test_the_neighbours_of_several_vectors_are_documents_each_as_near_as_its_nearest_chunk(
    url: str,
):
    async with open_table(url) as index:
        await put_chunks(index, "self", 3)
        await put_chunks(index, "near", 3)
        await index.put("Far", make_chunks("far", 2), [make_vector(1.5), make_vector(1.6)])
        await index.put("Empty", make_chunks("empty", 1), [[0.0] * DIMENSIONS])
        query_vectors = [make_vector(0.21), make_vector(1.4), [0.0] * DIMENSIONS]
        neighbours = await index.neighbours(query_vectors, 1, excluding="self")
        assert [(each.document_id, each.title) for each in neighbours] == [
            ("near", "Title"),
            ("far", "Far"),
        ]
        assert [each.similarity for each in neighbours] == [
            pytest.approx(math.cos(0.01)),
            pytest.approx(math.cos(0.1)),
        ]
        assert await index.neighbours([[0.0] * DIMENSIONS], 1, excluding="self") == []
        assert await index.neighbours([], 1, excluding="self") == []


async def test_chunks_without_a_direction_do_not_disturb_a_search(url: str):
    async with open_table(url) as index:
        await index.put("", make_chunks("z", 1), [[0.0] * DIMENSIONS])
        await put_chunks(index, "a", 1)
        matches = await index.nearest(make_vector(0), 5)
        assert matches[0].chunk.document_id == "a"
        assert all(math.isfinite(match.similarity) for match in matches)


async def test_vectors_come_back_in_the_order_of_their_chunks(url: str):
    async with open_table(url) as index:
        await put_chunks(index, "a", 12)
        await put_chunks(index, "it's", 1)
        vectors = await index.vectors_at("a", [11, 0, 7, 99])
        assert vectors == [pytest.approx(make_vector(n / 10), abs=1e-6) for n in (0, 7, 11)]
        assert len(await index.vectors_at("it's", [0])) == 1
        assert await index.vectors_at("nobody", [0]) == []
        assert await index.vectors_at("a", []) == []


@pytest.mark.parametrize("batch_size", [1, 5, 4_096])
async def test_means_are_of_all_of_a_documents_vectors_in_batches_of_any_size(
    url: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lance_table, "BATCH_SIZE", batch_size)
    async with open_table(url) as index:
        await put_chunks(index, "a", 12)
        await put_chunks(index, "it's", 1)
        await index.put("", make_chunks("z", 1), [[0.0] * DIMENSIONS])
        means = await index.means_of(["a", "it's", "z", "nobody"])
        assert means["a"] == pytest.approx(make_vector(0.55), abs=1e-6)
        assert means["it's"] == pytest.approx(make_vector(0), abs=1e-6)
        assert means["z"] == [0.0] * DIMENSIONS
        assert "nobody" not in means
        assert await index.means_of([]) == {}


async def test_both_kinds_of_index_find_the_same_nearest_ten(tmp_path: Path, pgvector_url: str):
    rng = random.Random(7)
    vectors_of = {
        document_id: [[rng.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(40)]
        for document_id in ("a", "b", "c")
    }
    queries = [[rng.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(20)]
    matches_by_index = []
    for url in (str(tmp_path / "index"), pgvector_url):
        async with open_table(url) as index:
            for document_id, vectors in vectors_of.items():
                await index.put("Title", make_chunks(document_id, 40), vectors)
            await index.compact()
            matches_by_index.append(
                [
                    [(match.chunk, round(match.similarity, 5)) for match in matches]
                    for query in queries
                    for matches in (
                        await index.nearest(query, 10, exact=True),
                        await index.nearest(query, 10),
                        await index.nearest(query, 10, exact=True, document_ids=["a", "c"]),
                    )
                ]
            )
    assert matches_by_index[0] == matches_by_index[1]
    assert [len(matches) for matches in matches_by_index[0]] == [10] * 60


async def test_many_chunks_get_an_index_of_neighbours_that_misses_hardly_any(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    for kind in ("lance", "postgres"):
        monkeypatch.setattr(
            f"switchyard.services.pipeline.index.{kind}_table.APPROXIMATE_FROM", 1_000
        )
    rng = random.Random(3)
    vectors = [[rng.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(1_500)]
    async with open_table(url) as index:
        await index.put("Title", make_chunks("a", 1_500), vectors)
        await index.compact()
    async with open_table(url) as index:
        await put_chunks(index, "later", 1)
        shared_count = 0
        for query in vectors[:20]:
            exact_matches = await index.nearest(query, 10, exact=True)
            approximate = await index.nearest(query, 10)
            assert len(approximate) == 10
            assert approximate[0].similarity == pytest.approx(1, abs=1e-6)
            shared_count += len(
                {each.chunk.id for each in exact_matches} & {each.chunk.id for each in approximate}
            )
        assert shared_count >= 180
        assert (await index.nearest(make_vector(0), 1, document_ids=["later"]))[
            0
        ].chunk.document_id == "later"
