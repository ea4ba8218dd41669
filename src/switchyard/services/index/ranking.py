"""Search over the chunks of all documents: by nearness of vectors, by words, or by both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from switchyard.services.index.chunk_index import ChunkIndex
from switchyard.services.index.embedder import Embedder
from switchyard.services.index.modes import MAX_LIMIT, Mode
from switchyard.services.text.chunks import Chunk
from switchyard.services.text.plain import (
    content_words,
    paragraphs,
    sentences,
    shorten,
    words,
)

SNIPPET_LENGTH = 280
"""Characters."""
FUSED = 60
"""The constant of reciprocal rank fusion: how little a rank counts beside being found at all."""
_CANDIDATES = 50
"""Chunks that each way of a hybrid search brings at least."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


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
    """Rounded to four places. Vector: cosine similarity, 1 is the same text. Keyword: BM25, without
    an upper limit. Hybrid: 1 is the first in both."""
    chunk_id: str
    highlights: tuple[tuple[int, int], ...] = ()
    """Where the query's words are in the snippet: start and end, in characters."""


@dataclass(frozen=True, slots=True)
class _Ranked:
    chunk: Chunk
    title: str
    score: float


async def search(
    index: ChunkIndex,
    embedder: Embedder,
    query: str,
    limit: int = 10,
    *,
    mode: Mode = Mode.VECTOR,
    within: Collection[str] | None = None,
    per_document: int | None = None,
    at_least: float = 0.0,
) -> list[Hit]:
    """The chunks that answer a query, best first.

    `limit` is 1 to MAX_LIMIT; `within` leaves out all documents but these; `per_document` is how
    many hits one document may have; `at_least` leaves out what is less similar, where vectors are
    compared. A query without words finds nothing. Raises ValueError for a limit out of range, and
    what the embedder raises.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be 1 to {MAX_LIMIT}, not {limit}")
    wanted = limit if per_document is None else min(limit * 10, 10 * MAX_LIMIT)
    if mode is Mode.VECTOR:
        ranked = await _by_vector(index, embedder, query, wanted, within, at_least)
    elif mode is Mode.KEYWORD:
        ranked = await _by_word(index, query, wanted, within)
    else:
        each = max(wanted, _CANDIDATES)
        ranked = _fused(
            await _by_vector(index, embedder, query, each, within, at_least),
            await _by_word(index, query, each, within),
        )
    terms = set(content_words(query)) or set(words(query))
    hits: list[Hit] = []
    taken: Counter[str] = Counter()
    for found in ranked:
        document_id = found.chunk.document_id
        if len(hits) == limit:
            break
        if per_document is None or taken[document_id] < per_document:
            taken[document_id] += 1
            hits.append(_hit(found, terms))
    return hits


async def _by_vector(
    index: ChunkIndex,
    embedder: Embedder,
    query: str,
    limit: int,
    within: Collection[str] | None,
    at_least: float,
) -> list[_Ranked]:
    vector = (await embedder.embed([query]))[0]
    return [
        _Ranked(match.chunk, match.title, match.similarity)
        for match in await index.nearest(vector, limit, within=within)
        if match.similarity > at_least
    ]


async def _by_word(
    index: ChunkIndex, query: str, limit: int, within: Collection[str] | None
) -> list[_Ranked]:
    return [
        _Ranked(match.chunk, match.title, match.relevance)
        for match in await index.with_words(query, limit, within=within)
    ]


def _fused(*rankings: Sequence[_Ranked]) -> list[_Ranked]:
    """Reciprocal rank fusion: scores of different kinds are not compared, only ranks."""
    best = len(rankings) / (FUSED + 1)
    found: dict[str, _Ranked] = {}
    scores: Counter[str] = Counter()
    for ranking in rankings:
        for rank, each in enumerate(ranking, start=1):
            found.setdefault(each.chunk.id, each)
            scores[each.chunk.id] += 1 / (FUSED + rank) / best  # type: ignore[assignment]
    fused = [_Ranked(each.chunk, each.title, scores[key]) for key, each in found.items()]
    return sorted(fused, key=lambda each: (-each.score, each.chunk.id))


def _hit(found: _Ranked, terms: set[str]) -> Hit:
    chunk = found.chunk
    snippet = _snippet(chunk.text, terms)
    return Hit(
        document_id=chunk.document_id,
        title=found.title,
        page=chunk.page,
        snippet=snippet,
        score=round(found.score, 4),
        chunk_id=chunk.id,
        highlights=highlights(snippet, terms),
    )


def _snippet(text: str, terms: set[str]) -> str:
    """From the sentence with most of the query's words on, the first where none has any."""
    parts = [sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph)]
    if not parts:
        return ""
    shared = [len(terms.intersection(words(part))) for part in parts]
    best = shared.index(max(shared))
    return shorten(" ".join(parts[best:]), SNIPPET_LENGTH)


def highlights(text: str, terms: set[str]) -> tuple[tuple[int, int], ...]:
    """Where a text has one of the terms (normalised as `words` does): start and end of each run.

    Where no spaces are written, in Chinese and Japanese, only the characters that fit are taken.
    """
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, word = match.start(), match.group()
        parts = words(word)
        if len(parts) < 2:
            found = [(start, match.end())] if terms.intersection(parts) else []
        else:  # pairs of characters that overlap, each as long as it is in the text
            found = [
                (start + at, start + at + len(part))
                for at, part in enumerate(parts)
                if part in terms and word[at : at + len(part)] == part
            ]
        for begin, end in found:
            if spans and begin <= spans[-1][1] and begin >= start:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((begin, end))
    return tuple(spans)
