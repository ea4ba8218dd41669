"""Processes that write to one index, or make it, at the same time."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import pytest

from tests.support.chunk_tables import opened, put

SPAWN = multiprocessing.get_context("spawn")
# Each process loads LanceDB, which takes a second or more of processor time.
TOGETHER = pytest.mark.parametrize(
    ("writers", "rounds"), [(2, 6), pytest.param(4, 12, marks=pytest.mark.long)]
)


def write(url: str, who: int, how_many: int, barrier) -> None:
    async def rounds() -> None:
        async with opened(url) as index:
            for n in range(how_many):
                barrier.wait(60)  # the same new document, at the same moment
                await put(index, f"shared-{n}", 4)
                await put(index, f"own-{who}-{n}", 3)

    asyncio.run(rounds())


def create(url: str, who: int, how_many: int, barrier) -> None:
    async def write(table: str) -> None:
        async with opened(url, table=table) as index:
            await put(index, f"doc-{who}", 2)

    if not url.startswith("postgres"):  # all are at the barrier with everything loaded
        import lancedb  # noqa: F401

    for n in range(how_many):
        barrier.wait(60)
        asyncio.run(write(f"made_{n}"))


def run_together(target, url: str, writers: int, how_many: int) -> None:
    barrier = SPAWN.Barrier(writers)
    processes = [
        SPAWN.Process(target=target, args=(url, n, how_many, barrier)) for n in range(writers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0] * writers


@TOGETHER
async def test_processes_that_write_at_the_same_time_lose_and_double_nothing(
    url: str, writers: int, rounds: int
):
    await asyncio.to_thread(run_together, write, url, writers, rounds)
    async with opened(url) as index:
        assert [await index.count(f"shared-{n}") for n in range(rounds)] == [4] * rounds
        assert await index.count() == rounds * (4 + writers * 3)


@TOGETHER
async def test_processes_that_make_the_index_at_the_same_time_lose_nothing(
    url: str, writers: int, rounds: int
):
    await asyncio.to_thread(run_together, create, url, writers, rounds)
    for n in range(rounds):
        async with opened(url, table=f"made_{n}") as index:
            assert [await index.count(f"doc-{who}") for who in range(writers)] == [2] * writers


async def test_a_marker_of_a_process_that_died_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = str(tmp_path / "index")
    monkeypatch.setattr("switchyard.services.index.lance_home._CREATION_TIMEOUT", 0.2)
    Path(url).mkdir()
    Path(url, "chunks.creating").touch()
    async with opened(url) as index:
        await put(index, "a", 1)
    assert not Path(url, "chunks.creating").exists()
