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

from tests.support.chunk_tables import open_table, put_chunks

SPAWN = multiprocessing.get_context("spawn")
WRITERS_AND_ROUNDS = pytest.mark.parametrize(
    ("writers", "rounds"), [(2, 6), pytest.param(4, 12, marks=pytest.mark.long)]
)
Task = Callable[[str, int, int, Barrier], None]


class Writers:
    """Processes that call the same function at the same time. Each loads LanceDB once, which takes
    a second or two of processor time."""

    def __init__(self, number: int) -> None:
        self._barrier = SPAWN.Barrier(number)  # freed with its last reference in this process
        pipes = [SPAWN.Pipe() for _ in range(number)]
        self._pipes = [our_end for our_end, _ in pipes]
        self._processes = [
            SPAWN.Process(target=run_tasks, args=(child_end, writer, self._barrier), daemon=True)
            for writer, (_, child_end) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, child_end in pipes:
            child_end.close()  # so that the end of a process is seen here

    def run(self, task: Task, url: str, count: int) -> None:
        for each in self._pipes:
            each.send((task, url, count))
        for each in self._pipes:
            assert each.poll(90), "it hangs"
            assert each.recv() is None

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def run_tasks(pipe: Connection, writer: int, barrier: Barrier) -> None:
    while True:
        task, url, count = pipe.recv()
        try:
            task(url, writer, count, barrier)
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())


@pytest.fixture(scope="module")
def start_writers() -> Iterator[Callable[[int], Writers]]:
    """Return a function that starts a number of processes, which the tests of this module share."""
    with ExitStack() as stack:
        yield cache(lambda number: stack.enter_context(closing(Writers(number))))


def write_documents(url: str, writer: int, count: int, barrier: Barrier) -> None:
    async def write_rounds() -> None:
        async with open_table(url) as index:
            for n in range(count):
                barrier.wait(60)  # the same new document, at the same moment
                await put_chunks(index, f"shared-{n}", 4)
                await put_chunks(index, f"own-{writer}-{n}", 3)

    asyncio.run(write_rounds())


def create_tables(url: str, writer: int, count: int, barrier: Barrier) -> None:
    async def write_document(table: str) -> None:
        async with open_table(url, table=table) as index:
            await put_chunks(index, f"doc-{writer}", 2)

    if not url.startswith("postgres"):  # all are at the barrier with everything loaded
        import lancedb  # noqa: F401

    for n in range(count):
        barrier.wait(60)
        asyncio.run(write_document(f"made_{n}"))


@WRITERS_AND_ROUNDS
async def test_processes_that_write_at_the_same_time_lose_and_double_nothing(
    url: str, start_writers: Callable[[int], Writers], writers: int, rounds: int
):
    async with open_table(url) as index:
        await put_chunks(index, "first", 1)
        await index.compact()  # once there are indexes, upserts find existing rows by them
    await asyncio.to_thread(start_writers(writers).run, write_documents, url, rounds)
    async with open_table(url) as index:
        assert [await index.count(f"shared-{n}") for n in range(rounds)] == [4] * rounds
        assert await index.count() == 1 + rounds * (4 + writers * 3)


@WRITERS_AND_ROUNDS
async def test_processes_that_make_the_index_at_the_same_time_lose_nothing(
    url: str, start_writers: Callable[[int], Writers], writers: int, rounds: int
):
    await asyncio.to_thread(start_writers(writers).run, create_tables, url, rounds)
    for n in range(rounds):
        async with open_table(url, table=f"made_{n}") as index:
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
    async with open_table(url) as index:
        await put_chunks(index, "a", 1)
    assert not Path(url, "chunks.creating").exists()
