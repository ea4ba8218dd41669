"""Check that a server still makes the vectors that the index holds under its model's name.

Two servers may give one name to different weights, and one server may change its weights over
night. In one index, the vectors of both would not find each other. So every generation stores the
vector of a fixed sentence, its probe. The first process that uses the generation stores it. A
process compares its embedder with the probe before the first use, and again from time to time.
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
from switchyard.services.pipeline.index.similarity_calibration import SimilarityCalibration

PROBE_SENTENCE = (
    "The tide comes in twice a day, and whoever lives by the sea is not surprised by it."
)
MIN_COSINE = 0.98
"""Lowest cosine of two vectors of one text at which the weights count as the same. With other
hardware, batches or precision the cosine is 0.99 and more; with other weights, far less."""
REMEDY = (
    "have every process use the server that made them; or, when all use the new one, "
    "`jobctl index rebuild --force`, and redrive the jobs that were refused"
)
VERIFICATION_TTL = 600.0
"""Seconds after a comparison until the process compares again."""


@dataclass(slots=True)
class VerificationCache:
    """The time at which this process last verified each generation's embedder."""

    verified_at: dict[Generation, float] = field(default_factory=dict)
    """By the monotonic clock."""


@dataclass(frozen=True, slots=True)
class ProbedEmbedder:
    """An embedder that verifies itself against the probe of its generation before it embeds."""

    embedder: Embedder
    store: IndexStore
    generation: Generation
    verifications: VerificationCache

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
        """Embed texts. Also raises IndexMismatch where the server makes other vectors than those of
        the generation."""
        if (
            self.verifications.verified_at.get(self.generation, -math.inf)
            < time.monotonic() - VERIFICATION_TTL
        ):
            await self._compare()
            self.verifications.verified_at[self.generation] = time.monotonic()
        return await self.embedder.embed(texts)

    async def _compare(self) -> None:
        vector = (await self.embedder.embed([PROBE_SENTENCE]))[0]
        stored_probe = await self.store.probe(self.generation)
        if stored_probe is None:
            await self._compare_with_a_chunk(vector)
            stored_probe = await self.store.put_probe(self.generation, json.dumps(vector))
        self._require_likeness(likeness(decode_probe(stored_probe), vector))

    async def _compare_with_a_chunk(self, probe_vector: Sequence[float]) -> None:
        """Verify with a stored chunk, for an index from before there were probes."""
        async with self.store.table(self.generation) as table:
            for match in await table.nearest(probe_vector, 1):
                chunk = match.chunk
                stored_vectors = await table.vectors_at(chunk.document_id, [chunk.index])
                present_vector = (await self.embedder.embed([chunk.text]))[0]
                for stored_vector in stored_vectors:
                    self._require_likeness(likeness(stored_vector, present_vector))

    def _require_likeness(self, cosine: float) -> None:
        if cosine < MIN_COSINE:
            raise IndexMismatch(f"{describe_mismatch(self.generation, cosine)}: {REMEDY}")


async def probe_likeness(
    store: IndexStore, generation: Generation, embedder: Embedder
) -> float | None:
    """Return the likeness of the embedder's vector and the generation's probe, from -1 to 1; None
    where no probe is stored. Stores nothing. Raises IndexUnavailable, IndexMismatch, and what the
    embedder raises."""
    stored_probe = await store.probe(generation)
    if stored_probe is None:
        return None
    return likeness(decode_probe(stored_probe), (await embedder.embed([PROBE_SENTENCE]))[0])


def describe_mismatch(generation: Generation, cosine: float) -> str:
    """Say that the server makes other vectors than the index holds."""
    return (
        f"the server of JOBS_EMBED_BASE_URL makes other vectors under the name "
        f"{generation.embedder!r} than those that the index holds (likeness {cosine:.2f})"
    )


def likeness(vector: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors, each of length 1 or 0; -1 where their lengths differ."""
    if len(vector) != len(other):
        return -1.0
    if not any(vector) and not any(other):
        return 1.0
    return sum(a * b for a, b in zip(vector, other, strict=True))


def decode_probe(text: str) -> list[float]:
    """Decode a stored probe. Raises IndexMismatch for anything else."""
    try:
        return [float(value) for value in json.loads(text)]
    except (ValueError, TypeError, RecursionError) as error:
        raise IndexMismatch(
            "the probe of the index can't be read: restore it, or `jobctl index rebuild --force`"
        ) from error
