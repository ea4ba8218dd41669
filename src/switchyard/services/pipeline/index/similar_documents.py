"""Find the documents that are similar to a given one.

Two documents are as similar as the means of their chunks' vectors (cosine). That is symmetric and
does not depend on what else is in the index. Candidates are the documents of the chunks that are
nearest to the document's mean and to a few of its chunks, so the whole index is never read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.services.pipeline.index.chunk_index import ChunkIndex

TOP_K = 5
"""Most links that a document gets."""
_MAX_PROBES = 8
"""Number of the document's chunks, evenly spread, whose neighbours are looked at."""
_NEIGHBOURS = 50
"""Number of nearest chunks that are looked at for the mean and for each probe."""
_MAX_CANDIDATES = 100
"""Most documents whose means are compared."""


@dataclass(frozen=True, slots=True)
class SimilarDocument:
    """A document that is similar to another."""

    document_id: str
    title: str
    similarity: float
    """Cosine of the two documents' means, rounded to four places."""


async def similar_documents(
    index: ChunkIndex, document_id: str, *, threshold: float, top_k: int = TOP_K
) -> list[SimilarDocument]:
    """Return the documents most similar to one, best first: at most `top_k`, each at least
    `threshold`."""
    mean = (await index.means_of([document_id])).get(document_id)
    if mean is None:
        return []
    probes = await index.vectors_at(
        document_id, _spread(await index.count(document_id), _MAX_PROBES)
    )
    candidates = await index.neighbours([mean, *probes], _NEIGHBOURS, excluding=document_id)
    candidates = candidates[:_MAX_CANDIDATES]
    means = await index.means_of([each.document_id for each in candidates])
    links = [
        SimilarDocument(each.document_id, each.title, round(_dot(mean, means[each.document_id]), 4))
        for each in candidates
        if each.document_id in means
    ]
    links = [link for link in links if link.similarity >= threshold]
    return sorted(links, key=lambda link: (-link.similarity, link.document_id))[:top_k]


def _dot(vector: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(vector, other, strict=True))


def _spread(count: int, max_count: int) -> list[int]:
    """Return at most `max_count` numbers below `count`, evenly spread, the first and the last among
    them."""
    if count <= max_count:
        return list(range(count))
    return [round(step * (count - 1) / (max_count - 1)) for step in range(max_count)]
