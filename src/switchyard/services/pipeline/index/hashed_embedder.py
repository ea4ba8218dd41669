"""The offline embedder by wording: words and parts of words, hashed into a vector.

It needs no model and no download, and makes the same vector on every machine, for ever. It measures
likeness of wording and not of meaning: texts on one subject share words, and inflections of a word
share its parts, in any script. For meaning, there are wordllama and models behind a server.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from switchyard.services.pipeline.index.similarity_calibration import SimilarityCalibration
from switchyard.services.pipeline.text.plain_text import words
from switchyard.services.pipeline.text.stopwords import stop_words_among

_VERSION = 2
"""Version of the vectors; to be raised when a text gets another vector."""
_WORD_WEIGHT = 0.5
_STEM_WEIGHT = 0.9
"""Weight of a word's beginning, which `flower` and `flowers` share."""
_PARTS_WEIGHT = 0.3
"""Weight of all n-grams of a word together: endings, compounds, prefixes, misspellings."""
_STEM_LENGTHS = (3, 5)
"""Least and greatest length of a stem, in characters."""
_ARABIC_ARTICLE = "ال"
_PART_LENGTHS = (4, 5)
"""Lengths of n-grams, in characters."""
_SHORT_WORD = 2
"""Longest word, in characters, that has half the weight: numbers, symbols, particles."""
_MAX_CACHED_WORDS = 20_000
"""Words whose features are cached while texts are embedded: some 40 MB."""
_FREQUENCY_POWER = 0.75
"""Power of a word's frequency by which it counts: a word that occurs ten times says more than one
that occurs once, but not ten times as much."""


@dataclass(frozen=True, slots=True)
class HashedEmbedder:
    """Signed feature hashing of words, their beginnings and n-grams, by sublinear frequency."""

    dimensions: int

    @property
    def name(self) -> str:
        return f"hashed-{_VERSION}-{self.dimensions}"

    @property
    def calibration(self) -> SimilarityCalibration:
        # Short texts on unrelated subjects come to 0.1 on average and seldom to 0.2, texts on one
        # subject to 0.25 and more. A query of one word that no text has can reach nearly 0.25 by
        # chance.
        return SimilarityCalibration(min_relevance=0.25, min_similarity=0.22, vector_weight=0.3)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        # A long document takes a second or so of pure computing.
        return await asyncio.to_thread(self.embed_now, texts)

    def embed_now(self, texts: Sequence[str]) -> list[list[float]]:
        """Do what `embed` does, for callers without an event loop."""
        cached_features: dict[str, list[tuple[int, float]]] = {}
        return [self._vector(text, cached_features) for text in texts]

    def _vector(
        self, text: str, cached_features: dict[str, list[tuple[int, float]]]
    ) -> list[float]:
        vector = [0.0] * self.dimensions
        counts = Counter(words(text))
        stop_words = stop_words_among(counts)
        for word, count in counts.items():
            if word in stop_words:
                continue
            if word not in cached_features:
                if len(cached_features) >= _MAX_CACHED_WORDS:
                    cached_features.clear()  # a text of distinct words must not fill memory
                cached_features[word] = self._features(word)
            frequency = count**_FREQUENCY_POWER
            for dimension, weight in cached_features[word]:
                vector[dimension] += frequency * weight
        length = math.sqrt(sum(value * value for value in vector))
        return [value / length for value in vector] if length else vector

    def _features(self, word: str) -> list[tuple[int, float]]:
        """Return the dimensions of a word and its parts, each with weight and sign."""
        if len(word) <= _SHORT_WORD:
            return [self._feature(f"w:{word}", (_WORD_WEIGHT + _STEM_WEIGHT) / 2)]
        features = [
            self._feature(f"w:{word}", _WORD_WEIGHT),
            self._feature(f"s:{_stem(word)}", _STEM_WEIGHT),
        ]
        parts = _parts(word)
        # As a vector, all parts together have the length _PARTS_WEIGHT.
        part_weight = _PARTS_WEIGHT / math.sqrt(len(parts))
        return features + [self._feature(f"p:{part}", part_weight) for part in parts]

    def _feature(self, name: str, weight: float) -> tuple[int, float]:
        # Python's own hash() differs from process to process.
        digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        sign = 1.0 if digest & 1 else -1.0
        return (digest >> 1) % self.dimensions, sign * weight


def _stem(word: str) -> str:
    """Return the beginning of a word, without the article that Arabic writes before it."""
    min_length, max_length = _STEM_LENGTHS
    base = word.removeprefix(_ARABIC_ARTICLE)
    if len(base) < min_length:
        base = word
    return base[: max(min_length, min(max_length, len(base) - 1))]


def _parts(word: str) -> list[str]:
    """Return the n-grams of a word of three characters or more, with marks at its ends."""
    framed = f"<{word}>"
    return [
        framed[start : start + length]
        for length in _PART_LENGTHS
        for start in range(len(framed) - length + 1)
    ]
