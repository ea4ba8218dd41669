"""`make bench ARGS=index`: writing and searching many chunks, in LanceDB and in PostgreSQL."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import SecretStr
from tokenizers import Tokenizer

from benchmarks.common import resident_memory
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.open_index import OpenIndex, open_index
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.index.wordllama import TOKENIZER, WORD_BEGINS
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.missing import MissingError
from tests.support.postgres import PostgresServer

DOCUMENT = 20
"""Chunks of a document; a batch of the embed worker has up to 512."""
QUERIES = 100
_WORDS = 180
_SUBJECTS = 500
_SUBJECT_WORDS = 100
_ON_SUBJECT = 0.4
"""Of the words of a text."""
_NEAREST = 10
Searched = Callable[[OpenIndex, str], Awaitable[object]]


@lru_cache(maxsize=1)
def _vocabulary() -> list[str]:
    """The whole words that the embedder knows, about the most frequent ones first."""
    package = find_spec("wordllama")
    assert package is not None
    assert package.origin is not None
    tokenizer = Tokenizer.from_file(str(Path(package.origin).parent / TOKENIZER))
    known = sorted(tokenizer.get_vocab().items(), key=lambda each: each[1])
    words = (token[1:].lower() for token, _ in known if token[0] == WORD_BEGINS)
    return list(dict.fromkeys(word for word in words if word.isalpha() and len(word) > 2))


def _text(random: Random) -> str:
    """Words of one of the subjects, and others, as often as in a language: the n-th most frequent
    one every n-th time. So vectors have neighbourhoods, as those of real texts do."""
    words = _vocabulary()
    subject = Random(random.randrange(_SUBJECTS)).sample(words, _SUBJECT_WORDS)
    return " ".join(
        random.choice(subject)
        if random.random() < _ON_SUBJECT
        else words[int(len(words) ** random.random()) - 1]
        for _ in range(_WORDS)
    )


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # proc(5)


async def _fill(index: OpenIndex, count: int, row: Row, memory: Row, peak: Row) -> None:
    random = Random(1)
    half = 0.0
    began = time.perf_counter()
    for number in range(0, count, 25 * DOCUMENT):
        chunks = [
            Chunk(
                chunk_id(f"doc-{n // DOCUMENT}", n % DOCUMENT),
                f"doc-{n // DOCUMENT}",
                n % DOCUMENT,
                1,
                _text(random),
            )
            for n in range(number, min(number + 25 * DOCUMENT, count))
        ]

        async def put(table: ChunkIndex, embedder: Embedder, chunks: list[Chunk] = chunks) -> None:
            await table.put("Title", chunks, await embedder.embed([c.text for c in chunks]))

        await index.write(put)
        if not half and number >= count / 2:
            half = resident_memory()
            _forget_peak()
    row.rounds.append(count / (time.perf_counter() - began))
    memory.rounds.append(resident_memory() - half)
    peak.rounds.append(resident_memory("VmHWM") - half)


async def _timed(index: OpenIndex, ask: Searched, row: Row) -> None:
    # Each measurement asks for words of its own: an index keeps what it has read of some.
    # They are the same for each kind of index.
    random = Random(row.name.partition(": ")[2])
    taken = []
    for _ in range(QUERIES):
        query = " ".join(_text(random).split()[:5])
        began = time.perf_counter()
        await ask(index, query)
        taken.append(1000 * (time.perf_counter() - began))
    row.rounds.append(statistics.quantiles(taken, n=20)[-1])


def _asking(mode: SearchMode) -> Searched:
    async def ask(index: OpenIndex, query: str) -> object:
        async with index.open_active() as (table, embedder):
            return await search(table, embedder, query, 10, mode=mode)

    return ask


async def _exactly(index: OpenIndex, query: str) -> object:
    async with index.open_active() as (table, embedder):
        return await table.nearest((await embedder.embed([query]))[0], 10, exact=True)


async def _recall(index: OpenIndex, row: Row) -> None:
    """How many of the nearest a search finds that does not compare all."""
    random = Random(3)
    found = 0
    for _ in range(QUERIES):
        async with index.open_active() as (table, embedder):
            vector = (await embedder.embed([" ".join(_text(random).split()[:5])]))[0]
            exact = await table.nearest(vector, _NEAREST, exact=True)
            quick = await table.nearest(vector, _NEAREST)
        found += len({each.chunk.id for each in exact} & {each.chunk.id for each in quick})
    row.rounds.append(100 * found / (QUERIES * _NEAREST))


@asynccontextmanager
async def _postgres() -> AsyncIterator[str]:
    with TemporaryDirectory(prefix="switchyard-postgres-") as directory:
        server = PostgresServer(Path(directory), with_vectors=True)
        await asyncio.to_thread(server.start)
        try:
            yield server.create_database()
        finally:
            await asyncio.to_thread(server.stop)


@asynccontextmanager
async def _lance() -> AsyncIterator[str]:
    with TemporaryDirectory(prefix="switchyard-index-") as directory:
        yield directory


async def _measured(kind: str, place: Any, count: int) -> list[Row]:
    rows: list[Row] = []

    def row(name: str, unit: str, target: str = "") -> Row:
        rows.append(Row(f"{kind}: {name}", unit, target=target))
        return rows[-1]

    async with place() as url:
        settings = Settings(index_url=SecretStr(url), embed_offline="wordllama", amqp_url=None)
        async with open_index(settings) as index:
            grown = Row(f"{kind}: memory grown in the second half", "MB", target="flat")
            peak = Row(f"{kind}: at most, while it is compacted behind the writes", "MB")
            await _fill(index, count, row("written", "chunks/s"), grown, peak)
            rows += [grown, peak]
            before = resident_memory()
            began = time.perf_counter()
            async with index.open_active() as (table, _):
                await table.compact()
            row("compacted", "s").rounds.append(time.perf_counter() - began)
            row("memory grown by that", "MB", "flat").rounds.append(resident_memory() - before)
            for mode in SearchMode:
                within = row(f"search, {mode}: p95", "ms", "under 30 ms")
                await _timed(index, _asking(mode), within)
            before = resident_memory()
            await _timed(index, _asking(SearchMode.HYBRID), Row("", "ms"))
            row(f"memory grown by {QUERIES} searches more", "MB", "flat").rounds.append(
                resident_memory() - before
            )
            await _recall(index, row("of the ten nearest, found", "%", "at least 95"))
            await _timed(index, _exactly, row("every vector compared: p95", "ms"))
    return rows


def index(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Chunks of 180 words with the vectors of `wordllama`: written as the embed worker does,
    compacted, and searched one query after the other."""
    rows = asyncio.run(_measured("LanceDB", _lance, count))
    try:
        rows += asyncio.run(_measured("pgvector", _postgres, count))
    except MissingError as error:
        rows.append(Row(f"pgvector: {error}", "", [0]))
    return rows


ALL: dict[str, tuple[Measurement, int, int]] = {"index": (index, 1, 100_000)}
