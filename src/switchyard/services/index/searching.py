"""Search as its users ask for it: with filters that the ledger answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from switchyard.services.index.chunk_index import ChunkIndex
from switchyard.services.index.embedder import embedder_for
from switchyard.services.index.modes import Mode
from switchyard.services.index.ranking import Hit, search
from switchyard.services.ledger import Ledger
from switchyard.services.settings import Settings


@dataclass(frozen=True, slots=True)
class Filters:
    """Which documents to search; fields that are None do not matter, several all hold."""

    document_ids: Collection[str] | None = None
    source: str | None = None
    """Where the document came from, as its upload said."""


async def search_documents(
    settings: Settings,
    ledger: Ledger,
    query: str,
    limit: int,
    *,
    mode: Mode = Mode.HYBRID,
    filters: Filters | None = None,
    per_document: int | None = None,
) -> list[Hit]:
    """The places that answer a query, best first. Raises as `services.index.ranking.search` does,
    and LedgerUnavailable and IndexMismatch."""
    within = await _within(ledger, filters or Filters())
    if within is not None and not within:
        return []
    embedder = embedder_for(settings)
    async with ChunkIndex.open(
        settings.vectors_url, embedder=embedder.name, dimensions=embedder.dimensions
    ) as index:
        return await search(
            index, embedder, query, limit, mode=mode, within=within, per_document=per_document
        )


async def _within(ledger: Ledger, filters: Filters) -> set[str] | None:
    """The documents that fit; None for all."""
    within = None if filters.document_ids is None else set(filters.document_ids)
    if filters.source is not None:
        page = await ledger.list_documents(source=filters.source, limit=1)
        from_there = {document.id for document in page.items}
        within = from_there if within is None else within & from_there
    return within
