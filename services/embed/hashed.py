"""The offline embedder: words and parts of words, hashed into a vector.

No model and no download, and the same vector on every machine, for ever. It sees likeness of
wording and not of meaning: texts on one subject share words, and inflections of a word share its
parts. For meaning, set JOBS_EMBED_BASE_URL.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from services.ingest.stopwords import STOP_WORDS
from services.ingest.text import words

_PART_LENGTHS = (4, 5)
_PARTS_WEIGHT = 0.5
"""What all parts of a word weigh together, the word itself being 1."""
_SHORT_WORD_WEIGHT = 0.5
"""For words of one or two characters that are no stop words: symbols, numbers, particles."""


@dataclass(frozen=True, slots=True)
class HashedEmbedder:
    """Signed feature hashing of words and character n-grams, with sublinear term frequency."""

    dimensions: int

    @property
    def name(self) -> str:
        return f"hashed-1-{self.dimensions}"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        # A long document takes a second or so of pure computing.
        return await asyncio.to_thread(self.embed_now, texts)

    def embed_now(self, texts: Sequence[str]) -> list[list[float]]:
        """`embed`, for callers without an event loop."""
        known: dict[str, tuple[tuple[int, float], ...]] = {}
        return [self._vector(text, known) for text in texts]

    def _vector(self, text: str, known: dict[str, tuple[tuple[int, float], ...]]) -> list[float]:
        vector = [0.0] * self.dimensions
        for word, count in Counter(words(text)).items():
            if word in STOP_WORDS:
                continue
            if word not in known:
                known[word] = tuple(self._features(word))
            frequency = 1 + math.log(count)
            for at, weight in known[word]:
                vector[at] += frequency * weight
        length = math.sqrt(sum(value * value for value in vector))
        return [value / length for value in vector] if length else vector

    def _features(self, word: str) -> list[tuple[int, float]]:
        """Where a word and its parts go in the vector, and with which weight and sign."""
        whole = 1.0 if len(word) > 2 else _SHORT_WORD_WEIGHT
        found = [self._feature(f"w:{word}", whole)]
        parts = list(_parts(word))
        # Of n equal weights, the squares add up to that of the word.
        each = _PARTS_WEIGHT * whole / math.sqrt(len(parts)) if parts else 0.0
        found.extend(self._feature(f"p:{part}", each) for part in parts)
        return found

    def _feature(self, name: str, weight: float) -> tuple[int, float]:
        # Python's own hash() differs from process to process.
        digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        sign = 1.0 if digest & 1 else -1.0
        return (digest >> 1) % self.dimensions, sign * weight


def _parts(word: str) -> list[str]:
    if len(word) < _PART_LENGTHS[0]:
        return []
    framed = f"<{word}>"
    return [
        framed[at : at + length]
        for length in _PART_LENGTHS
        for at in range(len(framed) - length + 1)
    ]
