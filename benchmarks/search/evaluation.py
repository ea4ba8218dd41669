"""`make bench ARGS=search`: each embedder and each way of searching, on the collection."""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measurements import Measurement, Row
from benchmarks.search.collection import Collection, collections_in, documents, queries
from benchmarks.stage import Stage
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.embedder import Embedder, embedder_for
from switchyard.services.pipeline.index.generations import FIRST_TABLE
from switchyard.services.pipeline.index.lance_store import LanceStore
from switchyard.services.pipeline.index.local_model import MINILM_PACKAGE
from switchyard.services.pipeline.index.open_index import generation_of
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.text.chunks import Chunk, split_into_chunks
from switchyard.services.pipeline.text.plain_text import content_words
from switchyard.services.pipeline.text.stems import forms

_DEEP = 50
"""Hits that are looked at."""
_BATCH = 2_000
"""Chunks that are written at once."""


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


async def evaluate(embedder: Embedder) -> dict[SearchMode, Found]:
    """Index the documents, and ask all queries in each mode."""
    with tempfile.TemporaryDirectory() as directory:
        async with LanceStore(directory).table(generation_of(embedder, FIRST_TABLE)) as index:
            for document in documents():
                pages = [{"page": 1, "text": document.text}]
                chunks = split_into_chunks(document.name, pages)
                vectors = await embedder.embed([chunk.text for chunk in chunks])
                await index.put(document.title, chunks, vectors)
            await index.compact()
            return {mode: await _asked(index, embedder, mode) for mode in SearchMode}


async def _asked(index: ChunkIndex, embedder: Embedder, mode: SearchMode) -> Found:
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
    for name, dimensions in _embedders().items():
        settings = Settings.model_validate({"embed_offline": name, "embed_dimensions": dimensions})
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
            if mode is SearchMode.HYBRID:
                first.target = "at least that of the best single way"
                mrr.target = first.target
            rows += [first, mrr, nothing, *kinds]
    return rows


def _embedders() -> dict[str, int]:
    """Those that ask nobody and are installed, with the length of their vectors."""
    found = {"wordllama": 256, "hashed": 256}
    return found | {"minilm": 384} if find_spec(MINILM_PACKAGE) else found


async def compare(collection: Collection, embedder: Embedder) -> dict[str, float]:
    """nDCG@10 of each way of searching a public collection, and of BM25 with stems over whole
    documents, the usual yardstick."""
    with tempfile.TemporaryDirectory() as directory:
        async with LanceStore(directory).table(generation_of(embedder, FIRST_TABLE)) as index:
            batch: list[Chunk] = []
            for name, text in collection.documents.items():
                batch += split_into_chunks(name, [{"page": 1, "text": text}])
                if len(batch) >= _BATCH:
                    await _write(index, embedder, batch)
                    batch = []
            await _write(index, embedder, batch)
            await index.compact()
            yardstick = _BM25(collection.documents)
            found: dict[str, list[float]] = {}
            for number, relevant in collection.relevant.items():
                question = collection.questions[number]
                first = yardstick.first(question)
                found.setdefault("BM25 with stems", []).append(_ndcg(first, relevant))
                for mode in SearchMode:
                    hits = await search(index, embedder, question, 10, mode=mode, per_document=1)
                    places = [hit.document_id for hit in hits]
                    found.setdefault(mode, []).append(_ndcg(places, relevant))
    return {way: statistics.mean(each) for way, each in found.items()}


async def _write(index: ChunkIndex, embedder: Embedder, chunks: list[Chunk]) -> None:
    await index.put("", chunks, await embedder.embed([chunk.text for chunk in chunks]))


def _ndcg(places: list[str], relevant: set[str]) -> float:
    """Of the first ten, from 0 to 1."""
    gain = sum(1 / math.log2(at + 2) for at, name in enumerate(places[:10]) if name in relevant)
    return gain / sum(1 / math.log2(at + 2) for at in range(min(len(relevant), 10)))


class _BM25:
    """Whole documents by their stems, with the usual parameters and without stop words."""

    def __init__(self, documents: dict[str, str], k1: float = 1.2, b: float = 0.75) -> None:
        self._found: dict[str, dict[str, float]] = {}
        counts = {name: Counter(_stems(text)) for name, text in documents.items()}
        usual = statistics.mean(each.total() for each in counts.values())
        for name, words in counts.items():
            longer = k1 * (1 - b + b * words.total() / usual)
            for word, number in words.items():
                self._found.setdefault(word, {})[name] = number * (k1 + 1) / (number + longer)
        self._size = len(documents)

    def first(self, question: str) -> list[str]:
        """The ten best."""
        scores: defaultdict[str, float] = defaultdict(float)
        for word in _stems(question):
            its = self._found.get(word, {})
            rarity = math.log(1 + (self._size - len(its) + 0.5) / (len(its) + 0.5))
            for name, weight in its.items():
                scores[name] += rarity * weight
        return sorted(scores, key=lambda name: -scores[name])[:10]


def _stems(text: str) -> list[str]:
    return [forms(word)[0] for word in content_words(text)]


def collection_quality(folder: Path) -> list[Row]:
    """How well each way of searching finds in the public collections of a folder, with each
    embedder that compares meaning."""
    rows: list[Row] = []
    embedders = _embedders()
    del embedders["hashed"]  # compares words, as BM25 does
    for name, dimensions in embedders.items():
        settings = Settings.model_validate({"embed_offline": name, "embed_dimensions": dimensions})
        for collection in collections_in(folder):
            found = asyncio.run(compare(collection, embedder_for(settings)))
            better = max(found["BM25 with stems"], found[SearchMode.VECTOR])
            for way, value in found.items():
                row = Row(f"{collection.name}, {name}, {way}: nDCG@10", "%", [100 * value])
                if way == SearchMode.HYBRID:
                    row.ratio = value / better
                    row.target = "1.05 × the better of BM25 with stems and vector"
                rows.append(row)
    return rows


ALL: dict[str, tuple[Measurement, int, int]] = {"search": (search_quality, 1, 1)}
