"""Documents in any order, any number of times, make one graph."""

import asyncio
import itertools
from typing import Any

import pytest
from sqlalchemy import Engine, event

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import InvalidCursor
from switchyard.services.pipeline.graph.descriptions import (
    citation_edges,
    describe_document,
    similarity_edges,
)
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.graph import Direction, EdgeKind, NodeKind

TIDES = {
    "id": "2001.00001",
    "authors": ["Jane Roe"],
    "published": "2020-01-01",
    "doi": "10.1234/TIDES",
}
WAVES = {"id": "2001.00002", "authors": ["Max Born"], "published": "2020-02-01"}
"""Catalogue entries of two papers."""
SEA: dict[str, Any] = {
    "title": "The sea and all that is in it",
    "year": 1999,
    "authors": [{"family": "Doe", "given": "John"}],
    "container": "Journal of Water, 12",
}
"""A reference to a work."""


async def put_document(
    ledger: Ledger,
    name: str,
    entry: dict[str, Any] | None = None,
    references: list[dict[str, Any]] | None = None,
    *,
    title: str | None = None,
) -> None:
    document = describe_document(name, title=title or f"On {name}", entry=entry)
    edges = {EdgeKind.WRITTEN_BY: [], EdgeKind.PUBLISHED_IN: [], EdgeKind.ABOUT: []}  # type: ignore[var-annotated]
    for edge in document.edges:
        edges[edge.kind].append(edge)
    if references is not None:
        edges[EdgeKind.CITES] = citation_edges(references)
    await PipelineLedger(ledger).graph.put_in_graph(document, edges)


async def read_edges(ledger: Ledger, *kinds: str) -> list[tuple[str, str, str]]:
    stored_edges, _ = await PipelineLedger(ledger).graph_reads.graph_edges_after(None, 1000)
    return sorted(
        (edge.source, edge.kind, edge.target)
        for edge in stored_edges
        if not kinds or edge.kind in kinds
    )


async def read_nodes(ledger: Ledger) -> dict[str, tuple[str, int]]:
    stored_nodes = await PipelineLedger(ledger).graph_reads.graph_nodes_after(0, 1000)
    return {node.key: (str(node.kind), node.cited) for _, node in stored_nodes}


async def test_two_papers_that_cite_each_other_get_one_edge_each_way(ledger: Ledger) -> None:
    for _ in range(2):  # the second time nothing changes
        await put_document(
            ledger, "tides", TIDES, [{"arxiv_id": "2001.00002v3"}, {"arxiv_id": "2001.00002"}]
        )
        await put_document(ledger, "waves", WAVES, [{"doi": "https://doi.org/10.1234/tides"}])
        assert await read_edges(ledger, "cites") == [
            ("arxiv:2001.00002", "cites", "doi:10.1234/tides"),
            ("doi:10.1234/tides", "cites", "arxiv:2001.00002"),
        ]
        assert await PipelineLedger(ledger).graph_reads.graph_node("doi:10.1234/TIDES") is not None
        node = await PipelineLedger(ledger).graph_reads.graph_node("waves")
        assert node is not None
        assert (node.kind, node.cited, node.documents) == (NodeKind.DOCUMENT, 1, ("waves",))


