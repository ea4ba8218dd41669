"""Which documents are like a document, and how much.

Two documents are as similar as the means of their chunks' vectors (cosine). That is symmetric
and does not depend on what else is in the index. Candidates are the owners of the chunks that
are nearest to the document's mean and to a few of its chunks, so the whole index is never read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.services.index.chunk_index import ChunkIndex

TOP_K = 5
"""Links that a document gets at most."""
THRESHOLD = 0.22
"""Least similarity of a link. Fits the offline embedder, with which short texts on unrelated
subjects come to 0.1 on average and seldom to 0.2, and texts on one subject to 0.25 and more.
Models have other scales: the payload of `link_content` can name another threshold."""
_PROBES = 8
"""Chunks, evenly spread, whose neighbours are looked at."""
_NEIGHBOURS = 50
"""Chunks looked at for each probe."""
_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class Link:
    """Another document that is like this one."""

    document_id: str
    title: str
    similarity: float
    """Cosine of the two documents' means, rounded to four places."""


async def similar_documents(
    index: ChunkIndex, document_id: str, *, top_k: int = TOP_K, threshold: float = THRESHOLD
) -> list[Link]:
    """The documents most similar to one, best first, at most `top_k`, each at least `threshold`."""
    own = (await index.vectors_of([document_id])).get(document_id, [])
    if not own:
        return []
    mean = _mean(own)
    titles: dict[str, str] = {}
    nearest: dict[str, float] = {}
    for probe in (mean, *_spread(own, _PROBES)):
        for match in await index.nearest(probe, _NEIGHBOURS, excluding=document_id):
            other = match.chunk.document_id
            titles[other] = match.title
            nearest[other] = max(nearest.get(other, -1.0), match.similarity)
    candidates = sorted(nearest, key=lambda other: (-nearest[other], other))[:_CANDIDATES]
    vectors = await index.vectors_of(candidates)
    links = [
        Link(other, titles[other], round(_dot(mean, _mean(vectors[other])), 4))
        for other in candidates
        if other in vectors
    ]
    links = [link for link in links if link.similarity >= threshold]
    return sorted(links, key=lambda link: (-link.similarity, link.document_id))[:top_k]


def _mean(vectors: Sequence[Sequence[float]]) -> list[float]:
    """The direction of the sum, of length 1 (or 0)."""
    total = [math.fsum(column) for column in zip(*vectors, strict=True)]
    length = math.sqrt(math.fsum(value * value for value in total))
    return [value / length for value in total] if length else total


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _spread(vectors: Sequence[list[float]], most: int) -> list[list[float]]:
    if len(vectors) <= most:
        return list(vectors)
    return [vectors[round(step * (len(vectors) - 1) / (most - 1))] for step in range(most)]
