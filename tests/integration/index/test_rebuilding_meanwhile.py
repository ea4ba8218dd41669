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
from tests.support.rebuilding import (
    always,
    new_embedder,
    open_hashed_index,
    read_contents,
    rebuild,
    texts_of_document,
    write_document,
    write_documents,
)

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
    async with (
        open_hashed_index(url) as index,
        open_hashed_index(url) as writer_index,
        open_hashed_index(url) as search_index,
    ):
        old_names = [f"old-{n:03}" for n in range(document_count)]
        await write_documents(index, old_names, "first")
        expected = {name: texts_of_document(name, 3, "first") for name in old_names}
        is_done, has_changed = asyncio.Event(), asyncio.Event()
        searched_embedders: list[str] = []

        async def search_repeatedly() -> None:
            while not is_done.is_set():
                async with search_index.open_active() as (table, embedder):
                    hits = await search(table, embedder, "tide", 5, mode=SearchMode.HYBRID)
                    searched_embedders.append(embedder.name)
                    assert len(hits) == 5
                await has_changed.wait()  # to search an unchanged index again would only take time
                has_changed.clear()

        async def add_documents(writer: int) -> None:
            rng = random.Random(writer)
            for n in range(writer, arriving_count, 4):
                count = rng.randint(1, 4)
                await write_document(writer_index, f"new-{n:03}", count, "first")
                expected[f"new-{n:03}"] = texts_of_document(f"new-{n:03}", count, "first")
                if n % 2:
                    name_to_change = old_names[n % document_count]
                    await write_document(writer_index, name_to_change, count, f"changed {n}")
                    expected[name_to_change] = texts_of_document(
                        name_to_change, count, f"changed {n}"
                    )
                has_changed.set()

        async def rebuild_meanwhile() -> None:
            building = (await begin_rebuild(index, new_embedder(index))).building
            assert building is not None
            while not await continue_rebuild(index, building, always(False)):
                pass

        # Each document has one writer: 1 and 3 change different old documents.
        searching_task = asyncio.create_task(search_repeatedly())
        async with asyncio.TaskGroup() as group:
            for writer in (0, 1, 2):
                group.create_task(add_documents(writer))
            group.create_task(rebuild_meanwhile())
        await add_documents(3)
        is_done.set()
        has_changed.set()
        await searching_task
        assert (await index.generations()).active.embedder == "hashed-2-32"
        assert await read_contents(index) == expected
        assert searched_embedders[0] == "hashed-2-64"


async def test_a_write_begun_before_a_rebuild_goes_to_both_indexes(url: str):
    """The list of generations changes during a write, up to the swap."""
    async with open_hashed_index(url) as index:
        await write_document(index, "a", 1, "old")
        embedders_written: list[str] = []

        async def put(table: ChunkIndex, embedder: Embedder) -> None:
            embedders_written.append(embedder.name)
            if len(embedders_written) == 1:
                await rebuild(index)  # it begins and ends during the first write
            chunk = Chunk(chunk_id("b", 0), "b", 0, 1, "late")
            await table.put("late", [chunk], await embedder.embed(["late"]))

        assert [each.embedder for each in await index.write(put)] == ["hashed-2-64", "hashed-2-32"]
        assert (await read_contents(index))["b"] == ["late"]


async def test_a_document_that_changes_while_it_is_copied_is_copied_again(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    async with open_hashed_index(url) as index:
        await write_document(index, "a", 4, "old")
        await begin_rebuild(index, new_embedder(index))
        copy_differences = index_rebuild._copy_differences
        stale_copies: list[bool] = []

        async def copy_stale_texts(
            source: ChunkIndex,
            target: ChunkIndex,
            embedder: Embedder,
            document_id: str,
            *arguments: Any,
        ) -> bool:
            if stale_copies:
                return await copy_differences(source, target, embedder, document_id, *arguments)
            stale = await source.texts_of(document_id, 0, 10)
            await write_document(index, "a", 2, "new")
            vectors = await embedder.embed([each.chunk.text for each in stale])
            # The old text is written after the new one.
            await target.put("old", [each.chunk for each in stale], vectors)
            stale_copies.append(True)
            return True

        monkeypatch.setattr(index_rebuild, "_copy_differences", copy_stale_texts)
        await rebuild(index)
        assert await read_contents(index) == {"a": texts_of_document("a", 2, "new")}


@pytest.mark.parametrize("frozen_at", ["a document", "the last check"])
async def test_a_process_frozen_during_a_swap_changes_nothing_afterwards(
    url: str, monkeypatch: pytest.MonkeyPatch, frozen_at: str
) -> None:
    async with open_hashed_index(url) as index:
        for name in ("a", "b"):
            await write_document(index, name, 3, "old")
        building = (await begin_rebuild(index, new_embedder(index))).building
        assert building is not None
        thaw, frozen = asyncio.Event(), asyncio.Event()
        table = PostgresTable if url.startswith("postgres") else LanceTable
        method_name, freezing_call = (
            ("texts_of", 2) if frozen_at == "a document" else ("document_ids", 3)
        )
        method, calls = getattr(table, method_name), 0

        async def freeze_at_call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            result_before = await method(*args) if method_name == "texts_of" else None
            if calls == freezing_call:
                frozen.set()
                await thaw.wait()
            return await method(*args) if result_before is None else result_before

        monkeypatch.setattr(table, method_name, freeze_at_call)
        frozen_rebuild = asyncio.create_task(continue_rebuild(index, building, always(False)))
        await frozen.wait()
        monkeypatch.undo()
        await rebuild(index)
        await write_document(index, "a", 1, "new")
        await write_document(index, "c", 2, "new")
        thaw.set()
        assert await frozen_rebuild
        assert await read_contents(index) == {
            "a": texts_of_document("a", 1, "new"),
            "b": texts_of_document("b", 3, "old"),
            "c": texts_of_document("c", 2, "new"),
        }


async def build_until_killed(url: str) -> None:
    async with open_hashed_index(url) as index:
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
    async with open_hashed_index(url) as index:
        await write_documents(index, (f"doc-{n:03}" for n in range(60)), "old")
        before = await read_contents(index)
        building = (await begin_rebuild(index, new_embedder(index))).building
        assert building is not None
        for kill_number in range(5):
            process = SPAWN.Process(target=run_build, args=(url,))
            process.start()
            async with index.store.table(building) as table:
                await eventually(
                    partial(is_dead_or_has_chunks, table, (kill_number + 1) * 15, process), 60
                )
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert await asyncio.wait_for(continue_rebuild(index, building, always(False)), 60)
        assert (await index.generations()).active == building
        assert await read_contents(index) == before


async def test_a_document_deleted_during_a_rebuild_is_not_copied(url: str):
    async with open_hashed_index(url) as index:
        await write_document(index, "a", 2, "old")
        await write_document(index, "b", 2, "old")
        building = (await begin_rebuild(index, new_embedder(index))).building
        assert building is not None
        async with index.store.table(building) as table:
            chunk = Chunk(chunk_id("gone", 0), "gone", 0, 1, "gone")
            await table.put("gone", [chunk], await new_embedder(index).embed(["gone"]))
        assert await continue_rebuild(index, building, always(False))
        assert sorted(await read_contents(index)) == ["a", "b"]
