"""The order of a hybrid search is that of its score, and few texts are looked at for it."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from switchyard.services.pipeline.index import ranking
from switchyard.services.pipeline.index.chunk_index import ChunkCandidate, Key
from switchyard.services.pipeline.index.ranking import _fitting, _snippet, _weighed
from switchyard.services.pipeline.text.plain import words, words_of

TERMS = {"red", "green", "blue", "unbroken"}
WEIGHT = 0.6


def found(seed: int, count: int) -> list[ChunkCandidate]:
    """Chunks that are similar and chunks that have words; many are both, and some only look as if
    they had a word."""
    randomly = random.Random(seed)
    known = ["red", "Green", "blue", "unbroken", "redder", "bluish", "other", "words"]
    return [
        ChunkCandidate(
            f"id-{n:03}",
            randomly.choice([-0.1, 0.2, 0.5, 1.2]),
            0.0 if n % 3 else randomly.choice([1.0, 3.0, 7.5]),
            text=" ".join(randomly.choices(known, k=6)),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_best_come_first_by_the_weighted_sum_and_equal_ones_by_their_keys(seed: int):
    candidates = found(seed, 60)
    scores: dict[Key, float] = {}
    best = max(each.relevance for each in candidates)
    for each in candidates:
        scores[each.key] = WEIGHT * min(max(each.similarity, 0.0), 1.0)
        if each.relevance:
            share = max(len(TERMS & set(words(each.text))), 1) / len(TERMS)
            scores[each.key] += share**2 * ((1 - WEIGHT) * each.relevance / best)
    wanted = sorted(scores, key=lambda key: (-scores[key], key))
    assert list(_weighed(candidates, TERMS, WEIGHT)) == [(key, scores[key]) for key in wanted]


def test_what_only_looks_near_is_no_hit_and_what_has_words_is_one_however_far():
    near = [
        ChunkCandidate("a", 0.3),
        ChunkCandidate("b", 0.1),
        ChunkCandidate("c", -0.5),
        ChunkCandidate("d", 0.0),
    ]
    worded = [ChunkCandidate("e", -0.5, 2.0), ChunkCandidate("f", 0.1, 2.0)]
    assert [each.key for each in _fitting([*near, *worded], 0.2)] == ["a", "e", "f"]
    assert [each.key for each in _fitting(near, -1.0)] == ["a", "b"]


def test_texts_that_can_not_be_among_the_first_are_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    looked_at = []

    def noted(text: str, some: Collection[str]) -> set[str]:
        looked_at.append(text)
        return words_of(text, some)

    monkeypatch.setattr(ranking, "words_of", noted)
    one = ChunkCandidate("one", 0.9, 5.0, text="red green blue unbroken")
    others = [ChunkCandidate(f"id-{n:03}", 0.0, 5.0, text="red, and green") for n in range(100)]
    ranked = _weighed([*others, one], TERMS, WEIGHT)
    assert next(ranked)[0] == "one"
    assert looked_at == [one.text]
    assert next(ranked)[0] == "id-000"
    assert len(list(ranked)) == 99
    assert len(looked_at) == 101

    looked_at.clear()
    told = [replace(each, has=len(TERMS & set(words(each.text)))) for each in (*others, one)]
    again = list(_weighed(told, TERMS, WEIGHT))
    assert looked_at == []
    assert again == list(_weighed([*others, one], TERMS, WEIGHT))


def test_a_snippet_begins_with_the_first_of_the_sentences_that_have_most_of_the_words():
    text = "Nothing here. The unbrokenness of red. So red and green. Green is red. Blue."
    assert _snippet(text, TERMS) == "So red and green. Green is red. Blue."
    assert _snippet(text, {"grey"}) == text
    assert _snippet("Red and green", TERMS) == "Red and green"
    assert _snippet("", TERMS) == ""
