"""`jobctl index` shows, rebuilds and compacts the index of a running system."""

from __future__ import annotations

from typing import get_args

import pytest

from switchyard.cli.pipeline.index import OfflineName
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from switchyard.services.pipeline.workers.reindex import RebuildIndex
from tests.acceptance.conftest import CommandLine


def test_the_embedders_that_can_be_named_are_those_of_the_job() -> None:
    annotation = RebuildIndex.model_fields["offline"].annotation
    literal = next(part for part in get_args(annotation) if get_args(part))
    assert {name.value for name in OfflineName} == set(get_args(literal))


async def _write_one_chunk() -> None:
    async def put(table: ChunkIndex, embedder: Embedder) -> None:
        chunk = Chunk(chunk_id("a", 0), "a", 0, 1, "The tide rises twice a day.")
        await table.put("Tides", [chunk], await embedder.embed([chunk.text]))

    async with open_index(Settings()) as index:
        await index.write(put)


@pytest.mark.long
async def test_an_index_is_shown_rebuilt_and_compacted(jobctl: CommandLine) -> None:
    await _write_one_chunk()
    index_state = jobctl.json("index", "show")
    assert [
        (generation["role"], generation["embedder"], generation["chunks"])
        for generation in index_state["generations"]
    ] == [("active", "wordllama-1-256", 1)]
    assert "active: wordllama-1-256, 1 chunk (chunks)" in jobctl.ok("index", "show")
    assert "Nothing is being built" in jobctl.run("index", "abandon").stderr
    # There is no worker yet.
    timed_out = jobctl.run("index", "compact", "--wait", "--timeout", "100ms")
    assert timed_out.returncode == 1, timed_out.stdout
    assert "give both" in jobctl.run("index", "rebuild", "--timeout", "1s").stderr
    with jobctl.started("worker", "reindex"):
        jobctl.ok("index", "rebuild", "--offline", "hashed", "--dimensions", "64", "--wait")
        jobctl.ok("index", "compact", "--wait")
    index_state = jobctl.json("index", "show")
    assert [
        (generation["role"], generation["embedder"], generation["chunks"])
        for generation in index_state["generations"]
    ] == [
        ("active", "hashed-2-64", 1),
        ("retired", "wordllama-1-256", None),
    ]
    index_errors = jobctl.run("index", "show").stderr
    assert "It keeps hashed-2-64 until `jobctl index rebuild`" in index_errors
