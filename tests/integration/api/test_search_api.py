"""Search over HTTP in each mode: hits, highlights, filters, and errors of the index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.open_index import open_index
from tests.integration.api.background_api import http_client, in_background
from tests.integration.api.document_server import send, serving

TEXTS = {
    "tides": "# Tides\n\nThe tide rises twice a day. The Moon pulls at the water of the ocean.",
    "bread": "# Bread\n\nThe dough rises overnight. Flour, water and salt make a loaf.",
    "cafe": "# Orte\n\nDas Café am Markt ist alt. Dort wird über Gezeiten geredet.",
    "chinese": "# 潮汐\n\n潮汐每天两次上升。月亮吸引海水。",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def _address(directory: Path) -> Iterator[str]:
    with in_background(_with_texts(directory)) as opened:
        yield str(opened.base_url)


@asynccontextmanager
async def _with_texts(directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(Settings(data_dir=directory, amqp_url=None)) as opened:
        for name, text in TEXTS.items():
            answer = await send(opened, text.encode(), name=f"{name}.md", source=name)
            assert answer.status_code == 201, answer.text
        yield opened


@pytest.fixture
async def client(_address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a server whose index has the texts."""
    async with http_client(_address) as opened:
        yield opened


async def find(client: httpx.AsyncClient, query: str, **body: Any) -> list[dict[str, Any]]:
    answer = await client.post("/search", json={"query": query, **body})
    assert answer.status_code == 200, answer.text
    hits: list[dict[str, Any]] = answer.json()["hits"]
    return hits


def titles(hits: list[dict[str, Any]]) -> list[str]:
    return [hit["title"] for hit in hits]


def highlighted_words(hit: dict[str, Any]) -> list[str]:
    return [hit["snippet"][start:end] for start, end in hit["highlights"]]


@pytest.mark.parametrize("mode", ["vector", "keyword", "hybrid"])
async def test_the_best_matching_document_comes_first(client: httpx.AsyncClient, mode: str):
    hits = await find(client, "Moon pulls water", mode=mode)
    assert titles(hits)[0] == "Tides"
    assert hits[0]["page"] == 1
    assert hits[0]["score"] == max(hit["score"] for hit in hits) > 0
    assert highlighted_words(hits[0]) == ["Moon", "pulls", "water"]


@pytest.mark.parametrize(
    ("query", "title", "words"),
    [
        ("CAFE", "Orte", ["Café"]),
        ("über Gezeiten Markt", "Orte", ["Gezeiten", "Markt"]),
        ("潮汐", "潮汐", ["潮汐"]),
        ("月亮", "潮汐", ["月亮"]),
        ("the loaf", "Bread", ["loaf"]),
    ],
)
async def test_words_are_found_whatever_their_script_case_and_accents(
    client: httpx.AsyncClient, query: str, title: str, words: list[str]
):
    hits = await find(client, query, mode="keyword")
    assert titles(hits) == [title]
    assert set(highlighted_words(hits[0])) == set(words)


async def test_keywords_find_only_documents_that_contain_them(client: httpx.AsyncClient):
    assert await find(client, "zeppelin", mode="keyword") == []
    assert sorted(titles(await find(client, "water", mode="keyword"))) == ["Bread", "Tides"]


async def test_hybrid_ranks_a_hit_of_both_modes_first(client: httpx.AsyncClient):
    hits = await find(client, "dough flour salt", mode="hybrid")
    assert hits[0]["title"] == "Bread"
    assert 0.5 < hits[0]["score"] <= 1
    assert all(hit["score"] < hits[0]["score"] / 2 for hit in hits[1:])


async def test_a_query_without_a_match_has_no_hits(client: httpx.AsyncClient):
    assert await find(client, "xyzzy") == []


async def test_hits_are_filtered_by_the_time_of_ingestion(client: httpx.AsyncClient):
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    for since, until, is_found in (
        (now - hour, None, True),
        (now + hour, None, False),
        (None, now + hour, True),
        (None, now - hour, False),
        (now - hour, now + hour, True),
    ):
        filters = {
            "since": since and since.isoformat(),
            "until": until and until.isoformat(),
            "source": "tides",
        }
        hits = await find(client, "Moon", filters=filters)
        assert bool(hits) == is_found, filters
    bad_answer = await client.post("/search", json={"query": "Moon", "filters": {"since": "soon"}})
    assert bad_answer.status_code == 422


