"""Search over the chunks of all documents: by nearness of vectors, by words, or by both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice

from switchyard.services.pipeline.index.chunk_index import (
    ChunkCandidate,
    ChunkIndex,
    Key,
    Match,
    WordMatch,
)
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.modes import MAX_LIMIT, Mode
from switchyard.services.pipeline.text.chunks import Chunk
from switchyard.services.pipeline.text.plain import (
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
    least = embedder.calibration.min_relevance if at_least is None else at_least
    wanted = limit if per_document is None else min(limit * 10, 10 * MAX_LIMIT)
    terms = set(content_words(query)) or set(words(query))
    ranked: Iterable[_Ranked]
    if mode is Mode.VECTOR:
        vector = (await embedder.embed([query]))[0]
        ranked = _similar(await index.nearest(vector, wanted, within=within), least)
    elif mode is Mode.KEYWORD:
        ranked = _worded(await index.keyword_search(query, wanted, within=within))
    else:
        vector = (await embedder.embed([query]))[0]
        each = max(wanted, _CANDIDATES)
        candidates = await index.candidates(vector, query, each, within=within)
        weighed = _weighed(_fitting(candidates, least), terms, embedder.calibration.vector_weight)
        # Of one document may be all of the first ones.
        ranked = await _first(index, weighed, limit if per_document is None else len(candidates))
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


async def _first(
    index: ChunkIndex, weighed: Iterator[tuple[Key, float]], number: int
) -> list[_Ranked]:
    """The first so many; the next ones take the place of those that were deleted meanwhile."""
    found: list[_Ranked] = []
    while some := list(islice(weighed, number - len(found))):
        known = await index.read_candidates([key for key, _ in some])
        found += [
            _Ranked(known[key].chunk, known[key].title, score)
            for key, score in some
            if key in known
        ]
    return found


def _similar(matches: Iterable[Match], at_least: float) -> list[_Ranked]:
    return [
        _Ranked(match.chunk, match.title, match.similarity)
        for match in matches
        if match.similarity > 0 and match.similarity >= at_least
    ]


def _worded(matches: Iterable[WordMatch]) -> list[_Ranked]:
    return [_Ranked(match.chunk, match.title, match.relevance) for match in matches]


def _fitting(candidates: Iterable[ChunkCandidate], at_least: float) -> Iterator[ChunkCandidate]:
    """Those that have words, or are similar enough."""
    for each in candidates:
        if each.relevance or (each.similarity > 0 and each.similarity >= at_least):
            yield each


def _weighed(
    candidates: Iterable[ChunkCandidate], terms: set[str], weight: float
) -> Iterator[tuple[Key, float]]:
    """By the weighted sum of similarity and words, each from 0 to 1, best first; equal ones by
    their keys.

    Words count by BM25, as a part of the best one's, times the square of how many of the query's
    words are there: who has all of them is what was asked for, who has one of four says little.
    Where the index does not tell how many, texts are looked at as late as can be: not those of whom
    would not be among the first with all of the words.
    """
    found = {each.key: each for each in candidates}
    best = max((each.relevance for each in found.values()), default=0.0)

    def score(each: ChunkCandidate, number: int) -> float:
        near = weight * min(max(each.similarity, 0.0), 1.0)
        if not each.relevance:
            return near
        # The index knows words where no spaces are written: it found one even if we see none.
        share = max(number, 1) / max(len(terms), 1)
        return near + share**2 * ((1 - weight) * each.relevance / best)

    # By the score that each can have at most, which is its own once nothing is left to look at.
    waiting = []
    for each in found.values():
        is_exact = each.has is not None or not each.relevance
        number = len(terms) if each.has is None else each.has
        waiting.append((-score(each, number), each.key, is_exact))
    heapify(waiting)
    while waiting:
        less, key, is_exact = heappop(waiting)
        if is_exact:
            yield key, -less
        else:
            number = len(words_of(found[key].text, terms))
            heappush(waiting, (-score(found[key], number), key, True))


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
