"""The jobs that rebuild an index, or a document's part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.services.engine.jobs.outcomes import Done, Next
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.workers import reindex as reindex_worker
from tests.integration.pipeline.conftest import Pipeline
from tests.support.rebuilding import read_contents, texts_of_document, write_document


async def test_a_document_is_reindexed_and_its_state_stays(pipeline: Pipeline, tmp_path: Path):
    (tmp_path / "a.txt").write_text("The Moon draws the water of the sea, and the tide rises.")
    await pipeline.run("ingest_document", {"path": str(tmp_path / "a.txt")})
    document_id = pipeline.result("extract_text")["document_id"]
    async with open_index(pipeline.settings) as index:
        async with index.open_active() as (table, _):
            await table.delete_document(document_id)
        outcome = await pipeline.run_job("reindex_content", {"document_id": document_id})
        assert isinstance(outcome, Done)
        assert outcome.result["chunks"] == 1
        assert len(await read_contents(index)) == 1
    assert pipeline.ledger is not None
    document = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert document is not None
    assert document.state == "completed"


async def test_a_job_ends_with_its_time_budget_and_the_next_one_continues(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    pipeline.settings = pipeline.settings.model_copy(
        update={"embed_offline": "hashed", "embed_dimensions": 64}
    )
    async with open_index(pipeline.settings) as index:
        await write_document(index, "a", 2, "old")
        with monkeypatch.context() as without_time:
            without_time.setattr(reindex_worker, "TIME_BUDGET", -1.0)
            first = await pipeline.run_job("rebuild_index", {"dimensions": 32, "force": True})
        assert isinstance(first, Next)
        (next_job,) = first.jobs
        assert dict(next_job.payload) == {"dimensions": 32, "force": False}
        second = await pipeline.run_job("rebuild_index", dict(next_job.payload))
        assert isinstance(second, Done)
        assert second.result == {"embedder": "hashed-2-32", "dimensions": 32, "built": True}
        third = await pipeline.run_job("rebuild_index", {"dimensions": 32})
        assert isinstance(third, Done)
        assert third.result["built"] is False
        assert isinstance(await pipeline.run_job("compact_storage", {}), Done)
        assert await read_contents(index) == {"a": texts_of_document("a", 2, "old")}


async def test_a_document_after_a_rebuild_is_embedded_by_the_new_embedder(
    pipeline: Pipeline, tmp_path: Path
):
    (tmp_path / "a.txt").write_text("The Moon draws the water of the sea, and the tide rises.")
    await pipeline.run("ingest_document", {"path": str(tmp_path / "a.txt")})
    await pipeline.run("rebuild_index", {"offline": "hashed", "dimensions": 32})
    (tmp_path / "b.txt").write_text("Bread rises when yeast has sugar, water and time.")
    await pipeline.run("ingest_document", {"path": str(tmp_path / "b.txt")})
    assert pipeline.result("embed_content")["embedder"] == "hashed-2-32"
    async with open_index(pipeline.settings) as index:
        assert len(await read_contents(index)) == 2
