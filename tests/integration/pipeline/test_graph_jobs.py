"""The pipeline updates the graph, and a new ranking replaces the old one all at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchyard.services.common.files.storage_keys import references_key
from switchyard.services.engine.jobs.context import ProcessCrashed
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.pipeline.graph.pagerank import Edges, rank
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.graph import Direction, EdgeKind, NodeKind, Ranking
from tests.integration.pipeline.conftest import Pipeline
from tests.support.pdfs import pdf

TIDES = "On tides and their causes in the deep sea"
SAND = "What becomes of sand on a very long beach"


async def ingest_paper(pipeline: Pipeline, folder: Path, title: str, cited_title: str) -> str:
    """Ingest a paper that cites another, and find its references."""
    body = "The water rises twice a day, says somebody [1]. Others say so, too [1, 2]."
    reference_list = f"""References
[1] R. Roe. {cited_title}. Journal of Physics, 12(3):33-40, 1999.
[2] A. Smith. The sea. Oxford University Press, Oxford, 2004."""
    path = folder / f"{title[:4]}.pdf"
    path.write_bytes(pdf([body, reference_list], title=title))
    await pipeline.run("ingest_document", {"path": str(path), "source": f"https://x/{title[:4]}"})
    document_id = str(pipeline.result("ingest_document")["document_id"])
    await pipeline.run("process_references", {"document_id": document_id})
    return document_id


async def read_citations(ledger: Ledger, key: str) -> list[tuple[str, ...]]:
    page = await PipelineLedger(ledger).graph_reads.graph_neighbours(
        key, kinds=[EdgeKind.CITES], direction=Direction.OUT
    )
    assert page is not None
    return [each.node.documents for each in page.items if each.node.documents]


async def read_graph(ledger: Ledger) -> tuple[Any, ...]:
    nodes = await PipelineLedger(ledger).graph_reads.graph_nodes_after(0, 1000)
    edges, _ = await PipelineLedger(ledger).graph_reads.graph_edges_after(None, 1000)
    return sorted(node.key for _, node in nodes), sorted(map(str, edges))


async def test_papers_that_cite_each_other_are_found_whichever_comes_first(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    tides = await ingest_paper(pipeline, tmp_path, TIDES, SAND)
    sand = await ingest_paper(pipeline, tmp_path, SAND, TIDES)
    assert await read_citations(ledger, tides) == [(sand,)]
    assert await read_citations(ledger, sand) == [(tides,)]
    # Linked again, as SAND did not exist yet when TIDES was linked.
    await pipeline.run("link_content", {"document_id": tides, "force": True})
    before = await read_graph(ledger)
    for document_id in (sand, tides):
        for stage in ("process_references", "link_content", "update_graph"):
            await pipeline.run(stage, {"document_id": document_id, "force": True})
    assert await read_graph(ledger) == before


async def test_new_content_does_not_keep_the_citations_of_the_old(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    tides = await ingest_paper(pipeline, tmp_path, TIDES, SAND)
    stored_references = json.loads(pipeline.storage.get(references_key(tides)))
    stored_references["content"] = "of another version"
    pipeline.storage.put(references_key(tides), json.dumps(stored_references).encode())
    await pipeline.run("link_content", {"document_id": tides})
    assert await read_citations(ledger, tides) == []


async def test_a_document_that_is_gone_leaves_the_graph(pipeline: Pipeline, ledger: Ledger):
    document_id = "gone"
    from switchyard.services.pipeline.graph.upserts import upsert_document

    await upsert_document(ledger, document_id, {}, TIDES)
    await pipeline.run("update_graph", {"document_id": document_id})
    assert pipeline.result("update_graph") == {"document_id": "gone", "dropped": True}
    assert await PipelineLedger(ledger).graph_reads.graph_node("gone") is None
    await upsert_document(ledger, document_id, {}, TIDES)
    await pipeline.run("recompute_graph", {}, lane="maintenance")
    assert pipeline.result("recompute_graph")["dropped"] == 1
    assert await PipelineLedger(ledger).graph_reads.graph_node("gone") is None


async def test_ranking_and_similarity_are_computed_again(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    tides = await ingest_paper(pipeline, tmp_path, TIDES, SAND)
    sand = await ingest_paper(pipeline, tmp_path, SAND, "Grains of sand and what they are made of")
    job_types = await pipeline.run(
        "compute_similarity", {"batch": 1, "threshold": -1}, "maintenance"
    )
    assert job_types == ["compute_similarity"] * 3
    similar_page = await PipelineLedger(ledger).graph_reads.graph_neighbours(
        tides, kinds=[EdgeKind.SIMILAR]
    )
    assert similar_page is not None
    assert [each.node.documents for each in similar_page.items] == [(sand,)] * 2
    await pipeline.run("recompute_graph", {}, lane="maintenance")
    result = pipeline.result("recompute_graph")
    assert (result["nodes"], result["edges"], result["shown"]) == (4, 6, True)
    ranked_nodes = (await PipelineLedger(ledger).graph_reads.graph_cited(by_rank=True)).items
    assert ranked_nodes[0].label == "The sea"
    assert [node.kind for node in ranked_nodes[2:]] == [NodeKind.DOCUMENT, NodeKind.DOCUMENT]
    assert sum(node.rank or 0 for node in ranked_nodes) == pytest.approx(1)
    assert {node.community for node in ranked_nodes} == {0}
    summary = await PipelineLedger(ledger).graph_reads.graph_summary()
    assert summary.ranking is not None
    assert summary.ranking.nodes == 4


async def test_readers_see_the_old_ranking_until_the_new_one_is_whole(ledger: Ledger):
    from switchyard.services.pipeline.graph.upserts import upsert_document

    await upsert_document(ledger, "a", {}, "A")
    ((node_id, _),) = await PipelineLedger(ledger).graph_reads.graph_nodes_after(0, 10)

    async def read_rank() -> float | None:
        node = await PipelineLedger(ledger).graph_reads.graph_node("a")
        assert node is not None
        return node.rank

    async def write_ranking(value: float, *, is_finished: bool = True) -> None:
        generation = await PipelineLedger(ledger).graph_rankings.begin_ranking()
        await PipelineLedger(ledger).graph_rankings.put_ranks(generation, [(node_id, value, 0)])
        if is_finished:
            ranking = Ranking(generation, ledger.clock.time(), 1, 0, 1, 0.1)
            assert await PipelineLedger(ledger).graph_rankings.finish_ranking(ranking)

    await write_ranking(0.25, is_finished=False)  # its worker was killed
    assert await read_rank() is None
    await write_ranking(0.5)
    assert await read_rank() == 0.5
    await write_ranking(0.75, is_finished=False)
    assert await read_rank() == 0.5
    await write_ranking(1.0)
    assert await read_rank() == 1.0
    older_ranking = Ranking(2, ledger.clock.time(), 1, 0, 1, 0.1)
    assert not await PipelineLedger(ledger).graph_rankings.finish_ranking(older_ranking)
    assert await read_rank() == 1.0


@pytest.mark.long
async def test_the_computation_is_killed_at_its_limits():
    rng = np.random.default_rng(0)
    node_pairs = rng.integers(0, 300_000, (2, 3_000_000))
    edges = Edges(node_pairs[0], node_pairs[1], np.ones(3_000_000, bool), np.ones(3_000_000))
    executor = Executor(1)
    try:
        with pytest.raises((MemoryError, ProcessCrashed)):
            await executor.in_process(rank, edges, timeout=60, memory_limit_mb=512)
        with pytest.raises(TimeoutError):
            await executor.in_process(rank, edges, timeout=0.5, memory_limit_mb=4096)
        first_edges = replace(
            edges, **{name: getattr(edges, name)[:1000] for name in edges.__slots__}
        )
        ranks = await executor.in_process(rank, first_edges, timeout=60, memory_limit_mb=4096)
    finally:
        await executor.close()
    assert sum(ranks.ranks) == pytest.approx(1)
    assert ranks == rank(first_edges)  # the same edges, the same answer


def test_works_cited_by_many_or_by_a_cited_work_rank_first():
    #  1, 2, 3 cite 4; 4 cites 5; 6 and 7 are similar to one another only
    sources, targets = np.array([1, 2, 3, 4, 6]), np.array([4, 4, 4, 5, 7])
    is_citation = np.array([True] * 4 + [False])
    ranks = rank(Edges(sources, targets, is_citation, np.array([9.0, 1, 1, 1, -0.5])))
    by_node = dict(zip(ranks.nodes, ranks.ranks, strict=True))
    assert sorted(by_node, key=by_node.__getitem__)[-2:] == [4, 5]
    communities = dict(zip(ranks.nodes, ranks.communities, strict=True))
    assert len({communities[node] for node in (1, 2, 3, 4, 5)}) == 1
    assert communities[6] == communities[7] != communities[1]


def test_ranks_are_those_of_the_definition_of_pagerank():
    rng = np.random.default_rng(1)
    size, damping = 60, 0.85
    pairs = np.unique(rng.integers(0, size, (2, 90)), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    ranks = rank(Edges(pairs[0], pairs[1], np.ones(pairs.shape[1], bool), np.ones(pairs.shape[1])))
    index_of = {node: index for index, node in enumerate(ranks.nodes)}
    links = np.zeros((len(index_of), len(index_of)))
    for source, target in pairs.T.tolist():
        links[index_of[source], index_of[target]] = 1
    dangling = links.sum(axis=1) == 0
    assert dangling.any()
    links[dangling] = 1  # from a work that cites nothing, the walk goes on anywhere
    steps = links / links.sum(axis=1, keepdims=True)
    exact = np.linalg.solve(
        np.eye(len(index_of)) - damping * steps.T, np.full(len(index_of), 1 - damping)
    )
    assert ranks.ranks == pytest.approx((exact / exact.sum()).tolist(), rel=1e-5)


def test_an_empty_graph_has_no_ranks():
    empty = np.array([], dtype=int)
    assert rank(Edges(empty, empty, empty, empty)).rows() == []
