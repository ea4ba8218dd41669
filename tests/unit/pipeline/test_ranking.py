"""The order of a hybrid search is that of its score, and few texts are looked at for it."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from switchyard.services.index import ranking
from switchyard.services.index.chunk_index import WordMatch
from switchyard.services.index.ranking import _Ranked, _snippet, _weighed
from switchyard.services.text.chunks import Chunk
from switchyard.services.text.plain import words, words_of

TERMS = {"red", "green", "blue", "unbroken"}
WEIGHT = 0.6


def found(seed: int, count: int) -> tuple[list[_Ranked], list[WordMatch]]:
    """Chunks that are similar and chunks that have words; many of either are both, and some only
    look as if they had a word."""
    randomly = random.Random(seed)
    known = ["red", "Green", "blue", "unbroken", "redder", "bluish", "other", "words"]
    made = [
        Chunk(f"id-{n:03}", "a", n, 1, " ".join(randomly.choices(known, k=6))) for n in range(count)
    ]
    similar = [_Ranked(chunk, "T", randomly.choice([0.2, 0.5, 1.2])) for chunk in made[::2]]
    worded = [WordMatch(chunk, "T", randomly.choice([1.0, 3.0, 7.5])) for chunk in made[::3]]
    return similar, worded


@pytest.mark.parametrize("seed", range(20))
def test_best_come_first_by_the_weighted_sum_and_equal_ones_by_their_ids(seed: int):
    similar, worded = found(seed, 60)
    scores = {each.chunk.id: WEIGHT * min(each.score, 1.0) for each in similar}
    best = max(each.relevance for each in worded)
    for each in worded:
        share = max(len(TERMS & set(words(each.chunk.text))), 1) / len(TERMS)
        added = share**2 * ((1 - WEIGHT) * each.relevance / best)
        scores[each.chunk.id] = scores.get(each.chunk.id, 0.0) + added
    wanted = sorted(scores, key=lambda key: (-scores[key], key))
    ranked = list(_weighed(similar, worded, TERMS, WEIGHT))
    assert [each.chunk.id for each in ranked] == wanted
    assert [each.score for each in ranked] == [scores[key] for key in wanted]


def test_texts_that_can_not_be_among_the_first_are_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    looked_at = []

    def noted(text: str, some: Collection[str]) -> set[str]:
        looked_at.append(text)
        return words_of(text, some)

    monkeypatch.setattr(ranking, "words_of", noted)
    one = Chunk("one", "a", 0, 1, "red green blue unbroken")
    others = [Chunk(f"id-{n:03}", "a", n, 1, "red, and green") for n in range(100)]
    worded = [WordMatch(chunk, "T", 5.0) for chunk in (*others, one)]
    ranked = _weighed([_Ranked(one, "T", 0.9)], worded, TERMS, WEIGHT)
    assert next(ranked).chunk is one
    assert looked_at == [one.text]
    assert next(ranked).chunk is others[0]
    assert len(list(ranked)) == 99
    assert len(looked_at) == 101

    looked_at.clear()
    told = [replace(each, has=len(TERMS & set(words(each.chunk.text)))) for each in worded]
    again = list(_weighed([_Ranked(one, "T", 0.9)], told, TERMS, WEIGHT))
    assert looked_at == []
    assert again == list(_weighed([_Ranked(one, "T", 0.9)], worded, TERMS, WEIGHT))


def test_a_snippet_begins_with_the_first_of_the_sentences_that_have_most_of_the_words():
    text = "Nothing here. The unbrokenness of red. So red and green. Green is red. Blue."
    assert _snippet(text, TERMS) == "So red and green. Green is red. Blue."
    assert _snippet(text, {"grey"}) == text
    assert _snippet("Red and green", TERMS) == "Red and green"
    assert _snippet("", TERMS) == ""
