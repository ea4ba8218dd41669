"""Write what a document adds to the graph into the ledger, as its stages find it out.

Each call replaces what the same stage has written before, so it may be repeated, in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from switchyard.services.pipeline.graph.descriptions import (
    citation_edges,
    describe_document,
    similarity_edges,
)
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.graph import EdgeKind, NewEdge, NodeDescription, NodeKind

if TYPE_CHECKING:  # the job types are imported without a database
    from switchyard.services.engine.ledger import Ledger

_METADATA_EDGES = (EdgeKind.WRITTEN_BY, EdgeKind.PUBLISHED_IN, EdgeKind.ABOUT)


async def upsert_document(
    ledger: Ledger,
    document_id: str,
    metadata: Mapping[str, Any],
    title: str,
    *,
    links: Iterable[Mapping[str, Any]] | None = None,
    references: Mapping[str, Any] | None = None,
) -> None:
    """Write a document into the graph: `metadata` is the result of its first stage; where known,
    also the documents that it is similar to (`links`), and what it cites (`references`, the result
    of `process_references`). Raises LedgerUnavailable."""
    document = describe_document(
        document_id, title=title, source=metadata.get("source"), entry=metadata.get("entry")
    )
    edges: dict[EdgeKind, list[NewEdge]] = {kind: [] for kind in _METADATA_EDGES}
    for edge in document.edges:
        edges[edge.kind].append(edge)
    if links is not None:
        edges[EdgeKind.SIMILAR] = similarity_edges(links)
    if references is not None:
        # In a thread, as a book cites thousands of works.
        edges[EdgeKind.CITES] = await asyncio.to_thread(
            citation_edges, references.get("references") or (), references.get("citations") or ()
        )
    await PipelineLedger(ledger).graph.put_in_graph(document, edges)


async def upsert_similar(
    ledger: Ledger, document_id: str, title: str | None, links: Iterable[Mapping[str, Any]]
) -> None:
    """Write the documents that a document is similar to, and nothing else of it. Raises
    LedgerUnavailable."""
    document = NodeDescription(NodeKind.DOCUMENT, title or document_id, document_id=document_id)
    await PipelineLedger(ledger).graph.put_in_graph(
        document, {EdgeKind.SIMILAR: similarity_edges(links)}
    )
