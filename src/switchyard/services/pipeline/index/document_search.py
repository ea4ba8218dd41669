"""Search the documents, with filters that the ledger answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from switchyard.services.common.errors import DependencyUnavailable, InvalidInput
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import DocumentFilter
from switchyard.services.pipeline.index.chunk_index import IndexUnavailable
from switchyard.services.pipeline.index.chunk_search import Hit, search
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.open_index import OpenIndex
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.ledger import PipelineLedger

SEARCH_TIMEOUT = 8.0
"""Seconds that embedder and index have together: a person waits for the search, and can repeat
it."""


class EmbedderUnavailable(DependencyUnavailable):
    """The embedder of a query's text has not answered in time."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which documents to search: those that fit all fields that are not None."""

    document_ids: Collection[str] | None = None
    source: str | None = None
    """Where the documents came from, as their uploads said."""
    classes: Collection[str] = ()
    """Classes as `kind:label`. A document fits if, for each kind named here, it has one of the
    labels."""
    since: float | None = None
    """The documents came in at this time or later, in seconds since the epoch."""
    until: float | None = None
    """The documents came in before this time."""
    cites: str | None = None
    """A work that the documents cite: any key of its node in the graph, or its document's id."""
    cited_by: str | None = None
    """A work that cites the documents."""


class UnknownWork(InvalidInput):
    """A filter names a work that the graph does not know."""

    def __init__(self, name: str, key: str) -> None:
        self.filter = name
        super().__init__(
            f"the graph has no node {key!r}: name one as doi:10.1000/182, as arxiv:1605.08386, or "
            "by its document's id"
        )


async def search_documents(
    index: OpenIndex,
    ledger: Ledger,
    query: str,
    limit: int,
    *,
    mode: SearchMode = SearchMode.HYBRID,
    filters: Filters | None = None,
    per_document: int | None = None,
) -> list[Hit]:
    """Return the passages that answer a query, best first. Raises what `chunk_search.search`
    raises, LedgerUnavailable, IndexMismatch, IndexUnavailable, and UnknownWork. If index and
    embedder together take longer than SEARCH_TIMEOUT seconds, raises EmbedderUnavailable if the
    embedder has not answered, and IndexUnavailable otherwise."""
    document_ids = await _filtered_ids(ledger, filters or Filters())
    if document_ids is not None and not document_ids:
        return []
    watched_embedder: _WatchedEmbedder | None = None
    try:
        async with (
            search_time_limit(index) as timeout,
            index.open_active() as (table, embedder),
        ):
            watched_embedder = _WatchedEmbedder(embedder)
            return await search(
                table,
                watched_embedder,
                query,
                limit,
                mode=mode,
                document_ids=document_ids,
                per_document=per_document,
            )
    except TimeoutError as error:
        if not timeout.expired():
            raise
        reason = f"has not answered within {SEARCH_TIMEOUT:g} s"
        if watched_embedder is not None and watched_embedder.is_embedding:
            raise EmbedderUnavailable(f"the embedder {watched_embedder.name!r} {reason}") from error
        raise IndexUnavailable(f"the index at {index.store.location} {reason}") from error


@asynccontextmanager
async def search_time_limit(index: OpenIndex) -> AsyncIterator[asyncio.Timeout]:
    """Raise TimeoutError if the block takes longer than SEARCH_TIMEOUT seconds. Loading the index's
    library, which is done once in a process, does not count."""
    await index.store.load()
    async with asyncio.timeout(SEARCH_TIMEOUT) as timeout:
        yield timeout


class _WatchedEmbedder:
    """An embedder that says whether a caller is waiting for it."""

    def __init__(self, embedder: Embedder) -> None:
        self.name, self.dimensions = embedder.name, embedder.dimensions
        self.calibration = embedder.calibration
        self._embedder = embedder
        self.is_embedding = False

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.is_embedding = True
        vectors = await self._embedder.embed(texts)
        self.is_embedding = False
        return vectors


async def _filtered_ids(ledger: Ledger, filters: Filters) -> set[str] | None:
    """Return the ids of the documents that fit the filters; None for all documents."""
    repositories = PipelineLedger(ledger)
    document_ids = None if filters.document_ids is None else set(filters.document_ids)
    if filters.source is not None:
        page = await repositories.documents.list_documents(source=filters.source, limit=1)
        ids = {document.id for document in page.items}
        document_ids = ids if document_ids is None else document_ids & ids
    if filters.classes or filters.since is not None or filters.until is not None:
        document_filter = DocumentFilter(
            classes=tuple(filters.classes), since=filters.since, until=filters.until
        )
        ids = await repositories.documents.document_ids(document_filter)
        document_ids = ids if document_ids is None else document_ids & ids
    for name, key in (("cites", filters.cites), ("cited_by", filters.cited_by)):
        if key is not None:
            related = await repositories.graph_reads.documents_by_citation(
                key, cites=name == "cites"
            )
            if related is None:
                raise UnknownWork(name, key)
            document_ids = related if document_ids is None else document_ids & related
    return document_ids
