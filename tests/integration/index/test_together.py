"""Processes that write to one index, or make it, at the same time."""

from __future__ import annotations

import asyncio
import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.support.chunk_tables import opened, put

SPAWN = multiprocessing.get_context("spawn")
WRITERS_AND_ROUNDS = pytest.mark.parametrize(
    ("writers", "rounds"), [(2, 6), pytest.param(4, 12, marks=pytest.mark.long)]
)
Target = Callable[[str, int, int, Barrier], None]


class Writers:
    """Processes that call the same function at the same time. Each loads LanceDB once, which takes
    a second or two of processor time."""

    def __init__(self, number: int) -> None:
        self._barrier = SPAWN.Barrier(number)  # freed with its last reference in this process
        pipes = [SPAWN.Pipe() for _ in range(number)]
        self._ours = [ours for ours, _ in pipes]
        self._processes = [
            SPAWN.Process(target=run_targets, args=(theirs, writer, self._barrier), daemon=True)
            for writer, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()  # so that the end of a process is seen here

    def run(self, target: Target, url: str, count: int) -> None:
        for each in self._ours:
            each.send((target, url, count))
        for each in self._ours:
            assert each.poll(90), "it hangs"
            assert each.recv() is None

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def run_targets(pipe: Connection, writer: int, barrier: Barrier) -> None:
    while True:
        target, url, count = pipe.recv()
        try:
            target(url, writer, count, barrier)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())


@pytest.fixture(scope="module")
def writers_of() -> Iterator[Callable[[int], Writers]]:
    """Start this number of processes, which the tests of this module share."""
    with ExitStack() as stack:
        yield cache(lambda number: stack.enter_context(closing(Writers(number))))


def write(url: str, writer: int, count: int, barrier: Barrier) -> None:
    async def rounds() -> None:
        async with opened(url) as index:
            for n in range(count):
                barrier.wait(60)  # the same new document, at the same moment
                await put(index, f"shared-{n}", 4)
                await put(index, f"own-{writer}-{n}", 3)

    asyncio.run(rounds())


def create(url: str, writer: int, count: int, barrier: Barrier) -> None:
    async def write(table: str) -> None:
        async with opened(url, table=table) as index:
            await put(index, f"doc-{writer}", 2)

    if not url.startswith("postgres"):  # all are at the barrier with everything loaded
        import lancedb  # noqa: F401

    for n in range(count):
        barrier.wait(60)
        asyncio.run(write(f"made_{n}"))


@WRITERS_AND_ROUNDS
async def test_processes_that_write_at_the_same_time_lose_and_double_nothing(
    url: str, writers_of: Callable[[int], Writers], writers: int, rounds: int
):
    async with opened(url) as index:
        await put(index, "first", 1)
        await index.compact()  # with indexes, upserts find existing rows in another way
    await asyncio.to_thread(writers_of(writers).run, write, url, rounds)
    async with opened(url) as index:
        assert [await index.count(f"shared-{n}") for n in range(rounds)] == [4] * rounds
        assert await index.count() == 1 + rounds * (4 + writers * 3)


@WRITERS_AND_ROUNDS
async def test_processes_that_make_the_index_at_the_same_time_lose_nothing(
    url: str, writers_of: Callable[[int], Writers], writers: int, rounds: int
):
    await asyncio.to_thread(writers_of(writers).run, create, url, rounds)
    for n in range(rounds):
        async with opened(url, table=f"made_{n}") as index:
            assert [await index.count(f"doc-{writer}") for writer in range(writers)] == [
                2
            ] * writers


async def test_a_marker_of_a_process_that_died_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = str(tmp_path / "index")
    monkeypatch.setattr("switchyard.services.pipeline.index.lance_store._CREATION_TIMEOUT", 0.2)
    Path(url).mkdir()
    Path(url, "chunks.creating").touch()
    async with opened(url) as index:
        await put(index, "a", 1)
    assert not Path(url, "chunks.creating").exists()
