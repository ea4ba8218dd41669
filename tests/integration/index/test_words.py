"""Chunks are found by their words, however these are written."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.pipeline.index import lance_table
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.hashed_embedder import HashedEmbedder
from switchyard.services.pipeline.index.index_check import check_index
from switchyard.services.pipeline.index.index_rebuild import begin_rebuild, continue_rebuild
from switchyard.services.pipeline.index.lance_table import LanceTable
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.chunk_tables import DIMENSIONS, make_chunks, make_vector, open_table, put_chunks

TEXTS = {
    "moon": "The Moon draws the water of the sea, and the tide rises.",
    "bread": "Bread rises when yeast has sugar, water and time.",
    "tea": "Green tea is steeped in water that does not boil.",
    "zh": "月亮引起潮汐，海水每天涨落两次。",
    "mixed": "The tide of the sea rises twice a day, and the tide falls.",
}
FIRST_BY_QUERY = {
    "moon": "moon",
    "the tide": "mixed",
    "YEAST": "bread",
    "潮汐": "zh",
    "steeped": "tea",
}
"""Queries, and which of these documents comes first."""
SPELLINGS = [
    ("day", "Every day¹² counts."),
    ("day¹²", "Every day¹² counts."),
    ("day¹²", "A plain day."),
    ("day²", "Every day¹² counts."),
    ("CO₂", "The CO₂ rises."),
    ("co", "The CO₂ rises."),
    ("sample", "A sample₁ of it."),
    ("CO2", "The CO₂ rises."),
    ("CO₂", "The CO2 rises."),
    ("10", "It is 5×10⁵ at most."),
    ("efficient", "An eﬃcient way."),
    ("eﬃcient", "An efficient way."),
    ("full width", "All in ＦＵＬＬ　ＷＩＤＴＨ."),
    ("co\u00adoperation", "The cooperation of all."),
    ("cooperation", "The co\u00adoperation of all."),
    ("strasse", "Die Straße."),
    ("wing", "The pressure on the wings is measured."),
    ("measurements", "The pressure on the wings is measured."),
    ("what is measured", "A measurement, and no more of it."),
    ("Haus", "In den Häusern sind die Fenster mit den Läden zu."),
    ("fenster der häuser", "Das Haus hat ein Fenster und eine Tür."),
    ("étude", "Les études de la mer ont été faites par nous."),
    ("etudes", "L'étude de la mer et du vent est dans ce livre."),
    ("canción", "Las canciones de la tierra son de todos."),
    ("самолёты", "Новый самолет был и в небе, и на земле."),
    ("مكتبة", "في المكتبة كتب من كل بلد الى كل بلد"),
    ("Switchyard", "Das ist ein Text über Switchyard und die Läufe."),
    ("गाड़ी", "वह गाड़ी तेज़ है"),
]
"""Queries, and a text of which each finds its words."""


async def put_texts(index: ChunkIndex) -> None:
    stored_chunks = [Chunk(chunk_id(name, 0), name, 0, 1, text) for name, text in TEXTS.items()]
    await index.put("Title", stored_chunks, [make_vector(1)] * len(stored_chunks))


async def test_a_chunk_is_found_by_its_words(url: str):
    async with open_table(url) as index:
        await put_texts(index)
        for query, first in FIRST_BY_QUERY.items():
            matches = await index.keyword_search(query, 10)
            assert matches[0].chunk == Chunk(chunk_id(first, 0), first, 0, 1, TEXTS[first]), query
            assert all(match.relevance > 0 for match in matches), query


async def test_words_are_found_however_they_are_written(url: str):
    async with open_table(url) as index:
        names = [f"doc-{number}" for number in range(len(SPELLINGS))]
        stored_chunks = [
            Chunk(chunk_id(name, 0), name, 0, 1, text)
            for name, (_, text) in zip(names, SPELLINGS, strict=True)
        ]
        await index.put("Title", stored_chunks, [make_vector(1)] * len(stored_chunks))
        for name, (query, text) in zip(names, SPELLINGS, strict=True):
            matches = await index.keyword_search(query, 10, document_ids=[name])
            assert [match.chunk.text for match in matches] == [text], query


async def test_candidates_are_near_or_have_the_words_and_all_are_compared_with_the_vector(url: str):
    async with open_table(url) as index:
        read_texts = ["of one tide", "of one tide", "of one tide", "of one tide", "else", "other"]
        stored_chunks = [
            Chunk(chunk_id("a", n), "a", n, 1, text) for n, text in enumerate(read_texts)
        ]
        vectors = [
            make_vector(0),
            make_vector(1),
            make_vector(3),
            [0.0] * DIMENSIONS,
            make_vector(0.5),
            make_vector(1.5),
        ]
        await index.put("Title", stored_chunks, vectors)
        candidates = await index.candidates(make_vector(0.2), "tide", 4)
        matches_by_key = await index.read_candidates([each.key for each in candidates])
        assert {match.chunk.index: match.chunk for match in matches_by_key.values()} == dict(
            enumerate(stored_chunks)
        )
        numbers = {each.key: matches_by_key[each.key].chunk.index for each in candidates}
        assert {numbers[each.key]: each.similarity for each in candidates} == {
            0: pytest.approx(math.cos(0.2)),
            1: pytest.approx(math.cos(0.8)),
            2: pytest.approx(math.cos(2.8)),
            3: 0.0,
            4: pytest.approx(math.cos(0.3)),
            5: pytest.approx(math.cos(1.3)),
        }
        assert {numbers[each.key] for each in candidates if each.relevance} == {0, 1, 2, 3}
        assert len(candidates) == 6
        without_vector = await index.candidates([0.0] * DIMENSIONS, "tide", 10)
        assert [each.similarity for each in without_vector] == [0.0] * 4
        assert await index.candidates(make_vector(0), "tide", 10, document_ids=[]) == []
        matches_within = await index.candidates(make_vector(0), "tide", 10, document_ids=["b"])
        assert matches_within == []


async def test_candidates_that_were_deleted_meanwhile_are_not_shown(url: str):
    async with open_table(url) as index:
        await put_chunks(index, "a", 2)
        await put_chunks(index, "b", 2)
        candidates = await index.candidates(make_vector(0), "text", 10)
        await index.delete_document("a")
        matches_by_key = await index.read_candidates([each.key for each in candidates])
        assert [match.chunk.document_id for match in matches_by_key.values()] == ["b", "b"]
        assert await index.read_candidates([]) == {}


async def test_of_equally_relevant_chunks_the_first_in_the_table_are_found(tmp_path: Path):
    async with open_table(str(tmp_path / "index")) as index:
        for part in range(3):
            stored_chunks = [
                Chunk(chunk_id("a", n), "a", n, 1, f"of one tide {'' if n % 7 else 'tide'}")
                for n in range(part * 60, part * 60 + 60)
            ]
            await index.put("Title", stored_chunks, [make_vector(1)] * len(stored_chunks))
            await index.compact()
        assert isinstance(index, LanceTable)
        rows = await index._table.query().select(["index"]).with_row_id().to_list()
        stored_order = [row["index"] for row in sorted(rows, key=lambda row: row["_rowid"])]
        expected = sorted([*range(0, 180, 7), *[n for n in stored_order if n % 7][:3]])
        matches = await index.keyword_search("tide", len(expected))
        assert sorted(match.chunk.index for match in matches) == expected
        candidates = await index.candidates([0.0] * DIMENSIONS, "tide", len(expected))
        matches_by_key = await index.read_candidates([each.key for each in candidates])
        assert sorted(match.chunk.index for match in matches_by_key.values()) == expected


async def test_chunks_deleted_during_a_search_are_replaced_by_the_next_ones(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    embedder = HashedEmbedder(DIMENSIONS)
    async with open_table(url) as index:
        await index.put("Title", make_chunks("a", 3), embedder.embed_now(["text"] * 3))
        await put_chunks(index, "b", 4)
        assert "a" in {hit.document_id for hit in await search(index, embedder, "text", 4)}
        candidates = type(index).candidates

        async def find_and_delete(*args: Any, **options: Any) -> Any:
            candidates_found = await candidates(*args, **options)
            await index.delete_document("a")
            return candidates_found

        monkeypatch.setattr(type(index), "candidates", find_and_delete)
        hits = await search(index, embedder, "text", 4, mode=SearchMode.HYBRID)
    assert [hit.document_id for hit in hits] == ["b"] * 4


async def test_words_are_searched_for_within_given_documents(url: str):
    async with open_table(url) as index:
        await put_texts(index)
        assert {match.chunk.document_id for match in await index.keyword_search("water", 10)} == {
            "moon",
            "bread",
            "tea",
        }
        matches_within = await index.keyword_search("water", 10, document_ids=["tea", "zh"])
        assert [match.chunk.document_id for match in matches_within] == ["tea"]
        assert await index.keyword_search("water", 10, document_ids=[]) == []
        assert len(await index.keyword_search("water", 1)) == 1
        assert {match.chunk.document_id for match in await index.keyword_search("of the", 10)} >= {
            "moon"
        }
        assert await index.keyword_search("…", 10) == []


async def test_an_index_from_before_words_were_normalised_is_used_and_reported(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed", embed_dimensions=64)
    embedder = embedder_for(settings)
    with monkeypatch.context() as old_version:
        old_version.setattr(
            "switchyard.services.pipeline.index.lance_store.table_schema",
            partial(lance_table.table_schema, has_words=False),
        )
        old_version.setattr("switchyard.services.pipeline.index.lance_store.WORDS_COLUMN", "text")
        old_version.setattr("switchyard.services.pipeline.index.lance_store.TOKENIZER_VERSION", 0)
        old_version.setattr(
            "switchyard.services.pipeline.index.postgres_table.TOKENIZER_VERSION", 0
        )
        async with open_table(url, embedder.name, 64) as index:
            pass
    async with open_table(url, embedder.name, 64) as index:
        document_chunks = [Chunk(chunk_id("a", 0), "a", 0, 1, "Every day¹² counts.")]
        await index.put("Title", document_chunks, await embedder.embed(["Every day¹² counts."]))
        assert len(await index.keyword_search("day", 10)) == 1
    _, check = await check_index(settings)
    assert (check.finding, check.remedy) == (Finding.INDEX_WORDS, "jobctl index rebuild --force")
    async with open_index(settings) as opened_index:
        state = await begin_rebuild(opened_index, embedder, force=True)
        assert state.building is not None
        assert await continue_rebuild(opened_index, state.building, lambda: False)
        async with opened_index.open_active() as (index, _):
            assert len(await index.keyword_search("12", 10)) == 1
    (check,) = await check_index(settings)
    assert check.status == "ok"
