"""The order of a hybrid search: by similarity, by words, and by likeness to the best hits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from switchyard.services.pipeline.index.chunk_index import ChunkCandidate, ChunkIndex, Key
from switchyard.services.pipeline.index.chunk_search import (
    _filter_fitting,
    _rank,
    _snippet,
    _trust,
    _weigh,
    highlights,
)

TERMS = [("red",), ("green",), ("blue",), ("unbroken",)]
FORMS = {form for word in TERMS for form in word}
VECTOR_WEIGHT = 0.6


class SimilarityIndex:
    """An index that knows how similar its chunks are to the best ones, and records which best ones
    it was asked about."""

    def __init__(self, similarities: dict[Key, float]) -> None:
        self.similarities = similarities
        self.best: list[Key] = []

    async def likenesses(self, keys: Sequence[Key], best: Sequence[Key]) -> dict[Key, float]:
        self.best = list(best)
        return {key: self.similarities[key] for key in keys if key in self.similarities}


async def rank(index: SimilarityIndex, *candidates: ChunkCandidate) -> list[tuple[Key, float]]:
    return list(await _rank(cast("ChunkIndex", index), candidates, TERMS, VECTOR_WEIGHT))


def test_chunks_are_ordered_by_the_weighted_sum_and_equal_ones_by_their_keys():
    candidates = [
        ChunkCandidate("b", 0.5, 3.0),
        ChunkCandidate("a", 0.5, 3.0),
        ChunkCandidate("near", 0.9),
        ChunkCandidate("worded", -0.2, 6.0),
    ]
    weighed = list(_weigh(candidates, 0.5, VECTOR_WEIGHT))
    assert [key for key, _ in weighed] == ["near", "a", "b", "worded"]
    assert [score for _, score in weighed] == pytest.approx([0.54, 0.4, 0.4, 0.2])


@pytest.mark.parametrize(
    ("text", "trust"),
    [
        ("reds and greens, blue, unbroken", 1.0),
        ("red green blue", 1.0),
        ("red green", (0.5 / 0.6) ** 4),
        ("red red red", (0.25 / 0.6) ** 4),
        ("nothing that we see", (0.25 / 0.6) ** 4),
    ],
)
def test_words_are_trusted_more_the_more_of_them_the_best_chunk_by_words_has(
    text: str, trust: float
):
    best = ChunkCandidate("best", 0.1, 5.0, text)
    other = ChunkCandidate("other", 0.9, 1.0, "red green blue unbroken")
    assert _trust([other, best], TERMS) == pytest.approx(trust)
    assert _trust([ChunkCandidate("near", 0.9)], TERMS) == 0.0


def test_words_of_a_long_question_are_trusted_where_the_best_chunk_has_most_of_them():
    terms = [(f"word{number}",) for number in range(12)]
    words_in_text = " ".join(f"word{number}" for number in range(8))
    candidates = [
        ChunkCandidate("many", 0.3, 9.0, words_in_text),
        ChunkCandidate("some", 0.3, 8.0, "word1 word2 word3"),
        ChunkCandidate("near", 0.5),
    ]
    trust = _trust(candidates, terms)
    scores = dict(_weigh(candidates, trust, VECTOR_WEIGHT))
    assert trust == 1.0
    assert scores["some"] == pytest.approx(0.6 * 0.3 + 0.4 * 8 / 9)
    assert scores["near"] < scores["some"] < scores["many"]


async def test_likeness_to_the_best_hits_decides_between_equally_near_chunks():
    best = [ChunkCandidate(f"best-{n}", 0.8, 9.0, "red green blue unbroken") for n in range(5)]
    index = SimilarityIndex({each.key: 0.9 for each in best} | {"alike": 0.8, "else": -0.3})
    ranking = await rank(index, ChunkCandidate("else", 0.5), ChunkCandidate("alike", 0.5), *best)
    assert index.best == [each.key for each in best]
    assert [key for key, _ in ranking] == [*index.best, "alike", "else"]
    scores = dict(ranking)
    assert scores["alike"] == pytest.approx(0.6 * (0.5 + 0.8) / 2)
    assert scores["else"] == pytest.approx(0.6 * 0.5 / 2)


async def test_without_trusted_words_likeness_to_the_best_hits_does_not_count():
    index = SimilarityIndex({})
    ranking = await rank(index, ChunkCandidate("a", 0.4), ChunkCandidate("b", 0.5))
    assert [key for key, _ in ranking] == ["b", "a"]
    assert index.best == []
    dissimilar = await rank(index, ChunkCandidate("a", 0.0, 3.0, "red green blue unbroken"))
    assert dict(dissimilar) == {"a": pytest.approx(0.4)}
    assert index.best == []


def test_a_dissimilar_chunk_is_a_hit_only_if_it_has_the_words():
    near = [
        ChunkCandidate("a", 0.3),
        ChunkCandidate("b", 0.1),
        ChunkCandidate("c", -0.5),
        ChunkCandidate("d", 0.0),
    ]
    with_words = [ChunkCandidate("e", -0.5, 2.0), ChunkCandidate("f", 0.1, 2.0)]
    assert [each.key for each in _filter_fitting([*near, *with_words], 0.2)] == ["a", "e", "f"]
    assert [each.key for each in _filter_fitting(near, -1.0)] == ["a", "b"]


def test_a_snippet_begins_with_the_first_of_the_sentences_that_have_most_of_the_words():
    text = "Nothing here. The rederiving of red. So reds and green. Green is red. Blue."
    assert _snippet(text, FORMS) == "So reds and green. Green is red. Blue."
    assert _snippet(text, {"grey"}) == text
    assert _snippet("Red and green", FORMS) == "Red and green"
    assert _snippet("", FORMS) == ""


def test_words_are_marked_in_all_their_forms():
    text = "Blues, and the Green; greenish."
    assert [text[start:end] for start, end in highlights(text, FORMS)] == ["Blues", "Green"]