async def test_a_document_takes_as_many_statements_whether_it_cites_three_works_or_thirty(
    ledger: Ledger,
) -> None:
    statements: list[str] = []

    def record_statement(*description: Any) -> None:
        statements.append(description[2])

    async def count_statements(name: str, number: int) -> int:
        works = [
            {**SEA, "title": f"{name} and number {index} of the seas"} for index in range(number)
        ]
        event.listen(Engine, "before_cursor_execute", record_statement)
        try:
            await put_document(ledger, name, references=works)
        finally:
            event.remove(Engine, "before_cursor_execute", record_statement)
        statement_count = len(statements)
        statements.clear()
        return statement_count

    await put_document(ledger, "first", references=[SEA])
    assert await count_statements("few", 3) == await count_statements("many", 30)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_whatever_comes_first_the_graph_is_the_same(
    ledger: Ledger, order: tuple[int, ...]
) -> None:
    descriptions = [
        lambda: put_document(
            ledger, "tides", TIDES, [SEA, {"arxiv_id": "2001.00002", "title": "On waves"}]
        ),
        lambda: put_document(ledger, "waves", WAVES, [SEA | {"doi": "10.1234/sea"}]),
        lambda: put_document(ledger, "sea", None, [{"doi": "10.1234/tides"}], title=SEA["title"]),
    ]
    for index in order:
        await descriptions[index]()
    assert await read_edges(ledger, "cites") == [
        ("arxiv:2001.00002", "cites", "doi:10.1234/sea"),
        ("doi:10.1234/sea", "cites", "doi:10.1234/tides"),
        ("doi:10.1234/tides", "cites", "arxiv:2001.00002"),
        ("doi:10.1234/tides", "cites", "doi:10.1234/sea"),
    ]
    assert {key: count for key, (_, count) in (await read_nodes(ledger)).items() if count} == {
        "doi:10.1234/sea": 2,
        "doi:10.1234/tides": 1,
        "arxiv:2001.00002": 1,
    }
    sea = await PipelineLedger(ledger).graph_reads.graph_node("sea")
    assert sea is not None
    assert sea.documents == ("sea",)
    assert "venue:journal of water" in await read_nodes(ledger)


async def test_a_work_that_is_cited_becomes_the_document_when_it_comes(ledger: Ledger) -> None:
    await put_document(ledger, "tides", TIDES, [SEA])
    work = await PipelineLedger(ledger).graph_reads.graph_node(
        "title:the sea and all that is in it|1999|doe"
    )
    assert work is not None
    assert (work.kind, work.label, work.provenance) == (NodeKind.WORK, SEA["title"], "reference")
    await put_document(ledger, "sea", title="The Sea, and All that is in it.")
    page = await PipelineLedger(ledger).graph_reads.graph_neighbours(
        "tides", kinds=[EdgeKind.CITES]
    )
    assert page is not None
    (cited,) = page.items
    assert (cited.direction, cited.node.documents) == (Direction.OUT, ("sea",))
    assert (cited.node.kind, cited.node.provenance) == (NodeKind.DOCUMENT, "document")


async def test_works_become_one_when_a_doi_becomes_known(ledger: Ledger) -> None:
    await put_document(ledger, "one", None, [SEA])
    await put_document(ledger, "two", None, [{"doi": "10.1234/sea"}])
    assert len([kind for kind, _ in (await read_nodes(ledger)).values() if kind == "work"]) == 2
    await put_document(ledger, "one", None, [SEA | {"doi": "10.1234/sea"}])
    stored_nodes = await read_nodes(ledger)
    assert stored_nodes["doi:10.1234/sea"] == ("work", 2)
    assert len([kind for kind, _ in stored_nodes.values() if kind == "work"]) == 1
    assert ("doi:10.1234/sea", "written_by", "author:doe john") in await read_edges(ledger)
    by_old_key = await PipelineLedger(ledger).graph_reads.graph_node(
        "title:the sea and all that is in it|1999|doe"
    )
    assert by_old_key is not None
    assert by_old_key.key == "doi:10.1234/sea"


async def test_works_with_two_dois_are_two_whatever_their_titles(ledger: Ledger) -> None:
    await put_document(
        ledger, "one", None, [SEA | {"doi": "10.1234/a"}, SEA | {"doi": "10.1234/b"}]
    )
    assert await read_edges(ledger, "cites") == [
        ("document:one", "cites", "doi:10.1234/a"),
        ("document:one", "cites", "doi:10.1234/b"),
    ]


async def test_documents_with_one_title_stay_two(ledger: Ledger) -> None:
    for name in ("report-1", "report-2"):
        await put_document(ledger, name, title="Annual report of the water works")
    assert set(await read_nodes(ledger)) == {"document:report-1", "document:report-2"}


