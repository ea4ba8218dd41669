"""The PostgreSQL server of an index dies, and its synchronous standby takes over: all that was
written is found, and search goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from switchyard.services.pipeline.index import postgres_store
from switchyard.services.pipeline.index.chunk_index import ChunkIndex, IndexUnavailable
from switchyard.services.pipeline.index.generations import Generation
from switchyard.services.pipeline.index.open_index import index_store_at
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.eventually import eventually
from tests.support.postgres_standby import Pair, running_pair, url_of

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(240), pytest.mark.postgres]

CHUNKS = 4
"""Number of chunks of each document."""
WRITERS, DOCUMENTS = 4, 100
"""Concurrent writers, and the documents that each writes."""
WRITTEN_BEFORE = 100
"""Documents that are written before the server fails."""
STATEMENT_TIMEOUT = 10.0
"""Seconds that a statement may take: for so long every client waits for a silent server."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running_pair(with_vectors=True) as running_servers:
        yield running_servers


def make_chunks(document: str) -> list[Chunk]:
    text = f"what the {document} says"
    return [Chunk(chunk_id(document, n), document, n, 1, text) for n in range(CHUNKS)]


class IndexTraffic:
    """Indexes documents as the job does, and searches for those that are written."""

    def __init__(self, index: ChunkIndex) -> None:
        self.index = index
        self.written: list[str] = []
        self.answered_searches = 0
        """Searches that found the document they asked for."""
        self.unavailable_count = 0
        """Writes and searches that raised IndexUnavailable."""

    async def write(self, writer: int) -> None:
        for number in range(DOCUMENTS):
            await self._write(f"document{writer}x{number}")

    async def _write(self, document: str) -> None:
        while True:  # as the retries of a job do
            try:
                await self.index.put("Title", make_chunks(document), [[1.0, 0.0]] * CHUNKS)
                await self.index.drop_from(document, CHUNKS)
            except IndexUnavailable:
                self.unavailable_count += 1
                await asyncio.sleep(0.1)
            else:
                self.written.append(document)
                return

    async def search(self) -> None:
        """Search until cancelled."""
        while True:
            await asyncio.sleep(0.01)
            for document in self.written[-3:]:
                try:
                    matches = await self.index.keyword_search(document, CHUNKS)
                except IndexUnavailable:
                    self.unavailable_count += 1
                else:
                    assert {match.chunk.document_id for match in matches} == {document}
                    assert len(matches) == CHUNKS
                    self.answered_searches += 1


@pytest.mark.parametrize("failure", ["killed", "silent"])
async def test_the_standby_takes_over_in_the_middle_of_indexing_and_search(
    pair: Pair, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "_TIMEOUT", STATEMENT_TIMEOUT)
    primary, standby = pair
    store = index_store_at(url_of(pair))
    async with store.table(Generation("chunks", "test", 2)) as index:
        traffic = IndexTraffic(index)
        async with asyncio.TaskGroup() as tasks:
            searching = tasks.create_task(traffic.search())
            writing = [tasks.create_task(traffic.write(writer)) for writer in range(WRITERS)]
            await eventually(
                lambda: len(traffic.written) >= WRITTEN_BEFORE and traffic.answered_searches > 0
            )
            began = time.monotonic()
            # Silent: the server is frozen, and its host still accepts what is sent to it.
            await asyncio.to_thread(primary.stop if failure == "killed" else primary.pause)
            await asyncio.to_thread(standby.promote)
            await asyncio.wait(writing)
            answered_searches_before = traffic.answered_searches
            await eventually(
                lambda: traffic.answered_searches > answered_searches_before, what="search goes on"
            )
            searching.cancel()
        assert time.monotonic() - began < (
            STATEMENT_TIMEOUT * 1.8 if failure == "silent" else STATEMENT_TIMEOUT
        )
        assert traffic.unavailable_count, "the server failed after all work was done"
        assert len(traffic.written) == WRITERS * DOCUMENTS
        assert await index.count() == WRITERS * DOCUMENTS * CHUNKS
        for document in traffic.written:
            assert await index.count(document) == CHUNKS
    await store.close()
