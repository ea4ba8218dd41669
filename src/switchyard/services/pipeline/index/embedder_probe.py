"""Does a server still make the vectors that the index holds under its model's name?

A name says little: two servers may give one name to different weights, and one server may be given
others over night. Their vectors side by side in one index would be found by nobody. So every
generation keeps the vector of a fixed sentence, and a process compares with that before it uses an
embedder for it, and again from time to time. The first to ask puts it, once for all processes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from switchyard.services.pipeline.index.chunk_index import IndexMismatch
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.generations import Generation, IndexStore
from switchyard.services.pipeline.index.scale import SimilarityCalibration

PROBE_SENTENCE = (
    "The tide comes in twice a day, and whoever lives by the sea is not surprised by it."
)
MIN_COSINE = 0.98
"""Least cosine of two vectors of the same weights for one text: other hardware, batches and
precisions come to 0.99 and more, other weights to far less."""
REMEDY = (
    "have every process ask the server that made them; or, when all ask the new one, "
    "`jobctl index rebuild --force`, and redrive what was refused"
)
VERIFICATION_TTL = 600.0
"""Seconds for which a process that has compared does not compare again."""


@dataclass(slots=True)
class VerificationCache:
    """Which generations' vectors this process has seen its embedders make, and when."""

    at: dict[Generation, float] = field(default_factory=dict)
    """By the monotonic clock."""


@dataclass(frozen=True, slots=True)
class ProbedEmbedder:
    """An embedder of a generation that others have named: it compares before it embeds."""

    embedder: Embedder
    store: IndexStore
    generation: Generation
    verified: VerificationCache

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def dimensions(self) -> int:
        return self.embedder.dimensions

    @property
    def calibration(self) -> SimilarityCalibration:
        return self.embedder.calibration

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Raises also IndexMismatch where its vectors are not those of the generation."""
        if self.verified.at.get(self.generation, -math.inf) < time.monotonic() - VERIFICATION_TTL:
            await self._compare()
            self.verified.at[self.generation] = time.monotonic()
        return await self.embedder.embed(texts)

    async def _compare(self) -> None:
        now = (await self.embedder.embed([PROBE_SENTENCE]))[0]
        kept = await self.store.probe(self.generation)
        if kept is None:
            await self._compare_with_a_chunk(now)
            kept = await self.store.put_probe(self.generation, json.dumps(now))
        self._require(likeness(decoded(kept), now))

    async def _compare_with_a_chunk(self, near: Sequence[float]) -> None:
        """What an index from before there were probes holds tells as much."""
        async with self.store.table(self.generation) as table:
            for match in await table.nearest(near, 1):
                chunk = match.chunk
                held = await table.vectors_at(chunk.document_id, [chunk.index])
                now = await self.embedder.embed([chunk.text])
                for vector in held:
                    self._require(likeness(vector, now[0]))

    def _require(self, alike: float) -> None:
        if alike < MIN_COSINE:
            raise IndexMismatch(f"{other_vectors(self.generation, alike)}: {REMEDY}")


async def probed(home: IndexStore, generation: Generation, embedder: Embedder) -> float | None:
    """How alike the embedder's vector and that of the generation are, from -1 to 1; None where none
    is kept. Puts nothing. Raises IndexUnavailable, IndexMismatch, and what the embedder raises."""
    kept = await home.probe(generation)
    if kept is None:
        return None
    return likeness(decoded(kept), (await embedder.embed([PROBE_SENTENCE]))[0])


def other_vectors(generation: Generation, alike: float) -> str:
    """What is said where they are not alike."""
    return (
        f"the server of JOBS_EMBED_BASE_URL makes other vectors under the name "
        f"{generation.embedder!r} than those that the index holds (likeness {alike:.2f})"
    )


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of two vectors, each of length 1 or 0; -1 where their lengths differ."""
    if len(one) != len(other):
        return -1.0
    if not any(one) and not any(other):
        return 1.0
    return sum(a * b for a, b in zip(one, other, strict=True))


def decoded(text: str) -> list[float]:
    """A probe as it was kept. Raises IndexMismatch for anything else."""
    try:
        return [float(value) for value in json.loads(text)]
    except (ValueError, TypeError, RecursionError) as error:
        raise IndexMismatch(
            "the probe of the index can't be read: restore it, or `jobctl index rebuild --force`"
        ) from error
