"""An index is rebuilt while documents arrive, searches run, and processes freeze or die: no chunk
is missing or there twice, and every search has hits."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from switchyard.services.pipeline.index import index_rebuild
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.index_rebuild import begin_rebuild, continue_rebuild
from switchyard.services.pipeline.index.lance_table import LanceTable
from switchyard.services.pipeline.index.postgres_table import PostgresTable
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.eventually import eventually
from tests.support.rebuilding import always, contents, fill, opened, other, rebuilt, texts, write

SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.parametrize(
    ("document_count", "arriving_count"),
    [(24, 12), pytest.param(60, 100, marks=[pytest.mark.long, pytest.mark.timeout(400)])],
)
async def test_documents_that_arrive_or_change_during_a_rebuild_are_indexed_once(
    url: str, document_count: int, arriving_count: int
):
    """While the index is rebuilt, documents arrive, others change, and a search runs all the
    time."""
    async with opened(url) as index, opened(url) as writing, opened(url) as searching:
        old = [f"old-{n:03}" for n in range(document_count)]
        await fill(index, old, "first")
        expected = {name: texts(name, 3, "first") for name in old}
        done, changed = asyncio.Event(), asyncio.Event()
        searched: list[str] = []

        async def search_repeatedly() -> None:
            while not done.is_set():
                async with searching.open_active() as (table, embedder):
                    hits = await search(table, embedder, "tide", 5, mode=SearchMode.HYBRID)
                    searched.append(embedder.name)
                    assert len(hits) == 5
                await changed.wait()  # the same search of the same index costs most of the time
                changed.clear()

        async def arrive(writer: int) -> None:
            randomly = random.Random(writer)
            for n in range(writer, arriving_count, 4):
                count = randomly.randint(1, 4)
                await write(writing, f"new-{n:03}", count, "first")
                expected[f"new-{n:03}"] = texts(f"new-{n:03}", count, "first")
                if n % 2:
                    changing = old[n % document_count]
                    await write(writing, changing, count, f"changed {n}")
                    expected[changing] = texts(changing, count, f"changed {n}")
                changed.set()

        async def rebuild() -> None:
            building = (await begin_rebuild(index, other(index))).building
            assert building is not None
            while not await continue_rebuild(index, building, always(False)):
                pass

        # Each document has one writer: 1 and 3 change the odd ones, lots apart.
        searching_task = asyncio.create_task(search_repeatedly())
        async with asyncio.TaskGroup() as group:
            for writer in (0, 1, 2):
                group.create_task(arrive(writer))
            group.create_task(rebuild())
        await arrive(3)
        done.set()
        changed.set()
        await searching_task
        assert (await index.generations()).active.embedder == "hashed-2-32"
        assert await contents(index) == expected
        assert searched[0] == "hashed-2-64"


async def test_a_write_begun_before_a_rebuild_goes_to_both_indexes(url: str):
    """The list of generations changes during a write, up to the swap."""
    async with opened(url) as index:
        await write(index, "a", 1, "old")
        written: list[str] = []

        async def put(table: ChunkIndex, embedder: Embedder) -> None:
            written.append(embedder.name)
            if len(written) == 1:
                await rebuilt(index)  # begun and ended before the first write is done
            chunk = Chunk(chunk_id("b", 0), "b", 0, 1, "late")
            await table.put("late", [chunk], await embedder.embed(["late"]))

        assert [each.embedder for each in await index.write(put)] == ["hashed-2-64", "hashed-2-32"]
        assert (await contents(index))["b"] == ["late"]


async def test_a_document_that_changes_while_it_is_copied_is_copied_again(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    async with opened(url) as index:
        await write(index, "a", 4, "old")
        await begin_rebuild(index, other(index))
        copy_differences = index_rebuild._copy_differences
        disturbed_writes: list[bool] = []

        async def copy_stale_texts(
            source: ChunkIndex,
            target: ChunkIndex,
            embedder: Embedder,
            document_id: str,
            *rest: Any,
        ) -> bool:
            if disturbed_writes:
                return await copy_differences(source, target, embedder, document_id, *rest)
            stale = await source.texts_of(document_id, 0, 10)
            await write(index, "a", 2, "new")
            vectors = await embedder.embed([each.chunk.text for each in stale])
            await target.put("old", [each.chunk for each in stale], vectors)  # the old text wins
            disturbed_writes.append(True)
            return True

        monkeypatch.setattr(index_rebuild, "_copy_differences", copy_stale_texts)
        await rebuilt(index)
        assert await contents(index) == {"a": texts("a", 2, "new")}


@pytest.mark.parametrize("frozen_at", ["a document", "the last check"])
async def test_a_process_frozen_during_a_swap_changes_nothing_afterwards(
    url: str, monkeypatch: pytest.MonkeyPatch, frozen_at: str
) -> None:
    async with opened(url) as index:
        for name in ("a", "b"):
            await write(index, name, 3, "old")
        building = (await begin_rebuild(index, other(index))).building
        assert building is not None
        thaw, frozen = asyncio.Event(), asyncio.Event()
        table = PostgresTable if url.startswith("postgres") else LanceTable
        name, freezing_call = ("texts_of", 2) if frozen_at == "a document" else ("document_ids", 3)
        call, calls = getattr(table, name), 0

        async def freeze_at_call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            result_before = await call(*args) if name == "texts_of" else None
            if calls == freezing_call:
                frozen.set()
                await thaw.wait()
            return await call(*args) if result_before is None else result_before

        monkeypatch.setattr(table, name, freeze_at_call)
        first = asyncio.create_task(continue_rebuild(index, building, always(False)))
        await frozen.wait()
        monkeypatch.undo()
        await rebuilt(index)
        await write(index, "a", 1, "new")
        await write(index, "c", 2, "new")
        thaw.set()
        assert await first
        assert await contents(index) == {
            "a": texts("a", 1, "new"),
            "b": texts("b", 3, "old"),
            "c": texts("c", 2, "new"),
        }


async def build_until_killed(url: str) -> None:
    async with opened(url) as index:
        building = (await index.generations()).building
        if building is not None:
            await continue_rebuild(index, building, always(False))


async def is_dead_or_has_chunks(table: ChunkIndex, min_count: int, process: BaseProcess) -> bool:
    return not process.is_alive() or await table.count() >= min_count


def run_build(url: str) -> None:
    asyncio.run(build_until_killed(url))


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_rebuild_that_is_killed_five_times_copies_all_chunks(url: str):
    async with opened(url) as index:
        await fill(index, (f"doc-{n:03}" for n in range(60)), "old")
        before = await contents(index)
        building = (await begin_rebuild(index, other(index))).building
        assert building is not None
        for kill in range(5):
            process = SPAWN.Process(target=run_build, args=(url,))
            process.start()
            async with index.store.table(building) as table:
                await eventually(
                    partial(is_dead_or_has_chunks, table, (kill + 1) * 15, process), 60
                )
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert await asyncio.wait_for(continue_rebuild(index, building, always(False)), 60)
        assert (await index.generations()).active == building
        assert await contents(index) == before


async def test_a_document_deleted_during_a_rebuild_is_not_copied(url: str):
    async with opened(url) as index:
        await write(index, "a", 2, "old")
        await write(index, "b", 2, "old")
        building = (await begin_rebuild(index, other(index))).building
        assert building is not None
        async with index.store.table(building) as table:
            chunk = Chunk(chunk_id("gone", 0), "gone", 0, 1, "gone")
            await table.put("gone", [chunk], await other(index).embed(["gone"]))
        assert await continue_rebuild(index, building, always(False))
        assert sorted(await contents(index)) == ["a", "b"]
