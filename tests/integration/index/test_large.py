"""What a search in a large index reads is bounded, and it misses nothing that it was asked for."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.index import lance_table
from switchyard.services.index.chunk_index import ChunkIndex
from switchyard.services.index.generations import Generation
from switchyard.services.index.lance_table import LanceTable
from switchyard.services.index.opening import home_at
from switchyard.services.text.chunks import Chunk, chunk_id

DIMENSIONS = 8
LARGE = 1_000
GENERATION = Generation("chunks", "test", DIMENSIONS)


@pytest.fixture(autouse=True)
def large_from_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("lance", "postgres"):
        monkeypatch.setattr(f"switchyard.services.index.{kind}_table.APPROXIMATE_FROM", LARGE)


def vectors(count: int) -> list[list[float]]:
    randomly = random.Random(3)
    return [[randomly.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(count)]


async def put(index: ChunkIndex, document_id: str, made: list[list[float]]) -> None:
    some = [
        Chunk(chunk_id(document_id, n), document_id, n, 1, f"text {n}") for n in range(len(made))
    ]
    await index.put("Title", some, made)


async def test_as_many_as_are_wanted_are_found_within_a_few_documents(url: str):
    home = home_at(url)
    made = vectors(LARGE + 500)
    try:
        async with home.table(GENERATION) as index:
            await put(index, "a", made)
            far = [[-value for value in made[7]]] * 20
            await put(index, "far", far)
            await index.compact()
            found = await index.nearest(made[7], 20, within=["far"])
            assert [match.chunk.document_id for match in found] == ["far"] * 20
    finally:
        await home.close()


async def searched(index: ChunkIndex) -> dict[str, int]:
    """What LanceDB says of a search that it has just done."""
    assert isinstance(index, LanceTable)
    table: Any = index._table
    told = await table.query().nearest_to([1.0] * DIMENSIONS).limit(10).analyze_plan()
    return {
        name: sum(map(int, re.findall(rf"\b{name}=(\d+)", told)))
        for name in ("parts_loaded", "partitions_searched", "deltas_searched")
    }


async def test_the_index_of_neighbours_is_read_once_and_not_for_each_search(tmp_path: Path):
    home = home_at(str(tmp_path / "index"))
    async with home.table(GENERATION) as index:
        await put(index, "a", vectors(LARGE))
        await index.compact()
        first = await searched(index)
    async with home.table(GENERATION) as index:
        again = await searched(index)
    assert first["partitions_searched"] == again["partitions_searched"] > 0
    assert (first["parts_loaded"] > 0, again["parts_loaded"]) == (True, 0)


async def test_the_index_of_neighbours_does_not_fall_to_pieces_night_by_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lance_table, "_SEGMENTS", 3)
    home = home_at(str(tmp_path / "index"))
    async with home.table(GENERATION) as index:
        pieces = []
        for night in range(5):
            await put(index, f"doc-{night}", vectors(LARGE))
            await index.compact()
            pieces.append((await searched(index))["deltas_searched"])
        assert max(pieces) < 3
