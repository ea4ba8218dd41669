"""A document goes through its stages once, and ends in a state that says how."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.message import JobMessage
from switchyard.services.common.files.storage_keys import content_hash, stage_key
from switchyard.services.engine.jobs.outcomes import Done
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.llm.llm_errors import LlmRefused
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.index.wordllama import WordllamaEmbedder
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.samples.articles import sample
from switchyard.services.pipeline.workers import embed as embed_worker
from switchyard.services.pipeline.workers.stages import EMBED
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import (
    STAGES,
    count_chunks,
    get_document,
    ingest,
    read_result,
    write_input,
)
from tests.support import llm_server
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer
from tests.support.pdfs import TEXT, pdf
from tests.support.site import Exchange, Request, held

# --- all stages ------------------------------------------------------------------------


async def test_a_pdf_goes_through_all_stages(pipeline: Pipeline, paper: str):
    assert await pipeline.run("ingest_document", {"path": paper, "source": "here"}) == STAGES
    document_id = pipeline.result("ingest_document")["document_id"]
    stored = await get_document(pipeline, document_id)
    assert (stored.state, stored.current_stage) == ("completed", "link_content")
    assert list(stored.completed_stages) == STAGES
    assert (stored.filename, stored.source, stored.media_type) == (
        "paper.pdf",
        "here",
        "application/pdf",
    )
    result = read_result(pipeline, document_id)
    assert result["state"] == "completed"
    assert (result["title"], result["page_count"], result["word_count"]) == ("On Tides", 2, 30)
    assert result["summary"]["method"] == "extractive"
    assert result["summary"]["summary"].startswith("The tide rises twice a day.")
    assert result["chunks"] == await count_chunks(pipeline, document_id) == 1


@pytest.mark.parametrize(
    ("name", "content", "media_type"),
    [
        ("notes.md", "# On Tides\n\nThe tide rises twice a day.", "text/markdown"),
        ("notes.txt", "The tide rises twice a day.", "text/plain"),
    ],
)
async def test_text_files_go_through_all_stages(
    pipeline: Pipeline, tmp_path: Path, name: str, content: str, media_type: str
):
    payload = write_input(tmp_path, name, content.encode())
    document_id = await ingest(pipeline, payload)
    assert read_result(pipeline, document_id)["media_type"] == media_type
    assert await count_chunks(pipeline, document_id) == 1


async def test_a_backfills_links_do_not_go_to_the_hot_lane(pipeline: Pipeline, paper: str):
    await pipeline.run("ingest_document", {"path": paper}, lane="backfill")
    lanes = [job.lane for _, outcome in pipeline.outcomes for job in getattr(outcome, "jobs", ())]
    assert lanes == [None, None, None, None, "maintenance"]


async def test_an_upload_is_taken_from_storage(pipeline: Pipeline):
    pipeline.storage.put("uploads/incoming/1", pdf())
    payload = {"key": "uploads/incoming/1", "filename": "a.pdf", "title": "Given"}
    document_id = await ingest(pipeline, payload)
    assert read_result(pipeline, document_id)["title"] == "Given"
    assert pipeline.storage.get(f"uploads/{document_id}/input.pdf") == pdf()


async def test_the_pipeline_runs_without_a_ledger(pipeline: Pipeline, paper: str):
    without_ledger = replace(pipeline, ledger=None)
    assert await without_ledger.run("ingest_document", {"path": paper}) == STAGES
    assert await without_ledger.run("ingest_document", {"path": paper}) == STAGES
    assert without_ledger.result("embed_content")["reused"]


# --- repeats --------------------------------------------------------------------------------


async def test_the_same_content_again_is_the_existing_document(
    pipeline: Pipeline, paper: str, tmp_path: Path
):
    first = await ingest(pipeline, {"path": paper})
    copy = write_input(tmp_path, "copy.pdf", Path(paper).read_bytes())
    assert await pipeline.run("ingest_document", copy) == ["ingest_document"]
    assert pipeline.result("ingest_document") == {
        "document_id": first,
        "duplicate": True,
        "state": "completed",
    }


async def test_the_same_source_again_is_the_existing_document(
    pipeline: Pipeline, paper: str, tmp_path: Path
):
    first = await ingest(pipeline, {"path": paper, "source": "https://example.org/1"})
    other_input = write_input(tmp_path, "newer.pdf", pdf(["Another text altogether."]))
    payload = other_input | {"source": "https://example.org/1"}
    assert await pipeline.run("ingest_document", payload) == ["ingest_document"]
    assert pipeline.result("ingest_document")["document_id"] == first
    uploads = [stored.key async for stored in pipeline.storage.list_async("uploads")]
    assert uploads == [f"uploads/{first}/input.pdf"]


async def test_a_document_whose_pipeline_stopped_is_continued(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str
):
    llm.next(llm_server.fails(401, "bad key"))
    with pytest.raises(LlmRefused):
        await llm_pipeline.run("ingest_document", {"path": paper})
    assert await llm_pipeline.run("ingest_document", {"path": paper}) == STAGES
    assert llm_pipeline.result("ingest_document")["duplicate"]
    assert llm_pipeline.result("extract_text")["reused"]


@pytest.mark.parametrize("message", ["no such thing", "the context length is exceeded"])
async def test_a_document_whose_summary_is_refused_is_searchable_and_marked(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str, message: str
):
    llm.next(llm_server.fails(400, message))
    assert await llm_pipeline.run("ingest_document", {"path": paper}) == STAGES
    document_id = llm_pipeline.result("ingest_document")["document_id"]
    summary = read_result(llm_pipeline, document_id)["summary"]
    assert summary["method"] == "extractive"
    assert message in summary["refused"]
    assert await count_chunks(llm_pipeline, document_id) == 1
    # With the next run, the model is asked again.
    await llm_pipeline.run("summarize_content", {"document_id": document_id})
    assert read_result(llm_pipeline, document_id)["summary"]["method"] == "llm"


async def test_a_summary_is_cut_to_the_servers_context(
    llm_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    def behave(exchange: Exchange, request: Request) -> None:
        is_long = len(str(request.json["messages"])) > 8_000
        too_long = llm_server.fails(400, "maximum context length is 2048 tokens")
        (too_long if is_long else llm_server.answers())(exchange, request)

    llm.always(behave)
    text = " ".join(f"Tide {n} rises twice a day." for n in range(2_000))
    await llm_pipeline.run("ingest_document", write_input(tmp_path, "long.txt", text.encode()))
    document_id = llm_pipeline.result("ingest_document")["document_id"]
    summary = read_result(llm_pipeline, document_id)["summary"]
    assert (summary["method"], summary["truncated"]) == ("llm", True)
    assert len(llm.requests) <= 4


async def test_a_file_takes_over_the_source_of_a_document_that_failed(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str, tmp_path: Path
):
    llm.next(llm_server.fails(401, "bad key"))
    with pytest.raises(LlmRefused):
        await llm_pipeline.run("ingest_document", {"path": paper, "source": "s", "title": "Tides"})
    failed = llm_pipeline.result("ingest_document")["document_id"]
    other_input = write_input(tmp_path, "newer.pdf", pdf(["Another text altogether."]))
    assert await llm_pipeline.run("ingest_document", other_input | {"source": "s"}) == STAGES
    newer = llm_pipeline.result("ingest_document")["document_id"]
    assert newer != failed
    result = read_result(llm_pipeline, newer)
    assert (result["title"], result["source"]) == ("newer.pdf", "s")
    stored = await get_document(llm_pipeline, newer)
    assert (stored.state, stored.source, stored.completed_stages) == (
        "completed",
        "s",
        tuple(STAGES),
    )
    assert (await get_document(llm_pipeline, failed)).source is None
    # The failed document still exists, with its own file.
    await llm_pipeline.run("summarize_content", {"document_id": failed})
    assert read_result(llm_pipeline, failed)["title"] == "Tides"
    assert (await get_document(llm_pipeline, failed)).state == "completed"


async def test_a_source_that_comes_with_the_second_upload_is_stored(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str
):
    llm.next(llm_server.fails(401, "bad key"))
    with pytest.raises(LlmRefused):
        await llm_pipeline.run("ingest_document", {"path": paper})
    document_id = await ingest(llm_pipeline, {"path": paper, "source": "s"})
    assert (await get_document(llm_pipeline, document_id)).source == "s"
    assert read_result(llm_pipeline, document_id)["source"] == "s"


async def test_a_document_stays_completed_while_a_stage_is_run_again(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str
):
    document_id = await ingest(llm_pipeline, {"path": paper})
    update = {"llm_model": "another"}
    other_pipeline = replace(llm_pipeline, settings=llm_pipeline.settings.model_copy(update=update))
    release = threading.Event()
    llm.next(held(release, llm_server.fails(401, "bad key")))
    request_count = len(llm.requests)
    run = asyncio.create_task(other_pipeline.run("summarize_content", {"document_id": document_id}))
    try:
        await eventually(lambda: len(llm.requests) > request_count)
        assert (await get_document(llm_pipeline, document_id)).state == "completed"
    finally:
        release.set()
    with pytest.raises(LlmRefused):
        await run
    assert (await get_document(llm_pipeline, document_id)).state == "completed"


@pytest.mark.parametrize("same_part", ["content", "source"])
async def test_no_stage_runs_while_another_run_works_on_the_document(
    pipeline: Pipeline, ledger: Ledger, paper: str, tmp_path: Path, same_part: str
):
    message = JobMessage(job_type="extract_text", payload={})
    run = NewJob(message, "hot", "ingest", "hot.extract_text")
    await ledger.jobs.record(run)
    sha256 = content_hash(Path(paper).read_bytes())
    await PipelineLedger(ledger).documents.upsert_document(
        sha256, source="s", document_id="d", pipeline=message.job_id
    )
    other_input = write_input(tmp_path, "newer.pdf", pdf(["Another text altogether."]))
    payload = {"path": paper} if same_part == "content" else other_input | {"source": "s"}
    assert await pipeline.run("ingest_document", payload) == ["ingest_document"]
    expected = {"document_id": "d", "duplicate": True, "state": "queued"}
    assert pipeline.result("ingest_document") == expected
    assert [each async for each in pipeline.storage.list_async("")] == []

    await ledger.jobs.cancel(message.job_id, time.time())
    assert await pipeline.run("ingest_document", payload) == STAGES


async def test_a_summary_is_paid_for_once(llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str):
    document_id = await ingest(llm_pipeline, {"path": paper})
    assert llm_pipeline.result("summarize_content")["summary"] == llm_server.ANSWER
    assert llm_pipeline.result("summarize_content")["method"] == "llm"
    for _ in range(3):
        await llm_pipeline.run("extract_text", {"document_id": document_id})
        assert llm_pipeline.result("summarize_content")["reused"]
    assert len(llm.requests) == 1


async def test_a_summary_is_not_paid_for_again_when_the_stage_is_forced(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str
):
    document_id = await ingest(llm_pipeline, {"path": paper})
    await llm_pipeline.run("summarize_content", {"document_id": document_id, "force": True})
    assert not llm_pipeline.result("summarize_content")["reused"]
    assert llm_pipeline.result("summarize_content")["answer_reused"]
    assert len(llm.requests) == 1


async def test_an_answer_serves_another_document_with_the_same_text(
    llm_pipeline: Pipeline, llm: FakeLlmServer, tmp_path: Path
):
    same_text = [pdf([TEXT], title="On Tides"), pdf([TEXT], title="On Tides") + b"\n"]
    ids = [
        await ingest(llm_pipeline, write_input(tmp_path, f"{n}.pdf", content))
        for n, content in enumerate(same_text)
    ]
    assert len(set(ids)) == 2
    assert len(llm.requests) == 1


async def test_a_damaged_answer_is_paid_for_again(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str
):
    document_id = await ingest(llm_pipeline, {"path": paper})
    async for stored in llm_pipeline.storage.list_async("llm"):
        llm_pipeline.storage.put(stored.key, b"{}")
    await llm_pipeline.run("summarize_content", {"document_id": document_id, "force": True})
    assert len(llm.requests) == 2


async def test_a_change_of_model_makes_a_new_request(
    llm_pipeline: Pipeline, llm: FakeLlmServer, paper: str
):
    document_id = await ingest(llm_pipeline, {"path": paper})
    update = {"llm_model": "other-model"}
    other_pipeline = replace(llm_pipeline, settings=llm_pipeline.settings.model_copy(update=update))
    await other_pipeline.run("summarize_content", {"document_id": document_id})
    assert other_pipeline.result("summarize_content")["model"] == "other-model"
    assert len(llm.requests) == 2


async def test_finished_stages_are_not_run_again(pipeline: Pipeline, paper: str):
    document_id = await ingest(pipeline, {"path": paper})
    outputs = {stage: pipeline.storage.get(stage_key(document_id, stage)) for stage in STAGES[1:]}
    await pipeline.run("extract_text", {"document_id": document_id})
    assert all(pipeline.result(stage)["reused"] for stage in STAGES[1:])
    for stage, output in outputs.items():
        assert pipeline.storage.get(stage_key(document_id, stage)) == output


async def test_forced_stages_are_run_again_to_the_end(pipeline: Pipeline, paper: str):
    await ingest(pipeline, {"path": paper})
    assert await pipeline.run("ingest_document", {"path": paper, "force": True}) == STAGES
    assert not any(pipeline.result(stage)["reused"] for stage in STAGES[1:])


async def test_a_damaged_output_is_made_again(pipeline: Pipeline, paper: str):
    document_id = await ingest(pipeline, {"path": paper})
    pipeline.storage.put(stage_key(document_id, "summarize_content"), b"{half")
    await pipeline.run("summarize_content", {"document_id": document_id})
    assert not pipeline.result("summarize_content")["reused"]
    assert pipeline.result("embed_content")["reused"]


async def test_chunks_that_got_lost_are_embedded_again(pipeline: Pipeline, paper: str):
    document_id = await ingest(pipeline, {"path": paper})
    async with open_index(pipeline.settings) as store, store.open_active() as (index, _):
        await index.delete_document(document_id)
    await pipeline.run("embed_content", {"document_id": document_id})
    assert not pipeline.result("embed_content")["reused"]
    assert await count_chunks(pipeline, document_id) == 1


async def test_a_shorter_text_leaves_no_orphan_chunks(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    payload = write_input(tmp_path, "a.pdf", sample(0).content)
    monkeypatch.setattr("switchyard.services.pipeline.text.chunks.CHUNK_WORDS", 40)
    monkeypatch.setattr("switchyard.services.pipeline.text.chunks.OVERLAP_WORDS", 0)
    document_id = await ingest(pipeline, payload)
    small_chunks = await count_chunks(pipeline, document_id)
    monkeypatch.undo()
    await pipeline.run("embed_content", {"document_id": document_id, "force": True})
    usual_chunks = pipeline.result("embed_content")["chunks"]
    assert usual_chunks < small_chunks
    assert await count_chunks(pipeline, document_id) == usual_chunks


async def test_a_long_text_is_embedded_batch_by_batch(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """So the memory that embedding takes does not grow with the text."""
    sizes: list[int] = []
    embed = WordllamaEmbedder.embed

    async def record_size(self: WordllamaEmbedder, texts: Any) -> list[list[float]]:
        sizes.append(len(texts))
        return await embed(self, texts)

    monkeypatch.setattr(WordllamaEmbedder, "embed", record_size)
    monkeypatch.setattr(embed_worker, "BATCH_SIZE", 4)
    text = " ".join(f"Sentence {n} is about the tide number {n}." for n in range(300)).encode()
    document_id = await ingest(pipeline, write_input(tmp_path, "long.txt", text))
    chunks = pipeline.result("embed_content")["chunks"]
    *chunk_batches, _ = sizes  # the last batch holds the descriptions of classes
    assert chunks == sum(chunk_batches) > 8
    assert max(chunk_batches) == 4
    assert await count_chunks(pipeline, document_id) == chunks


async def test_a_document_that_four_jobs_ingest_at_once_is_whole(pipeline: Pipeline, paper: str):
    pipelines = [replace(pipeline, outcomes=[]) for _ in range(4)]
    await asyncio.gather(*[each.run("ingest_document", {"path": paper}) for each in pipelines])
    document_id = pipelines[0].result("ingest_document")["document_id"]
    assert (await get_document(pipeline, document_id)).state == "completed"
    assert await count_chunks(pipeline, document_id) == 1


async def test_the_first_document_of_an_empty_index_has_no_links(pipeline: Pipeline, paper: str):
    await ingest(pipeline, {"path": paper})
    outcome = dict(pipeline.outcomes)["link_content"]
    assert isinstance(outcome, Done)
    assert outcome.result["links"] == []
    assert EMBED.name in dict(pipeline.outcomes)
