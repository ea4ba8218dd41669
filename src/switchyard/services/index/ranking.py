"""Search over the chunks of all documents: by nearness of vectors, by words, or by both."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from switchyard.broker.background import end_tasks
from switchyard.services.index.chunk_index import ChunkIndex, Match, WordMatch
from switchyard.services.index.embedder import Embedder
from switchyard.services.index.modes import MAX_LIMIT, Mode
from switchyard.services.text.chunks import Chunk
from switchyard.services.text.plain import (
    content_words,
    is_in_pairs,
    paragraphs,
    sentences,
    shorten,
    words,
    words_of,
)

SNIPPET_LENGTH = 280
"""Characters."""
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
    an upper limit. Hybrid: up to 1, the same text."""
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
    at_least: float | None = None,
) -> list[Hit]:
    """The chunks that answer a query, best first.

    `limit` is 1 to MAX_LIMIT; `within` leaves out all documents but these; `per_document` is how
    many hits one document may have. Where vectors are compared, what is less similar than
    `at_least` (the embedder's own measure where it is None) is no hit, unless a hybrid search finds
    it by words. A query without words finds nothing. Raises ValueError for a limit out of range,
    and what the embedder raises.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be 1 to {MAX_LIMIT}, not {limit}")
    least = embedder.scale.fits if at_least is None else at_least
    wanted = limit if per_document is None else min(limit * 10, 10 * MAX_LIMIT)
    terms = set(content_words(query)) or set(words(query))
    ranked: Iterable[_Ranked]
    if mode is Mode.VECTOR:
        vector = (await embedder.embed([query]))[0]
        ranked = _similar(await index.nearest(vector, wanted, within=within), least)
    elif mode is Mode.KEYWORD:
        ranked = _worded(await index.with_words(query, wanted, within=within))
    else:
        vector = (await embedder.embed([query]))[0]
        each = max(wanted, _CANDIDATES)
        nearest, with_words = await _both(
            index.nearest(vector, each, within=within),
            index.with_words(query, each, within=within, near=vector),
        )
        similar = _similar(nearest, least)
        known = {one.chunk.id for one in similar}
        similar += _similar([one for one in with_words if one.chunk.id not in known], 0.0)
        ranked = _weighed(similar, with_words, terms, embedder.scale.weight)
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


async def _both(
    one: Coroutine[Any, Any, list[Match]], other: Coroutine[Any, Any, list[WordMatch]]
) -> tuple[list[Match], list[WordMatch]]:
    """Both at the same time; where one fails, the other is ended."""
    tasks = asyncio.create_task(one), asyncio.create_task(other)
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(*tasks)


def _similar(matches: Iterable[Match | WordMatch], at_least: float) -> list[_Ranked]:
    return [
        _Ranked(match.chunk, match.title, match.similarity)
        for match in matches
        if match.similarity > 0 and match.similarity >= at_least
    ]


def _worded(matches: Iterable[WordMatch]) -> list[_Ranked]:
    return [_Ranked(match.chunk, match.title, match.relevance) for match in matches]


def _weighed(
    similar: Sequence[_Ranked], worded: Sequence[WordMatch], terms: set[str], weight: float
) -> Iterator[_Ranked]:
    """By the weighted sum of similarity and words, each from 0 to 1, best first.

    Words count by BM25, as a part of the best one's, times the square of how many of the query's
    words are there: who has all of them is what was asked for, who has one of four says little.
    Where the index does not tell how many, texts are looked at as late as can be: not those of whom
    would not be among the first with all of the words.
    """
    both: tuple[_Ranked | WordMatch, ...] = (*worded, *similar)
    found = {each.chunk.id: each for each in both}
    nearness = {each.chunk.id: weight * min(each.score, 1.0) for each in similar}
    best = max((each.relevance for each in worded), default=0.0)
    relevance = {each.chunk.id: (1 - weight) * each.relevance / best for each in worded}

    def score(key: str, number: int) -> float:
        # The index knows words where no spaces are written: it found one even if we see none.
        share = max(number, 1) / max(len(terms), 1)
        return nearness.get(key, 0.0) + share**2 * relevance[key]

    # By the score that each can have at most, which is its own once nothing is left to look at.
    waiting = [(-nearness[key], key, True) for key in nearness if key not in relevance]
    for each in worded:
        number = len(terms) if each.has is None else each.has
        waiting.append((-score(each.chunk.id, number), each.chunk.id, each.has is not None))
    heapify(waiting)
    while waiting:
        less, key, is_exact = heappop(waiting)
        chunk = found[key].chunk
        if is_exact:
            yield _Ranked(chunk, found[key].title, -less)
        else:
            number = len(words_of(chunk.text, terms))
            heappush(waiting, (-score(key, number), key, True))


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
    best, most = 0, 0
    for at, part in enumerate(parts if len(parts) > 1 else ()):
        number = len(words_of(part, terms))
        if number > most:
            best, most = at, number
    return shorten(" ".join(parts[best:]), SNIPPET_LENGTH)


def highlights(text: str, terms: set[str]) -> tuple[tuple[int, int], ...]:
    """Where a text has one of the terms (normalised as `words` does): start and end of each run.

    Where no spaces are written, in Chinese and Japanese, only the characters that fit are taken.
    """
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, word = match.start(), match.group()
        if word.isascii() and word.casefold() not in terms:
            continue  # most of them, at once
        parts = words(word)
        if len(parts) < 2 or not is_in_pairs(word):
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