async def test_operators_see_the_embedder_of_the_index(client: httpx.AsyncClient):
    index_state = (await client.get("/admin/index")).json()
    assert index_state["wanted"] == "wordllama-1-256"
    assert [(each["role"], each["embedder"]) for each in index_state["generations"]] == [
        ("active", "wordllama-1-256")
    ]
    assert index_state["generations"][0]["chunks"] >= len(TEXTS)


async def test_an_index_is_searched_with_its_own_embedder_whatever_the_settings_say(
    client: httpx.AsyncClient, directory: Path
):
    settings = Settings(data_dir=directory, amqp_url=None, embed_offline="hashed")
    async with serving(settings) as other:
        assert titles(await find(other, "Moon")) == titles(await find(client, "Moon")) != []


async def test_an_index_of_an_unavailable_embedder_names_the_setting(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, amqp_url=None)
    async with (
        open_index(settings) as index,
        index.store.table(Generation("chunks", "a-model-256", 256)),
    ):
        pass
    async with serving(settings) as client:
        answer = await client.post("/search", json={"query": "Moon"})
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/search-away")
        assert "JOBS_EMBED_BASE_URL" in answer.json()["detail"]


@pytest.mark.parametrize("mode", ["vector", "keyword", "hybrid"])
async def test_filters_exclude_all_other_documents(client: httpx.AsyncClient, mode: str):
    all_hits = await find(client, "water", mode=mode)
    tides_id = next(hit["document_id"] for hit in all_hits if hit["title"] == "Tides")
    for filters, expected in (
        ({"document_ids": [tides_id]}, ["Tides"]),
        ({"source": "bread"}, ["Bread"]),
        ({"source": "bread", "document_ids": [tides_id]}, []),
        ({"source": "nowhere"}, []),
        ({"document_ids": []}, []),
        ({"document_ids": ["unknown"]}, []),
    ):
        assert titles(await find(client, "water", mode=mode, filters=filters)) == expected, filters


async def test_limit_and_hits_per_document_are_observed(client: httpx.AsyncClient):
    assert len(await find(client, "water rises", limit=1)) == 1
    hits = await find(client, "water rises", per_document=1)
    assert len({hit["document_id"] for hit in hits}) == len(hits)


@pytest.mark.parametrize("mode", ["vector", "keyword", "hybrid"])
@pytest.mark.parametrize("query", ['"', "a\"b'c", "((", "+-*/\\^~:?", "\x00", "😀", "' OR 1=1 --"])
async def test_no_character_of_a_query_is_syntax(client: httpx.AsyncClient, mode: str, query: str):
    await find(client, query, mode=mode)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": ""},
        {"query": "x" * 2001},
        {"query": "x", "limit": 0},
        {"query": "x", "limit": 101},
        {"query": "x", "mode": "psychic"},
        {"query": "x", "filters": {"lane": "hot"}},
        {"query": "x", "filters": {"document_ids": ["' OR 1=1"]}},
        {"query": "x", "filters": {"source": "a\x00b"}},
    ],
)
async def test_an_invalid_search_is_refused(client: httpx.AsyncClient, body: dict):
    answer = await client.post("/search", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid")


@pytest.mark.parametrize("mode", ["vector", "keyword", "hybrid"])
async def test_an_empty_index_finds_nothing(tmp_path: Path, mode: str):
    async with serving(Settings(data_dir=tmp_path, amqp_url=None)) as client:
        assert await find(client, "anything", mode=mode) == []


async def test_the_answer_says_that_the_embedder_is_unreachable(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, amqp_url=None, embed_base_url="http://127.0.0.1:9/v1")
    async with serving(settings) as other:
        answer = await other.post("/search", json={"query": "Moon"})
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/search-away")
        assert answer.headers["retry-after"]
        assert "127.0.0.1:9" not in answer.text


async def test_an_old_index_without_a_word_index_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def skip(table: object, column: str) -> None: ...

    settings = Settings(data_dir=tmp_path, amqp_url=None)
    async with serving(settings) as client:
        with monkeypatch.context() as patch:
            patch.setattr("switchyard.services.pipeline.index.lance_store.add_word_index", skip)
            await send(client, TEXTS["tides"].encode(), name="tides.md")
        assert titles(await find(client, "Moon", mode="keyword")) == ["Tides"]
        await send(client, TEXTS["bread"].encode(), name="bread.md")
        assert sorted(titles(await find(client, "water", mode="keyword"))) == ["Bread", "Tides"]
