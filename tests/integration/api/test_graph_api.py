"""The knowledge graph over HTTP, by the client, and by `jobctl`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest

from switchyard.api.client import AsyncClient, NotFound
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.graph.upserts import upsert_document
from tests.integration.api.background_api import http_client, in_background
from tests.integration.api.document_server import send, serving
from tests.support.commands import jobctl

HOSTILE_TITLE = '</text><script>alert("x")</script> & \x1b[2J of waves on water'
ARXIV_ENTRY = {
    "id": "2001.00001",
    "authors": ["Jane Roe"],
    "categories": ["cs.DB"],
    "published": "2020",
}
PAPERS: dict[str, list[str]] = {
    "a": ["10.1234/b", "10.1234/c"],
    "z": ["10.1234/b", "10.1234/c", "10.1234/e"],
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("graph"), amqp_url=None)


@pytest.fixture(scope="module")
def _address(settings: Settings) -> Iterator[str]:
    with in_background(_with_papers(settings)) as opened:
        yield str(opened.base_url)


@pytest.fixture
async def client(_address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a server whose graph has a few papers."""
    async with http_client(_address) as opened:
        yield opened


@asynccontextmanager
async def _with_papers(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(settings) as opened, await Ledger.open(settings.ledger_url) as ledger:
        for name, cited in PAPERS.items():
            references = [{"doi": doi, "title": HOSTILE_TITLE} for doi in cited]
            about: dict[str, Any] = {"entry": ARXIV_ENTRY} if name == "a" else {}
            await upsert_document(
                ledger, name, about, f"On {name}", references={"references": references}
            )
        yield opened


async def test_the_client_asks_the_graph(client: httpx.AsyncClient):
    async with AsyncClient(str(client.base_url)) as graph:
        node = await graph.graph_node("arxiv:2001.00001")
        assert (node.kind, node.documents, node.year) == ("document", ["a"], 2020)
        assert "document:a" not in node.keys
        assert (await graph.graph_node("document:a")).key == node.key
        cited = [each async for each in graph.neighbours("a", kinds=["cites"], direction="out")]
        assert {each.node.key for each in cited} == {"doi:10.1234/b", "doi:10.1234/c"}
        page = await graph.neighbours_page("a", limit=1)
        assert page.next_cursor is not None
        near = await graph.neighbourhood("a", depth=2, kinds=["cites"])
        assert [each.distance for each in near.nodes] == [0, 1, 1, 2]
        paths = await graph.graph_paths("a", "z", kinds=["cites"], longest=2)
        assert len(paths.paths) == 2
        assert [len(path.edges) for path in paths.paths] == [2, 2]
        assert [each.shared for each in (await graph.cocited("doi:10.1234/b")).works] == [2, 1]
        assert [each.node.documents for each in (await graph.coupled("a")).works] == [["z"]]
        most_cited = [each async for each in graph.most_cited(kind="work", limit=2)]
        assert [each.cited for each in most_cited] == [2, 2, 1]
        assert [each async for each in graph.most_cited(by_rank=True)] == []  # not ranked yet
        whole_graph = await graph.graph()
        assert (whole_graph.nodes["document"], whole_graph.edges["cites"], whole_graph.ranking) == (
            2,
            5,
            None,
        )
        with pytest.raises(NotFound, match="no node doi:10"):
            await graph.graph_node("doi:10.1234/nobody")


@pytest.mark.parametrize(
    "path",
    [
        "/graph/node",
        "/graph/node?node=%00",
        "/graph/neighbours?node=a&limit=1001",
        "/graph/neighbours?node=a&kind=eats",
        "/graph/neighbours?node=a&cursor=bm9uc2Vuc2U=",
        "/graph/neighbourhood?node=a&depth=5",
        "/graph/neighbourhood?node=a&limit=501",
        "/graph/paths?from=a&to=z&longest=9",
        "/graph/cited?kind=nonsense",
        "/graph/cited?cursor=WyJ4IiwxXQ==",
    ],
)
async def test_the_error_names_an_invalid_parameter(client: httpx.AsyncClient, path: str):
    answer = await client.get(path)
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"].endswith("/invalid")


async def run_command(
    settings: Settings, url: str, *arguments: str, command: str = "graph", code: int = 0
) -> str:
    environment = {"JOBS_API_URL": url, "JOBS_DATA_DIR": str(settings.data_dir), "NO_PROXY": "*"}
    process_result = await jobctl(command, *arguments, **environment)
    assert process_result.returncode == code, process_result.stderr
    assert "\x1b[2J" not in process_result.stdout
    return process_result.stdout + process_result.stderr


async def test_the_graph_at_the_terminal(
    client: httpx.AsyncClient, settings: Settings, tmp_path: Path
):
    async def graph(*arguments: str, code: int = 0) -> str:
        return await run_command(settings, str(client.base_url), *arguments, code=code)

    node = json.loads(await graph("show", "a", "--json"))
    assert (node["key"], node["cited"]) == ("arxiv:2001.00001", 0)
    assert "arxiv:2001.00001" in await graph("show", "a")
    assert "recompute_graph" in await graph("show")
    assert "topic:cs.db" in await graph("neighbours", "a")
    assert "document:z" in await graph("neighbours", "a", "--depth", "2", "--kind", "cites")
    assert "← cites ─" in await graph("path", "a", "z")
    assert "No path of at most" in await graph("path", "a", "z", "--kind", "about")
    assert "doi:10.1234/c" in await graph("cocited", "doi:10.1234/b")
    assert "document:z" in await graph("coupled", "a")
    assert "doi:10.1234/e" in await graph("cited")

    none = await graph("neighbours", "a", "--kind", "cites", "--direction", "in")
    assert none == "No neighbours found.\n"
    assert await graph("cocited", "a") == "No works.\n"
    png = str(tmp_path / "around.png")
    assert "must end with .svg" in await graph("draw", "a", "--out", png, code=2)

    picture = tmp_path / "around.svg"
    assert "5 nodes" in await graph("draw", "a", "--out", str(picture))
    svg = ET.fromstring(picture.read_text())
    assert not list(svg.iter("{http://www.w3.org/2000/svg}script"))
    labels = [each.text or "" for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert any(label.startswith('</text><script>alert("x")') for label in labels)

    graphml = tmp_path / "graph.graphml"
    assert "7 nodes, 7 edges" in await graph("export", str(graphml))
    nodes = ET.fromstring(graphml.read_text())
    assert len(list(nodes.iter("{http://graphml.graphdrawing.org/xmlns}node"))) == 7
    parquet = tmp_path / "edges.parquet"
    assert "7 edges" in await graph("export", str(parquet))
    import pyarrow.parquet as pq  # it starts threads: see tests/support/forks.py

    rows = pq.read_table(parquet).to_pylist()
    assert {
        "source": "document:z",
        "target": "doi:10.1234/e",
        "kind": "cites",
        "weight": 1.0,
        "provenance": "reference",
    } in rows
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "around.svg",
        "edges.parquet",
        "graph.graphml",
    ]


async def test_a_search_is_restricted_to_documents_that_cite_a_work_or_that_it_cites(
    client: httpx.AsyncClient, settings: Settings
):
    ids = []
    for text in ("# Waves\n\nA wave of the sea rises.", "# Sand\n\nA wave of sand rises."):
        answer = await send(client, text.encode(), name="wave.md")
        ids.append(str(answer.json()["document_id"]))
    async with await Ledger.open(settings.ledger_url) as ledger:
        entry = {"entry": {"id": "2002.00002", "authors": ["John Doe"], "published": "2020"}}
        cited = {"references": [{"doi": "10.1234/q"}]}
        await upsert_document(ledger, ids[0], entry, "Waves", references=cited)
        cited = {"references": [{"arxiv_id": "2002.00002"}]}
        await upsert_document(ledger, ids[1], {}, "Sand", references=cited)

    async def found_ids(**filters: Any) -> list[str]:
        async with AsyncClient(str(client.base_url)) as opened:
            return [hit.document_id for hit in (await opened.search("wave", **filters)).hits]

    assert set(await found_ids()) == set(ids)
    assert await found_ids(cites="doi:10.1234/q") == [ids[0]]
    assert await found_ids(cites="arxiv:2002.00002") == [ids[1]]
    assert await found_ids(cited_by=ids[1]) == [ids[0]]
    assert await found_ids(cited_by=ids[1], cites="doi:10.1234/q") == [ids[0]]
    assert await found_ids(cited_by=ids[0]) == []
    answer = await client.post("/search", json={"query": "x", "filters": {"cites": "doi:none"}})
    assert answer.status_code == 422
    assert "the graph has no node 'doi:none'" in answer.text
    url = str(client.base_url)
    output = await run_command(settings, url, "wave", "--cited-by", ids[1], command="search")
    assert ids[0] in output
    assert ids[1] not in output
