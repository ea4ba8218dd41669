"""`make bench ARGS=search`: each embedder and each way of searching, on the collection."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from dataclasses import dataclass, field

from benchmarks.measurements import Measurement, Row
from benchmarks.search.collection import documents, queries
from benchmarks.stage import Stage
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.embedder import Embedder, embedder_for
from switchyard.services.pipeline.index.generations import FIRST_TABLE
from switchyard.services.pipeline.index.lance_store import LanceStore
from switchyard.services.pipeline.index.modes import Mode
from switchyard.services.pipeline.index.opening import generation_of
from switchyard.services.pipeline.index.ranking import search
from switchyard.services.pipeline.text.chunks import split

_DEEP = 50
"""Hits that are looked at."""


@dataclass
class Found:
    """How well one way of searching finds."""

    reciprocal_ranks: dict[str, list[float]] = field(default_factory=dict)
    """Of the right document, by kind of query: 1 for the first place, 0 where it is not found."""
    hits_for_nothing: int = 0
    """Of queries that no document answers."""

    @property
    def all(self) -> list[float]:
        return [rank for ranks in self.reciprocal_ranks.values() for rank in ranks]

    @property
    def first(self) -> int:
        """Queries whose right document comes first."""
        return sum(rank == 1 for rank in self.all)

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank, from 0 to 1."""
        return statistics.mean(self.all)


async def evaluate(embedder: Embedder) -> dict[Mode, Found]:
    """Index the documents, and ask all queries in each mode."""
    with tempfile.TemporaryDirectory() as directory:
        async with LanceStore(directory).table(generation_of(embedder, FIRST_TABLE)) as index:
            for document in documents():
                pages = [{"page": 1, "text": document.text}]
                chunks = split(document.name, pages)
                vectors = await embedder.embed([chunk.text for chunk in chunks])
                await index.put(document.title, chunks, vectors)
            await index.compact()
            return {mode: await _asked(index, embedder, mode) for mode in Mode}


async def _asked(index: ChunkIndex, embedder: Embedder, mode: Mode) -> Found:
    found = Found()
    for query in queries():
        hits = await search(index, embedder, query.text, _DEEP, mode=mode, per_document=1)
        if query.document is None:
            found.hits_for_nothing += len(hits)
            continue
        places = [hit.document_id for hit in hits]
        known = query.document in places
        rank = 1 / (1 + places.index(query.document)) if known else 0.0
        found.reciprocal_ranks.setdefault(query.kind, []).append(rank)
    return found


def search_quality(stage: Stage, rounds: int, count: int) -> list[Row]:
    """What search finds: right documents in the first place, and mean reciprocal rank."""
    rows: list[Row] = []
    for name in ("wordllama", "hashed"):
        settings = Settings.model_validate({"embed_offline": name})
        for mode, found in asyncio.run(evaluate(embedder_for(settings))).items():
            way = f"{name}, {mode}"
            first = Row(f"{way}: right in the first place", f"of {len(found.all)}")
            mrr = Row(f"{way}: MRR", "%")
            nothing = Row(f"{way}: hits for what no document answers", "")
            first.rounds.append(found.first)
            mrr.rounds.append(100 * found.mrr)
            nothing.rounds.append(found.hits_for_nothing)
            kinds = [
                Row(f"{way}: first, {kind}", f"of {len(ranks)}", [sum(r == 1 for r in ranks)])
                for kind, ranks in found.reciprocal_ranks.items()
            ]
            if mode is Mode.HYBRID:
                first.target = "at least that of the best single way"
                mrr.target = first.target
            rows += [first, mrr, nothing, *kinds]
    return rows


ALL: dict[str, tuple[Measurement, int, int]] = {"search": (search_quality, 1, 1)}
