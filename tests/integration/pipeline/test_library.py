"""Links between documents, and search: on all samples, ingested once for the tests of this file."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.index.wordllama import WordllamaEmbedder
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.graph import Direction
from switchyard.services.pipeline.samples.articles import write_samples
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import find_hits, ingest, read_result
from tests.support.ledgers import make_ledger


@pytest.fixture(scope="module")
def stored_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Ingest all samples, then link each once more, now that all are there. Returns their ids by
    file name."""
    folder = tmp_path_factory.mktemp("library")

    async def ingest_samples() -> dict[str, str]:
        settings = Settings(data_dir=folder / "data")
        await make_ledger(settings.ledger_url)
        async with await Ledger.open(settings.ledger_url) as ledger:
            pipeline = Pipeline(settings, ledger)
            paths = write_samples(folder / "samples")
            ids = {path.stem: await ingest(pipeline, {"path": str(path)}) for path in paths}
            for document_id in ids.values():
                await pipeline.run("link_content", {"document_id": document_id, "force": True})
        return ids

    with ThreadPoolExecutor(1) as pool:  # a thread with an event loop of its own
        return folder / "data", pool.submit(asyncio.run, ingest_samples()).result()


@pytest.fixture
def library(stored_library: tuple[Path, dict[str, str]], settings: Settings) -> dict[str, str]:
    """Copy the ingested samples for one test, which may change them. Returns their ids by file
    name."""
    folder, ids = stored_library
    shutil.copytree(folder, settings.data_dir)
    return ids


@pytest.fixture
async def ledger(library: dict[str, str], settings: Settings) -> AsyncIterator[Ledger]:
    assert library
    async with await Ledger.open(settings.ledger_url) as ledger:
        yield ledger


async def test_documents_on_one_subject_are_linked(pipeline: Pipeline, library: dict[str, str]):
    names = {document_id: name for name, document_id in library.items()}
    links = {
        name: {names[link["document_id"]] for link in read_result(pipeline, document_id)["links"]}
        for name, document_id in library.items()
    }
    assert links == {
        "ocean-tides": {"tidal-power"},
        "tidal-power": {"ocean-tides", "wind-turbines", "storing-electricity"},
        "wind-turbines": {"tidal-power", "storing-electricity"},
        "storing-electricity": {"tidal-power", "wind-turbines"},
        "honeybees": {"flowers-and-pollinators"},
        "flowers-and-pollinators": {"honeybees"},
        "printing-press": {"making-paper"},
        "making-paper": {"printing-press"},
    }


async def test_links_are_edges_in_the_ledger(pipeline: Pipeline, library: dict[str, str]):
    assert pipeline.ledger is not None
    bees_id, flowers_id = library["honeybees"], library["flowers-and-pollinators"]
    neighbours = await PipelineLedger(pipeline.ledger).graph_reads.graph_neighbours(bees_id)
    assert neighbours is not None
    assert {(each.direction, each.node.documents, each.edge.kind) for each in neighbours.items} == {
        ("out", (flowers_id,), "similar"),
        ("in", (flowers_id,), "similar"),
    }
    assert neighbours.items[0].edge.weight == neighbours.items[1].edge.weight  # likeness is mutual


async def find_similar(ledger: Ledger, document_id: str) -> list[str]:
    page = await PipelineLedger(ledger).graph_reads.graph_neighbours(
        document_id, direction=Direction.OUT
    )
    assert page is not None
    return [each.node.key for each in page.items]


async def test_relinking_replaces_edges(pipeline: Pipeline, library: dict[str, str]):
    assert pipeline.ledger is not None
    bees_id = library["honeybees"]
    payload = {"document_id": bees_id, "force": True, "top_k": 3, "threshold": -1}
    await pipeline.run("link_content", payload)
    assert len(await find_similar(pipeline.ledger, bees_id)) == 3
    await pipeline.run("link_content", payload | {"threshold": 1})
    assert await find_similar(pipeline.ledger, bees_id) == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Why are there two high tides a day?", "ocean-tides"),
        ("how bees dance", "honeybees"),
        ("batteries and hydrogen", "storing-electricity"),
        ("movable type and letters", "printing-press"),
        ("pulp of wood and rags", "making-paper"),
        ("ultraviolet lines that lead to nectar", "flowers-and-pollinators"),
    ],
)
async def test_search_finds_the_document_that_answers(
    pipeline: Pipeline, library: dict[str, str], query: str, expected: str
):
    hits = await find_hits(pipeline, query)
    assert hits[0].document_id == library[expected]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_a_hit_shows_the_passage_with_the_answer(pipeline: Pipeline, library: dict[str, str]):
    hit = (await find_hits(pipeline, "Karl von Frisch deciphered the waggle dance"))[0]
    assert hit.title == "The Working Life of the Honeybee"
    assert "Karl von Frisch deciphered this waggle dance" in hit.snippet
    assert len(hit.snippet) <= 280
    assert hit.page == 1
    assert hit.document_id == library["honeybees"]


@pytest.mark.usefixtures("library")
async def test_search_keeps_to_its_limits(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch):
    assert len(await find_hits(pipeline, "water", 2)) == 2
    hits = await find_hits(pipeline, "water and electricity", 5, per_document=1)
    assert len({hit.document_id for hit in hits}) == len(hits) == 5
    assert await find_hits(pipeline, "the of ?!") == []
    for limit in (0, 101):
        with pytest.raises(ValueError, match="limit"):
            await find_hits(pipeline, "water", limit)
    calibration = replace(WordllamaEmbedder().calibration, min_relevance=0.99)
    monkeypatch.setattr(WordllamaEmbedder, "calibration", calibration)
    assert await find_hits(pipeline, "water") == []
