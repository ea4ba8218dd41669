"""Summarise a text without a language model, by its most important sentences.

Deterministic. A sentence scores by how frequent its content words are in the whole text, by its
place (the beginnings of documents and paragraphs announce what follows), and by words it shares
with the title. Sentences are then taken one by one, with a deduction for likeness to those taken
before (maximal marginal relevance), and put back into the text's order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.services.pipeline.text.plain_text import (
    SENTENCE_ENDS,
    content_words,
    count_words,
    paragraphs,
    sentences,
    shorten,
)

MAX_SENTENCES = 5
MAX_WORDS = 150
MAX_CANDIDATES = 2_000
"""Sentences that are compared at most; of a longer text every second, every fourth, and so on."""
_SCORE_WEIGHT = 0.7
"""Weight of a sentence's own score, from 0 to 1; the rest is the weight of its likeness to chosen
sentences."""
_MIN_WORDS, _MAX_WORDS_OF_ONE = 5, 60
"""Words of a sentence that can be chosen."""
_MAX_CHARACTERS_OF_ONE = 1_000
"""A longer sentence is data, with few but endless words."""
_MAX_BEGINNING = 10_000
"""Characters that are read to find the beginning of a text without sentences."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    place: int
    """Number of the sentence in the text."""
    opens_paragraph: bool
    is_complete: bool
    """Whether it ends as sentences do; cells of a table and headings do not."""
    text: str
    terms: Counter[str]


def summarize(pages: Sequence[str], title: str | None = None) -> str:
    """Return at most MAX_SENTENCES sentences of the text, joined; empty for a text without
    words."""
    candidates = _candidates(pages)
    if not candidates:
        beginning = "".join(page + " " for page in pages)[:_MAX_BEGINNING]
        return shorten(" ".join(beginning.split()), 600)
    scores = _scores(candidates, title)
    chosen = _choose(candidates, scores)
    return " ".join(candidate.text for candidate in sorted(chosen, key=lambda each: each.place))


def _candidates(pages: Sequence[str]) -> list[_Candidate]:
    candidates: list[_Candidate] = []
    place = eligible = 0
    step = 1
    for page in pages:
        for paragraph in paragraphs(page):
            if paragraph.startswith("#"):
                continue  # a heading
            for index, sentence in enumerate(sentences(paragraph)):
                place += 1
                if len(sentence) > _MAX_CHARACTERS_OF_ONE:
                    continue
                if _MIN_WORDS <= count_words(sentence) <= _MAX_WORDS_OF_ONE:
                    terms = Counter(content_words(sentence))
                    if not terms:
                        continue
                    if eligible % step == 0:
                        is_complete = sentence.rstrip("'\"”’»)]")[-1:] in SENTENCE_ENDS
                        candidates.append(
                            _Candidate(place, index == 0, is_complete, sentence, terms)
                        )
                    eligible += 1
                    if len(candidates) > MAX_CANDIDATES:  # at once, as they take much memory
                        candidates = candidates[::2]
                        step *= 2
    return candidates


def _scores(candidates: Sequence[_Candidate], title: str | None) -> list[float]:
    frequency: Counter[str] = Counter()
    for candidate in candidates:
        frequency.update(candidate.terms)
    max_count = max(frequency.values())
    title_terms = set(content_words(title or ""))
    last_place = max(candidates[-1].place, 1)
    scores = []
    for candidate in candidates:
        terms = candidate.terms
        weight = sum(math.sqrt(frequency[term] / max_count) for term in terms) / math.sqrt(
            len(terms)
        )
        title_share = len(title_terms & terms.keys()) / len(title_terms) if title_terms else 0.0
        weight *= 1 if candidate.is_complete else 0.4
        nearness_to_start = math.exp(-3 * (candidate.place - 1) / last_place)
        scores.append(
            weight
            * (1 + 0.3 * nearness_to_start + 0.15 * candidate.opens_paragraph + 0.5 * title_share)
        )
    highest = max(scores)
    return [score / highest for score in scores]


def _choose(candidates: Sequence[_Candidate], scores: Sequence[float]) -> list[_Candidate]:
    chosen: list[_Candidate] = []
    # Of each candidate to the chosen one that is most like it.
    likeness = [0.0] * len(candidates)
    open_indices = set(range(len(candidates)))
    words_left = MAX_WORDS
    while open_indices and len(chosen) < MAX_SENTENCES:
        # Ties go to the earlier sentence, so the result never depends on the set's order.
        best_index = max(
            open_indices,
            key=lambda index: (
                _SCORE_WEIGHT * scores[index] - (1 - _SCORE_WEIGHT) * likeness[index],
                -index,
            ),
        )
        open_indices.remove(best_index)
        candidate = candidates[best_index]
        size = count_words(candidate.text)
        if likeness[best_index] > 0.8 or (chosen and size > words_left):
            continue
        chosen.append(candidate)
        words_left -= size
        for index in open_indices:
            likeness[index] = max(
                likeness[index], _cosine(candidates[index].terms, candidate.terms)
            )
    return chosen


def _cosine(counts: Counter[str], other: Counter[str]) -> float:
    product = sum(count * other[term] for term, count in counts.items() if term in other)
    if not product:
        return 0.0
    return product / (_length(counts) * _length(other))


def _length(terms: Counter[str]) -> float:
    return math.sqrt(sum(count * count for count in terms.values()))
