"""Job types that update the knowledge graph: for one document, or, in the lane `maintenance`, all
of it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import Field

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.records.requests import DocumentFilter
from switchyard.services.pipeline.index.open_index import index_of
from switchyard.services.pipeline.index.similar_documents import TOP_K, similar_documents
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import COMPLETED
from switchyard.services.pipeline.records.graph import Ranking
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.workers.graph_updates import update_citations
from switchyard.services.pipeline.workers.stages import DocumentJob, ends_when_superseded

if TYPE_CHECKING:  # the job types are imported without a database
    from switchyard.services.engine.ledger import Ledger

RANKING_LEASE = "graph ranking"
RANKING_TIMEOUT = 600.0
"""Seconds for the computation itself; the whole job has 15 minutes."""


@job("update_graph", worker="link", lanes=("hot", "maintenance"), timeout=120)
@ends_when_superseded
async def update_graph(payload: DocumentJob, ctx: JobContext) -> Outcome:
    """Bring a document's node and its citations in the graph up to date with what is stored. A
    document that was deleted is removed from the graph."""
    ledger, document_id = _require_ledger(ctx), payload.document_id
    repositories = PipelineLedger(ledger)
    if await repositories.documents.get_document(document_id) is None:
        dropped = await repositories.graph.drop_from_graph(document_id)
        return Done({"document_id": document_id, "dropped": dropped})
    await update_citations(ctx, document_id)
    return Done({"document_id": document_id})


class ComputeSimilarity(StrictModel):
    """Payload of `compute_similarity`: all documents, or only those behind `after`."""

    after: tuple[float, str] | None = None
    """Time of arrival and id of the previous job's last document."""
    batch: int = Field(default=100, ge=1, le=1000)
    """Number of documents of one job; the next job takes the same number."""
    top_k: int = Field(default=TOP_K, ge=1, le=100)
    threshold: float | None = Field(default=None, ge=-1, le=1)
    """As in `link_content`."""


@job("compute_similarity", worker="link", lanes=("maintenance",), timeout=900)
async def compute_similarity(payload: ComputeSimilarity, ctx: JobContext) -> Outcome:
    """Compute again which documents are similar, since later documents may be more so. Each job
    does one batch, so that more urgent work can run in between."""
    from switchyard.services.pipeline.graph.upserts import upsert_similar

    ledger = _require_ledger(ctx)
    completed_filter = DocumentFilter(state=COMPLETED)
    documents = await PipelineLedger(ledger).documents.documents_after(
        completed_filter, payload.after, payload.batch
    )
    edges = 0
    async with index_of(ctx) as index, index.open_active() as (chunks, embedder):
        threshold = (
            embedder.calibration.min_similarity if payload.threshold is None else payload.threshold
        )
        for document in documents:
            if ctx.is_cancelled():
                break
            links = await similar_documents(
                chunks, document.id, top_k=payload.top_k, threshold=threshold
            )
            await upsert_similar(ledger, document.id, document.title, map(asdict, links))
            edges += len(links)
    result = {"documents": len(documents), "edges": edges}
    if len(documents) < payload.batch:
        return Done(result)
    last_document = documents[-1]
    next_payload = payload.model_copy(
        update={"after": (last_document.created_at, last_document.id)}
    )
    return Next([Job("compute_similarity", next_payload.model_dump(mode="json"))], result)


class RecomputeGraph(StrictModel):
    """Payload of `recompute_graph`; it has no fields."""


@job("recompute_graph", worker="link", lanes=("maintenance",), timeout=900)
async def recompute_graph(payload: RecomputeGraph, ctx: JobContext) -> Outcome:
    """Compute PageRank and communities of the whole graph, and replace the earlier ones all at
    once. Documents that were deleted are removed from the graph first."""
    from switchyard.services.pipeline.graph.pagerank import Ranks, rank, read_edges

    ledger = _require_ledger(ctx)
    repositories = PipelineLedger(ledger)
    started_at = time.monotonic()
    dropped = 0
    while strays := await repositories.graph.graph_strays():
        for document_id in strays:
            dropped += await repositories.graph.drop_from_graph(document_id)
    async with ledger.leases.holding_lease(RANKING_LEASE):
        generation = await repositories.graph_rankings.begin_ranking()
        edges = await read_edges(ledger)
        ranks: Ranks = await ctx.in_process(
            rank,
            edges,
            timeout=RANKING_TIMEOUT,
            memory_limit_mb=ctx.settings.graph_memory_mb,
        )
        await repositories.graph_rankings.put_ranks(generation, ranks.rows())
        ranking = Ranking(
            generation=generation,
            finished_at=ledger.clock.time(),
            nodes=len(ranks.nodes),
            edges=len(edges),
            communities=len(set(ranks.communities)),
            seconds=round(time.monotonic() - started_at, 3),
        )
        is_shown = await repositories.graph_rankings.finish_ranking(ranking)
    return Done({**asdict(ranking), "shown": is_shown, "dropped": dropped})


def _require_ledger(ctx: JobContext) -> Ledger:
    if ctx.ledger is None:
        raise PermanentError(
            "the graph is in the ledger, which this job lacks: set JOBS_DATABASE_URL"
        )
    return ctx.ledger
