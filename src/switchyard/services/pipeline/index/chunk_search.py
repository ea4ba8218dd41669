"""Search over the chunks of all documents: by nearness of vectors, by words, or by both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from switchyard.services.pipeline.index.chunk_index import (
    ChunkCandidate,
    ChunkIndex,
    Key,
    Match,
    WordMatch,
)
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.search_modes import MAX_LIMIT, SearchMode
from switchyard.services.pipeline.index.word_index import query_terms
from switchyard.services.pipeline.text.chunks import Chunk
from switchyard.services.pipeline.text.plain_text import (
    accented_words,
    has_cjk,
    paragraphs,
    sentences,
    shorten,
    words,
)
from switchyard.services.pipeline.text.stems import forms, stems

SNIPPET_LENGTH = 280
"""Longest snippet, in characters."""
_MIN_CANDIDATES = 50
"""Fewest chunks that a hybrid search fetches by vectors, and fewest by words."""
_TRUSTED_SHARE = 0.6
"""Words count in full if the best chunk has at least this share of the query's words."""
_TRUST_POWER = 4
"""Power with which words count for less below that share."""
_FEEDBACK_CHUNKS = 5
"""Number of best chunks with which all candidates are compared."""
_MIN_CAPITAL_WORDS = 3
"""A query of at least so many words, all in capitals, is searched in lower case; a shorter one may
be an abbreviation."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage of a document that answers a query."""

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
    mode: SearchMode = SearchMode.VECTOR,
    document_ids: Collection[str] | None = None,
    per_document: int | None = None,
) -> list[Hit]:
    """Return the chunks that answer a query, best first.

    `limit` is 1 to MAX_LIMIT; `document_ids` leaves out all documents but these; `per_document` is
    how many hits one document may have. Where vectors are compared, a chunk that is less similar
    than the embedder's `min_relevance` is no hit, unless a hybrid search finds it by words. A query
    without words finds nothing. Raises ValueError for a limit out of range, and what the embedder
    raises.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be 1 to {MAX_LIMIT}, not {limit}")
    min_relevance = embedder.calibration.min_relevance
    candidate_count = limit if per_document is None else min(limit * 10, 10 * MAX_LIMIT)
    terms = query_terms(query)
    query_text = (
        query.lower() if query.isupper() and len(query.split()) >= _MIN_CAPITAL_WORDS else query
    )
    ranked: Iterable[_Ranked]
    if mode is SearchMode.VECTOR:
        vector = (await embedder.embed([query_text]))[0]
        ranked = _rank_by_similarity(
            await index.nearest(vector, candidate_count, document_ids=document_ids), min_relevance
        )
    elif mode is SearchMode.KEYWORD:
        ranked = _rank_by_words(
            await index.keyword_search(query, candidate_count, document_ids=document_ids)
        )
    else:
        vector = (await embedder.embed([query_text]))[0]
        fetched_count = max(candidate_count, _MIN_CANDIDATES)
        candidates = await index.candidates(vector, query, fetched_count, document_ids=document_ids)
        fitting_candidates = list(_filter_fitting(candidates, min_relevance))
        scored = await _rank(index, fitting_candidates, terms, embedder.calibration.vector_weight)
        # The best candidates may all be of one document.
        ranked = await _read_first(
            index, scored, limit if per_document is None else len(candidates)
        )
    query_forms = {form for word in terms for form in word}
    hits: list[Hit] = []
    hits_per_document: Counter[str] = Counter()
    for candidate in ranked:
        document_id = candidate.chunk.document_id
        if len(hits) == limit:
            break
        if per_document is None or hits_per_document[document_id] < per_document:
            hits_per_document[document_id] += 1
            hits.append(_make_hit(candidate, query_forms))
    return hits


async def _read_first(
    index: ChunkIndex, scored: Iterator[tuple[Key, float]], count: int
) -> list[_Ranked]:
    """Read the first `count` candidates. Those that were deleted meanwhile are replaced by the
    next ones."""
    ranked: list[_Ranked] = []
    while next_scored := list(islice(scored, count - len(ranked))):
        texts_by_key = await index.read_candidates([key for key, _ in next_scored])
        ranked += [
            _Ranked(texts_by_key[key].chunk, texts_by_key[key].title, score)
            for key, score in next_scored
            if key in texts_by_key
        ]
    return ranked


def _rank_by_similarity(matches: Iterable[Match], min_relevance: float) -> list[_Ranked]:
    return [
        _Ranked(match.chunk, match.title, match.similarity)
        for match in matches
        if match.similarity > 0 and match.similarity >= min_relevance
    ]


def _rank_by_words(matches: Iterable[WordMatch]) -> list[_Ranked]:
    return [_Ranked(match.chunk, match.title, match.relevance) for match in matches]


def _filter_fitting(
    candidates: Iterable[ChunkCandidate], min_relevance: float
) -> Iterator[ChunkCandidate]:
    """Yield the candidates that have words of the query, or are similar enough."""
    for each in candidates:
        if each.relevance or (each.similarity > 0 and each.similarity >= min_relevance):
            yield each


async def _rank(
    index: ChunkIndex,
    candidates: Sequence[ChunkCandidate],
    terms: Sequence[tuple[str, ...]],
    vector_weight: float,
) -> Iterator[tuple[Key, float]]:
    """Rank candidates by similarity and words, and then once more with their likeness to the best
    chunks: these use words of the subject that the query leaves out.

    That likeness counts as far as the query's words are trusted: where they say little, the best
    chunks may be about quite another subject.
    """
    trust = _trust(candidates, terms)
    ranking = _weigh(candidates, trust, vector_weight)
    if not trust or not any(each.similarity for each in candidates):
        return ranking
    ranked = list(ranking)
    likenesses = await index.likenesses(
        [key for key, _ in ranked], [key for key, _ in ranked[:_FEEDBACK_CHUNKS]]
    )
    with_feedback = []
    for each in candidates:
        likeness = max(likenesses.get(each.key, 0.0), 0.0)
        similarity = (max(each.similarity, 0.0) + trust * likeness) / (1 + trust)
        with_feedback.append(replace(each, similarity=similarity))
    return _weigh(with_feedback, trust, vector_weight)


def _weigh(
    candidates: Sequence[ChunkCandidate], trust: float, vector_weight: float
) -> Iterator[tuple[Key, float]]:
    """Yield keys and scores, best first, equal scores by their keys. A score is the weighted sum of
    similarity and words, each from 0 to 1; words count by BM25 relative to the best chunk's, as far
    as they are trusted."""
    best_relevance = max((each.relevance for each in candidates), default=0.0) or 1.0
    scores = [
        (
            vector_weight * min(max(each.similarity, 0.0), 1.0)
            + (1 - vector_weight) * trust * each.relevance / best_relevance,
            each.key,
        )
        for each in candidates
    ]
    scores.sort(key=lambda each: (-each[0], each[1]))
    return ((key, score) for score, key in scores)


def _trust(candidates: Iterable[ChunkCandidate], terms: Sequence[tuple[str, ...]]) -> float:
    """Return how far the words of a query are trusted, from 0 to 1, by the share of them in the
    chunk that is best by words. A query in other words than the texts finds a word by chance."""
    found_by_words = [each for each in candidates if each.relevance]
    if not found_by_words:
        return 0.0
    # The index gives the text of the best chunk by words: of equal ones, take one with text.
    best = min(found_by_words, key=lambda each: (-each.relevance, not each.text, each.key))
    words_of_best = set(stems(best.text))
    # The index finds words also where no spaces are written. So it found at least one, even if
    # none of the stems is the same.
    found_count = max(sum(not words_of_best.isdisjoint(word) for word in terms), 1)
    return min(1.0, found_count / max(len(terms), 1) / _TRUSTED_SHARE) ** _TRUST_POWER


def _make_hit(ranked: _Ranked, query_forms: set[str]) -> Hit:
    chunk = ranked.chunk
    snippet = _snippet(chunk.text, query_forms)
    return Hit(
        document_id=chunk.document_id,
        title=ranked.title,
        page=chunk.page,
        snippet=snippet,
        score=round(ranked.score, 4),
        chunk_id=chunk.id,
        highlights=highlights(snippet, query_forms),
    )


def _snippet(text: str, query_forms: set[str]) -> str:
    """Return the text from the sentence on that has most of the query's words; all of the text
    where none has any."""
    parts = [sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph)]
    if not parts:
        return ""
    best_index, best_count = 0, 0
    for index, part in enumerate(parts if len(parts) > 1 else ()):
        forms_of_words = {forms(word) for word in accented_words(part)}
        count = sum(not query_forms.isdisjoint(each) for each in forms_of_words)
        if count > best_count:
            best_index, best_count = index, count
    return shorten(" ".join(parts[best_index:]), SNIPPET_LENGTH)


def highlights(text: str, query_forms: set[str]) -> tuple[tuple[int, int], ...]:
    """Return start and end of each word of the text that has one of the query's forms
    (`stems.forms`). Of a run in Chinese or Japanese, which has no spaces, only the characters that
    match are taken.
    """
    spans: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, word = match.start(), match.group()
        parts = words(word)
        if len(parts) < 2 or not has_cjk(word):
            word_forms = {form for part in accented_words(word) for form in forms(part)}
            ranges = [(start, match.end())] if not query_forms.isdisjoint(word_forms) else []
        else:  # pairs of characters that overlap, each as long as it is in the text
            ranges = [
                (start + index, start + index + len(part))
                for index, part in enumerate(parts)
                if part in query_forms and word[index : index + len(part)] == part
            ]
        for begin, end in ranges:
            if spans and begin <= spans[-1][1] and begin >= start:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((begin, end))
    return tuple(spans)
