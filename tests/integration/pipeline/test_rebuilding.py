"""An index is built anew for another embedder while documents come in and searches go on: nothing
is missing, nothing is there twice, and no search finds nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from switchyard.services.index import rebuilding
from switchyard.services.index.chunk_index import ChunkIndex, IndexMismatch
from switchyard.services.index.embedder import Embedder, embedder_for
from switchyard.services.index.generations import Generation, Generations, decoded, encoded
from switchyard.services.index.lance_table import LanceTable
from switchyard.services.index.modes import Mode
from switchyard.services.index.opening import OpenIndex, open_index
from switchyard.services.index.postgres_table import PostgresTable
from switchyard.services.index.ranking import search
from switchyard.services.index.rebuilding import (
    RETIRED_FOR,
    AnotherRebuild,
    Progress,
    abandon,
    begin,
    build,
    compact,
)
from switchyard.services.jobs.outcomes import Done, Next
from switchyard.services.settings import Settings
from switchyard.services.text.chunks import Chunk, chunk_id
from switchyard.services.workers import reindex as reindex_worker
from tests.integration.pipeline.conftest import Pipeline
from tests.support.eventually import eventually

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(params=["lancedb", pytest.param("pgvector", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "pgvector":
        return request.getfixturevalue("pgvector_url")
    return str(tmp_path / "index")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[OpenIndex]:
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed", embed_dimensions=64)
    async with open_index(settings) as index:
        yield index


def other(index: OpenIndex, dimensions: int = 32) -> Embedder:
    """The embedder that an index is built anew for."""
    return embedder_for(index.settings.model_copy(update={"embed_dimensions": dimensions}))


async def write(index: OpenIndex, document_id: str, count: int, text: str) -> None:
    """As `embed_content` does."""
    chunks = [
        Chunk(chunk_id(document_id, n), document_id, n, 1, f"the tide {text} {document_id} {n}")
        for n in range(count)
    ]

    async def put(table: ChunkIndex, embedder: Embedder) -> None:
        vectors = await embedder.embed([chunk.text for chunk in chunks])
        await table.put(text, chunks, vectors)
        await table.drop_from(document_id, count)

    await index.write(put)


async def fill(index: OpenIndex, names: Iterable[str], text: str) -> None:
    """Documents of three chunks each, written at once: each write to LanceDB takes longer than the
    one before it."""
    chunks = [
        Chunk(chunk_id(name, n), name, n, 1, f"the tide {text} {name} {n}")
        for name in names
        for n in range(3)
    ]

    async def put(table: ChunkIndex, embedder: Embedder) -> None:
        await table.put(text, chunks, await embedder.embed([chunk.text for chunk in chunks]))

    await index.write(put)


async def contents(index: OpenIndex) -> dict[str, list[str]]:
    """The texts of every document in the generation that is searched. Fails where a chunk is there
    twice, or has another length of vector."""
    async with index.searched() as (table, embedder):
        found = {
            document_id: [each.chunk.text for each in await table.texts_of(document_id, 0, 10_000)]
            for document_id in await table.document_ids()
        }
        assert sum(map(len, found.values())) == await table.count()
        assert table.dimensions == embedder.dimensions
        return found


def texts(document_id: str, count: int, text: str) -> list[str]:
    return [f"the tide {text} {document_id} {n}" for n in range(count)]


def always(answer: bool) -> Callable[[], bool]:
    return lambda: answer


async def rebuilt(index: OpenIndex, dimensions: int = 32) -> Generation:
    building = (await begin(index, other(index, dimensions))).building
    assert building is not None
    while not await build(index, building, always(False)):
        pass
    return building


async def test_an_index_is_built_anew_and_swapped(url: str):
    async with opened(url) as index:
        for n in range(5):
            await write(index, f"doc-{n}", n + 1, "old")
        before = await contents(index)
        assert (await index.generations()).active.dimensions == 64
        building = await rebuilt(index)
        now = await index.generations()
        assert (now.active, now.building) == (building, None)
        assert now.active.embedder == "hashed-1-32"
        assert [each.generation.table for each in now.retired] == ["chunks"]
        assert await contents(index) == before
        assert (await begin(index, other(index))).building is None  # it is of that embedder


async def test_the_settings_name_another_embedder_and_the_index_is_used_as_it_is(url: str):
    async with opened(url) as index:
        await write(index, "a", 3, "old")
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed", embed_dimensions=128)
    async with open_index(settings) as index:
        await write(index, "b", 2, "new")
        assert sorted(await contents(index)) == ["a", "b"]
        async with index.searched() as (table, embedder):
            assert embedder.name == "hashed-1-64"
            assert await search(table, embedder, "the tide", 3)


async def test_an_index_whose_embedder_nobody_can_make_is_refused(url: str):
    async with opened(url) as index:
        odd = Generation("chunks", "some-model-64", 64)
        async with index.home.table(odd):
            pass
        with pytest.raises(IndexMismatch, match="JOBS_EMBED_BASE_URL, JOBS_EMBED_MODEL"):
            async with index.searched():
                pass


@pytest.mark.parametrize(
    ("there", "arriving"),
    [(40, 24), pytest.param(60, 100, marks=[pytest.mark.long, pytest.mark.timeout(400)])],
)
async def test_documents_that_come_in_and_change_meanwhile_are_in_it_once(
    url: str, there: int, arriving: int
):
    """Documents arrive, others change, and a search runs all the time."""
    async with opened(url) as index, opened(url) as writing, opened(url) as searching:
        old = [f"old-{n:03}" for n in range(there)]
        await fill(index, old, "first")
        wanted = {name: texts(name, 3, "first") for name in old}
        done, changed = asyncio.Event(), asyncio.Event()
        searched: list[str] = []

        async def look() -> None:
            while not done.is_set():
                async with searching.searched() as (table, embedder):
                    hits = await search(table, embedder, "tide", 5, mode=Mode.HYBRID)
                    searched.append(embedder.name)
                    assert len(hits) == 5
                await changed.wait()  # the same search of the same index costs most of the time
                changed.clear()

        async def arrive(lot: int) -> None:
            randomly = random.Random(lot)
            for n in range(lot, arriving, 4):
                count = randomly.randint(1, 4)
                await write(writing, f"new-{n:03}", count, "first")
                wanted[f"new-{n:03}"] = texts(f"new-{n:03}", count, "first")
                if n % 2:
                    changing = old[n % there]
                    await write(writing, changing, count, f"changed {n}")
                    wanted[changing] = texts(changing, count, f"changed {n}")
                changed.set()

        async def rebuild() -> None:
            building = (await begin(index, other(index))).building
            assert building is not None
            while not await build(index, building, always(False)):
                pass

        # Each document has one writer: 1 and 3 change the odd ones, lots apart.
        looking = asyncio.create_task(look())
        async with asyncio.TaskGroup() as group:
            for lot in (0, 1, 2):
                group.create_task(arrive(lot))
            group.create_task(rebuild())
        await arrive(3)
        done.set()
        changed.set()
        await looking
        assert (await index.generations()).active.embedder == "hashed-1-32"
        assert await contents(index) == wanted
        assert searched[0] == "hashed-1-64"


async def test_who_began_to_write_before_the_building_writes_to_both(url: str):
    """The catalogue changes while somebody writes, up to the swap."""
    async with opened(url) as index:
        await write(index, "a", 1, "old")
        written: list[str] = []

        async def put(table: ChunkIndex, embedder: Embedder) -> None:
            written.append(embedder.name)
            if len(written) == 1:
                await rebuilt(index)  # begun and ended before the first write is done
            chunk = Chunk(chunk_id("b", 0), "b", 0, 1, "late")
            await table.put("late", [chunk], await embedder.embed(["late"]))

        assert [each.embedder for each in await index.write(put)] == ["hashed-1-64", "hashed-1-32"]
        assert (await contents(index))["b"] == ["late"]


async def test_a_document_that_changes_under_the_rebuilds_hands_is_brought_over_anew(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    async with opened(url) as index:
        await write(index, "a", 4, "old")
        await begin(index, other(index))
        copied = rebuilding._copied
        times: list[bool] = []

        async def disturbed(
            source: ChunkIndex,
            target: ChunkIndex,
            embedder: Embedder,
            document_id: str,
            *rest: Any,
        ) -> bool:
            if times:
                return await copied(source, target, embedder, document_id, *rest)
            stale = await source.texts_of(document_id, 0, 10)
            await write(index, "a", 2, "new")
            vectors = await embedder.embed([each.chunk.text for each in stale])
            await target.put("old", [each.chunk for each in stale], vectors)  # the old text wins
            times.append(True)
            return True

        monkeypatch.setattr(rebuilding, "_copied", disturbed)
        await rebuilt(index)
        assert await contents(index) == {"a": texts("a", 2, "new")}


@pytest.mark.parametrize("frozen_at", ["a document", "the last look"])
async def test_who_was_frozen_while_another_has_swapped_changes_nothing_of_what_is_there_now(
    url: str, monkeypatch: pytest.MonkeyPatch, frozen_at: str
) -> None:
    async with opened(url) as index:
        for name in ("a", "b"):
            await write(index, name, 3, "old")
        building = (await begin(index, other(index))).building
        assert building is not None
        thaw, frozen = asyncio.Event(), asyncio.Event()
        table = PostgresTable if url.startswith("postgres") else LanceTable
        name, which = ("texts_of", 2) if frozen_at == "a document" else ("document_ids", 3)
        call, calls = getattr(table, name), 0

        async def slow(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            found = await call(*args) if name == "texts_of" else None
            if calls == which:
                frozen.set()
                await thaw.wait()
            return await call(*args) if found is None else found

        monkeypatch.setattr(table, name, slow)
        first = asyncio.create_task(build(index, building, always(False)))
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


async def test_a_building_goes_on_where_it_was_noted(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rebuilding, "NOTED_AFTER", 1)
    async with opened(url) as index:
        for n in range(4):
            await write(index, f"doc-{n}", 2, "old")
        building = (await begin(index, other(index))).building
        assert building is not None
        assert not await build(index, building, always(True))
        turns = iter([False, False, True])
        assert not await build(index, building, lambda: next(turns))
        assert Progress.of(await index.home.noted(building)) == Progress(1, "doc-1")
        assert (await index.generations()).active.dimensions == 64
        assert await build(index, building, always(False))
        assert len(await contents(index)) == 4


async def build_until_killed(url: str) -> None:
    async with opened(url) as index:
        building = (await index.generations()).building
        if building is not None:
            await build(index, building, always(False))


async def far_enough(table: ChunkIndex, wanted: int, process: BaseProcess) -> bool:
    return not process.is_alive() or await table.count() >= wanted


def run_build(url: str) -> None:
    asyncio.run(build_until_killed(url))


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_a_building_that_is_killed_five_times_has_all_in_the_end(url: str):
    async with opened(url) as index:
        await fill(index, (f"doc-{n:03}" for n in range(120)), "old")
        before = await contents(index)
        building = (await begin(index, other(index))).building
        assert building is not None
        for kill in range(5):
            process = SPAWN.Process(target=run_build, args=(url,))
            process.start()
            async with index.home.table(building) as table:
                await eventually(partial(far_enough, table, (kill + 1) * 30, process), 60)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert await asyncio.wait_for(build(index, building, always(False)), 60)
        assert (await index.generations()).active == building
        assert await contents(index) == before


async def test_one_building_at_a_time_and_it_can_be_given_up(url: str):
    async with opened(url) as index:
        await write(index, "a", 2, "old")
        building = (await begin(index, other(index))).building
        assert building is not None
        assert (await begin(index, other(index))).building == building
        with pytest.raises(AnotherRebuild, match=r"hashed-1-32.*jobctl index abandon"):
            await begin(index, other(index, 16))
        assert await abandon(index) == building
        assert await abandon(index) is None
        assert await build(index, building, always(False))  # who was at it stops
        assert (await index.generations()).active.dimensions == 64
        await rebuilt(index, 16)
        assert (await contents(index)) == {"a": texts("a", 2, "old")}


async def test_what_was_replaced_is_removed_once_nobody_can_be_at_it(url: str):
    async with opened(url) as index:
        await write(index, "a", 2, "old")
        await rebuilt(index)
        assert await compact(index) == []
        by_the_ledger = replace(index, clock=lambda: time.time() + RETIRED_FOR + 60)
        assert [each.table for each in await compact(by_the_ledger)] == ["chunks"]
        assert (await index.generations()).retired == ()
        assert await contents(index) == {"a": texts("a", 2, "old")}
        await rebuilt(index, 16)
        await write(index, "b", 1, "new")
        assert sorted(await contents(index)) == ["a", "b"]


async def test_a_document_that_is_gone_meanwhile_is_not_brought_over(url: str):
    async with opened(url) as index:
        await write(index, "a", 2, "old")
        await write(index, "b", 2, "old")
        building = (await begin(index, other(index))).building
        assert building is not None
        async with index.home.table(building) as table:
            chunk = Chunk(chunk_id("gone", 0), "gone", 0, 1, "gone")
            await table.put("gone", [chunk], await other(index).embed(["gone"]))
        assert await build(index, building, always(False))
        assert sorted(await contents(index)) == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"active": 1, "building": null, "retired": [], "number": 1}',
        encoded(Generations(Generation("x; DROP TABLE y", "e", 8))).decode(),
        "[" * 100_000,
    ],
)
def test_a_catalogue_that_somebody_else_has_written_is_refused(text: str):
    with pytest.raises(IndexMismatch, match="can't be read"):
        decoded(text)


# --- the jobs -----------------------------------------------------------------------------------


async def test_a_document_is_reindexed_and_its_state_stays(pipeline: Pipeline, tmp_path: Path):
    (tmp_path / "a.txt").write_text("The Moon draws the water of the sea, and the tide rises.")
    await pipeline.run("ingest_document", {"path": str(tmp_path / "a.txt")})
    document_id = pipeline.result("extract_text")["document_id"]
    async with open_index(pipeline.settings) as index:
        async with index.searched() as (table, _):
            await table.delete_document(document_id)
        outcome = await pipeline.one("reindex_content", {"document_id": document_id})
        assert isinstance(outcome, Done)
        assert outcome.result["chunks"] == 1
        assert len(await contents(index)) == 1
    assert pipeline.ledger is not None
    document = await pipeline.ledger.get_document(document_id)
    assert document is not None
    assert document.state == "completed"


async def test_the_job_builds_in_shifts_and_the_next_one_goes_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    pipeline.settings = pipeline.settings.model_copy(
        update={"embed_offline": "hashed", "embed_dimensions": 64}
    )
    async with open_index(pipeline.settings) as index:
        await write(index, "a", 2, "old")
        with monkeypatch.context() as short:
            short.setattr(reindex_worker, "SHIFT", -1.0)
            first = await pipeline.one("rebuild_index", {"dimensions": 32, "force": True})
        assert isinstance(first, Next)
        (following,) = first.jobs
        assert dict(following.payload) == {"dimensions": 32, "force": False}
        second = await pipeline.one("rebuild_index", dict(following.payload))
        assert isinstance(second, Done)
        assert second.result == {"embedder": "hashed-1-32", "dimensions": 32, "built": True}
        third = await pipeline.one("rebuild_index", {"dimensions": 32})
        assert isinstance(third, Done)
        assert third.result["built"] is False
        assert isinstance(await pipeline.one("compact_storage", {}), Done)
        assert await contents(index) == {"a": texts("a", 2, "old")}


async def test_a_document_that_comes_in_behind_a_swap_is_of_the_new_embedder(
    pipeline: Pipeline, tmp_path: Path
):
    (tmp_path / "a.txt").write_text("The Moon draws the water of the sea, and the tide rises.")
    await pipeline.run("ingest_document", {"path": str(tmp_path / "a.txt")})
    await pipeline.run("rebuild_index", {"offline": "hashed", "dimensions": 32})
    (tmp_path / "b.txt").write_text("Bread rises when yeast has sugar, water and time.")
    await pipeline.run("ingest_document", {"path": str(tmp_path / "b.txt")})
    assert pipeline.result("embed_content")["embedder"] == "hashed-1-32"
    async with open_index(pipeline.settings) as index:
        assert len(await contents(index)) == 2