async def test_two_documents_of_one_paper_are_one_node_until_one_goes(ledger: Ledger) -> None:
    await put_document(ledger, "tides", TIDES, [SEA])
    await put_document(ledger, "copy", TIDES, [SEA])
    node = await PipelineLedger(ledger).graph_reads.graph_node("doi:10.1234/tides")
    assert node is not None
    assert node.documents == ("copy", "tides")
    sea = "title:the sea and all that is in it|1999|doe"
    assert (await read_nodes(ledger))[sea] == ("work", 1)
    assert await PipelineLedger(ledger).graph.drop_from_graph("tides")
    assert (await read_nodes(ledger))[sea] == ("work", 1)
    assert await PipelineLedger(ledger).graph.drop_from_graph("copy")
    assert await read_nodes(ledger) == {}


async def test_a_document_that_changes_loses_its_stale_edges(ledger: Ledger) -> None:
    await put_document(ledger, "tides", TIDES, [SEA, {"doi": "10.1234/old"}])
    await put_document(ledger, "waves", WAVES, [{"doi": "10.1234/old"}])
    await put_document(ledger, "tides", TIDES, [{"doi": "10.1234/new"}])
    stored_nodes = await read_nodes(ledger)
    assert stored_nodes["doi:10.1234/old"] == ("work", 1)
    assert stored_nodes["doi:10.1234/new"] == ("work", 1)
    assert "author:doe john" not in stored_nodes  # nobody cites the sea any more
    await put_document(ledger, "tides", TIDES)  # its references were not looked at this time
    assert ("doi:10.1234/tides", "cites", "doi:10.1234/new") in await read_edges(ledger)


async def test_a_document_that_proves_to_be_another_work_takes_its_edges_along(
    ledger: Ledger,
) -> None:
    await put_document(ledger, "waves", WAVES, [{"arxiv_id": "2001.00001"}])
    await put_document(ledger, "paper", TIDES, [{"doi": "10.1234/x"}])
    await put_document(ledger, "paper", {"id": "2001.00009"})
    assert await read_edges(ledger, "cites") == [
        ("arxiv:2001.00002", "cites", "doi:10.1234/tides"),
        ("arxiv:2001.00009", "cites", "doi:10.1234/x"),
    ]
    stored_nodes = await read_nodes(ledger)
    assert (stored_nodes["doi:10.1234/tides"], stored_nodes["doi:10.1234/x"]) == (
        ("work", 1),
        ("work", 1),
    )


async def test_a_deleted_document_stays_as_a_work_where_others_cite_it(ledger: Ledger) -> None:
    await put_document(ledger, "tides", TIDES, [SEA])
    await put_document(ledger, "waves", WAVES, [{"arxiv_id": "2001.00001"}])
    assert await PipelineLedger(ledger).graph.drop_from_graph("tides")
    assert not await PipelineLedger(ledger).graph.drop_from_graph("tides")
    assert await read_nodes(ledger) == {
        "arxiv:2001.00002": ("document", 0),
        "author:born max": ("author", 0),
        "doi:10.1234/tides": ("work", 1),
    }


async def test_a_document_s_own_authors_count_more_than_hearsay(ledger: Ledger) -> None:
    hearsay = {
        "doi": "10.1234/tides",
        "title": "Tides",
        "authors": [{"family": "Row", "given": "J"}],
    }
    await put_document(ledger, "waves", WAVES, [hearsay])
    assert ("doi:10.1234/tides", "written_by", "author:row j") in await read_edges(ledger)
    await put_document(ledger, "tides", TIDES)
    assert [edge for edge in await read_edges(ledger, "written_by") if "tides" in edge[0]] == [
        ("doi:10.1234/tides", "written_by", "author:roe jane")
    ]
    assert "author:row j" not in await read_nodes(ledger)


