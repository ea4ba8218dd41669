"""Search over the chunks of all documents, by nearness of vectors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.embed.embedder import Embedder
from services.index import ChunkIndex, Match
from services.ingest.text import content_words, paragraphs, sentences, shorten

SNIPPET_LENGTH = 280
"""Characters."""
MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """A place in a document that answers a query."""

    document_id: str
    title: str
    page: int
    """Page on which the chunk begins, from 1."""
    snippet: str
    """The part of the chunk nearest to the query's words, at most SNIPPET_LENGTH characters."""
    score: float
    """Cosine similarity, rounded to four places; 1 is the same text."""
    chunk_id: str


async def search(
    index: ChunkIndex,
    embedder: Embedder,
    query: str,
    limit: int = 10,
    *,
    per_document: int | None = None,
    at_least: float = 0.0,
) -> list[Hit]:
    """The chunks nearest to a query, best first.

    `limit` is 1 to MAX_LIMIT; `per_document` is how many hits one document may have; `at_least`
    leaves out what scores less. A query without words finds nothing. Raises ValueError for a
    limit out of range, and what the embedder raises.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be 1 to {MAX_LIMIT}, not {limit}")
    vector = (await embedder.embed([query]))[0]
    wanted = limit if per_document is None else min(limit * 10, 10 * MAX_LIMIT)
    found = await index.nearest(vector, wanted)
    terms = set(content_words(query))
    hits: list[Hit] = []
    taken: Counter[str] = Counter()
    for match in found:
        document_id = match.chunk.document_id
        if match.similarity <= at_least or len(hits) == limit:
            break
        if per_document is None or taken[document_id] < per_document:
            taken[document_id] += 1
            hits.append(_hit(match, terms))
    return hits


def _hit(match: Match, terms: set[str]) -> Hit:
    chunk = match.chunk
    return Hit(
        document_id=chunk.document_id,
        title=match.title,
        page=chunk.page,
        snippet=_snippet(chunk.text, terms),
        score=round(match.similarity, 4),
        chunk_id=chunk.id,
    )


def _snippet(text: str, terms: set[str]) -> str:
    """From the sentence with most of the query's words on, the first where none has any."""
    parts = [sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph)]
    if not parts:
        return ""
    shared = [len(terms.intersection(content_words(part))) for part in parts]
    best = shared.index(max(shared))
    return shorten(" ".join(parts[best:]), SNIPPET_LENGTH)