async def test_concurrent_documents_make_each_node_once(ledger: Ledger) -> None:
    await asyncio.gather(
        *(put_document(ledger, f"paper-{n}", None, [SEA, {"doi": "10.1234/x"}]) for n in range(12))
    )
    stored_nodes = await read_nodes(ledger)
    assert sorted(count for kind, count in stored_nodes.values() if kind == "work") == [12, 12]
    assert len(stored_nodes) == 12 + 4


async def test_a_similar_document_is_in_the_graph_before_it_is_described(ledger: Ledger) -> None:
    document = describe_document("a", title="First")
    links = similarity_edges([{"document_id": "b", "title": "Second", "similarity": 0.5}])
    await PipelineLedger(ledger).graph.put_in_graph(document, {EdgeKind.SIMILAR: links})
    await put_document(ledger, "b", TIDES, title="The second, as it calls itself")
    page = await PipelineLedger(ledger).graph_reads.graph_neighbours("a")
    assert page is not None
    (neighbour,) = page.items
    assert (neighbour.node.label, neighbour.edge.weight) == ("The second, as it calls itself", 0.5)


async def test_neighbours_come_in_pages_by_kind_and_direction(ledger: Ledger) -> None:
    await put_document(ledger, "tides", TIDES, [{"doi": f"10.1234/{n}"} for n in range(7)])
    await put_document(ledger, "waves", WAVES, [{"doi": "10.1234/tides"}])
    keys: list[str] = []
    cursor = None
    while True:
        page = await PipelineLedger(ledger).graph_reads.graph_neighbours(
            "tides", limit=2, cursor=cursor
        )
        assert page is not None
        keys += [neighbour.node.key for neighbour in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert len(keys) == len(set(keys)) == 9
    assert keys[-1] == "arxiv:2001.00002"  # incoming edges come last
    citing = await PipelineLedger(ledger).graph_reads.graph_neighbours(
        "tides",
        kinds=["cites"],  # type: ignore[list-item]
        direction=Direction.IN,
    )
    assert citing is not None
    assert [neighbour.node.key for neighbour in citing.items] == ["arxiv:2001.00002"]
    assert await PipelineLedger(ledger).graph_reads.graph_neighbours("nobody") is None
    with pytest.raises(ValueError, match="limit"):
        await PipelineLedger(ledger).graph_reads.graph_neighbours("tides", limit=0)
    for cursor in ("x", "WzFd", "W251bGwsMSwxXQ==", "WzAsImNpdGVzIiwgOTIyMzM3MjAzNjg1NDc3NTgwOF0="):
        with pytest.raises(InvalidCursor):
            await PipelineLedger(ledger).graph_reads.graph_neighbours("tides", cursor=cursor)


async def test_neighbourhoods_paths_and_works_in_common(ledger: Ledger) -> None:
    await put_document(ledger, "a", None, [{"doi": "10.1234/b"}, {"doi": "10.1234/c"}])
    await put_document(ledger, "b", {"doi": "10.1234/b"}, [{"doi": "10.1234/d"}])
    await put_document(
        ledger, "c", {"doi": "10.1234/c"}, [{"doi": "10.1234/d"}, {"doi": "10.1234/e"}]
    )
    await put_document(
        ledger, "z", None, [{"doi": "10.1234/b"}, {"doi": "10.1234/c"}, {"doi": "10.1234/e"}]
    )

    neighbourhood = await PipelineLedger(ledger).graph_walks.graph_neighbourhood(
        "a", depth=2, direction=Direction.OUT
    )
    assert neighbourhood is not None
    assert neighbourhood.nodes[0].key == "document:a"
    assert sorted(
        zip((n.key for n in neighbourhood.nodes), neighbourhood.distances, strict=True)
    ) == [
        ("document:a", 0),
        ("doi:10.1234/b", 1),
        ("doi:10.1234/c", 1),
        ("doi:10.1234/d", 2),
        ("doi:10.1234/e", 2),
    ]
    assert len(neighbourhood.edges) == 5
    assert not neighbourhood.truncated
    cut_off = await PipelineLedger(ledger).graph_walks.graph_neighbourhood("a", depth=2, limit=2)
    assert cut_off is not None
    assert (len(cut_off.nodes), cut_off.truncated) == (2, True)

    paths = await PipelineLedger(ledger).graph_walks.graph_paths("a", "doi:10.1234/d")
    assert paths is not None
    assert paths.complete
    assert sorted([n.key for n in path.nodes][1] for path in paths.paths) == [
        "doi:10.1234/b",
        "doi:10.1234/c",
    ]
    for path in paths.paths:
        assert [(edge.source, edge.target) for edge in path.edges] == [
            (path.nodes[0].key, path.nodes[1].key),
            (path.nodes[1].key, path.nodes[2].key),
        ]
    outgoing = await PipelineLedger(ledger).graph_walks.graph_paths(
        "doi:10.1234/d", "a", direction=Direction.OUT
    )
    assert outgoing is not None
    assert (outgoing.paths, outgoing.complete) == ([], True)
    incoming = await PipelineLedger(ledger).graph_walks.graph_paths(
        "doi:10.1234/d", "a", direction=Direction.IN, limit=1
    )
    assert incoming is not None
    assert [edge.source for edge in incoming.paths[0].edges][1] == "document:a"
    path_to_itself = await PipelineLedger(ledger).graph_walks.graph_paths("a", "document:a")
    assert path_to_itself is not None
    assert [len(path.nodes) for path in path_to_itself.paths] == [1]
    assert await PipelineLedger(ledger).graph_walks.graph_paths("a", "nobody") is None

    cocited = await PipelineLedger(ledger).graph_reads.graph_cocited("doi:10.1234/b")
    assert cocited is not None
    assert [(work.node.key, work.shared) for work in cocited.works] == [
        ("doi:10.1234/c", 2),
        ("doi:10.1234/e", 1),
    ]
    coupled = await PipelineLedger(ledger).graph_reads.graph_coupled("z")
    assert coupled is not None
    assert [(work.node.key, work.shared) for work in coupled.works] == [
        ("document:a", 2),
        ("doi:10.1234/c", 1),
    ]
    assert not coupled.sampled

    first_page = await PipelineLedger(ledger).graph_reads.graph_cited(limit=2)
    second_page = await PipelineLedger(ledger).graph_reads.graph_cited(
        limit=2, cursor=first_page.next_cursor
    )
    assert [node.cited for node in (*first_page.items, *second_page.items)] == [2, 2, 2, 2]
    assert second_page.next_cursor is None
    works = await PipelineLedger(ledger).graph_reads.graph_cited(kind=NodeKind.WORK)
    assert {node.key for node in works.items} == {"doi:10.1234/d", "doi:10.1234/e"}
    assert await PipelineLedger(ledger).graph_reads.documents_by_citation(
        "doi:10.1234/d", cites=True
    ) == {"b", "c"}
    assert await PipelineLedger(ledger).graph_reads.documents_by_citation("a", cites=False) == {
        "b",
        "c",
    }
    assert set(await PipelineLedger(ledger).graph_reads.graph_labels(["a", "b", "nobody"])) == {
        "a",
        "b",
    }
    summary = await PipelineLedger(ledger).graph_reads.graph_summary()
    assert (summary.nodes, summary.edges) == ({"document": 4, "work": 2}, {"cites": 8})


async def test_hostile_text_is_bounded_and_stored(ledger: Ledger) -> None:
    hostile_text = "Ev\x00il \ud800 <b>&title\x1b[2J that is long enough"
    reference = {
        "title": hostile_text,
        "doi": "10.1234/\x00\ud800x",
        "authors": [{"family": "\x00", "given": 3}],
    }
    await put_document(
        ledger,
        "evil",
        {"authors": [hostile_text], "categories": [hostile_text, None], "id": 7},
        [reference] * 3,
    )
    assert len(await read_edges(ledger, "cites")) == 1
    await put_document(ledger, "long", None, [{"title": "word " * 10_000, "year": 10**400}])
    assert all(len(key) <= 200 for key in await read_nodes(ledger))
