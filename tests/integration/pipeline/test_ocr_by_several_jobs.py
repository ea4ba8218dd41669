"""Long scans are read by several jobs, and pages that were read before a crash are not read
again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.outcomes import Next
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.workers import ocr as ocr_worker
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import ingest_file
from tests.integration.pipeline.scans import SLIPS, read_page_texts
from tests.support.pdfs import scan, slips


async def ingest_unread_scan(pipeline: Pipeline, tmp_path: Path) -> dict[str, str]:
    """Ingest a scan whose pages are still to be read. Returns the payload that names it."""
    path = tmp_path / "slips.pdf"
    path.write_bytes(scan(slips(SLIPS)))
    outcome = await pipeline.run_job("ingest_document", {"path": str(path)})
    payload = {"document_id": outcome.result["document_id"]}  # type: ignore[union-attr]
    await pipeline.run_job("extract_text", payload)
    return payload


async def test_a_job_leaves_pages_beyond_its_time_budget_to_another(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ocr_worker, "TIME_BUDGET", -1.0)
    payload = await ingest_unread_scan(pipeline, tmp_path)
    await pipeline.run_job("await_ocr", payload)
    outcome = await pipeline.run_job("ocr_pdf", payload, lane="vlm_ocr")
    assert isinstance(outcome, Next)
    assert [(job.job_type, dict(job.payload)) for job in outcome.jobs] == [("ocr_pdf", payload)]
    assert (outcome.result["pages_done"], outcome.result["pages"]) == (0, 3)
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(payload["document_id"])
    assert stored is not None
    assert stored.state == "recognizing"
    assert "ocr_pdf" not in stored.completed_stages


async def test_the_pages_of_a_long_scan_are_read_by_several_jobs_and_put_together(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ocr_worker, "MAX_UNDIVIDED_PAGES", 2)
    monkeypatch.setattr(ocr_worker, "MIN_RANGE", 2)
    document_id = await ingest_file(pipeline, tmp_path, "slips.pdf", scan(slips(SLIPS)))
    names = [name for name, _ in pipeline.outcomes]
    assert names[3:8] == ["ocr_pdf", "ocr_pages", "ocr_pages", "ocr_pdf", "summarize_content"]
    results = [outcome.result for _, outcome in pipeline.outcomes]  # type: ignore[union-attr]
    assert results[3] == {"document_id": document_id, "pages": 3, "jobs": 2}
    assert [each["pages_read"] for each in results[4:7]] == [2, 1, 0]
    assert read_page_texts(pipeline, document_id) == list(SLIPS)
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert stored is not None
    assert stored.state == "completed"


@pytest.mark.parametrize(
    ("pages", "jobs", "longest_range"), [(21, 3, 10), (300, 20, 15), (2000, 20, 100)]
)
def test_a_long_document_is_divided_into_at_most_twenty_jobs(
    pages: int, jobs: int, longest_range: int
):
    divided = ocr_worker._divide(ocr_worker.OcrPdf(document_id="a"), range(1, pages + 1), 5)
    ranges = [job.payload["pages"] for job in divided.jobs]
    assert [number for each in ranges for number in each] == list(range(1, pages + 1))
    assert (len(ranges), max(map(len, ranges))) == (jobs, longest_range)
    assert {job.priority for job in divided.jobs} == {4}  # shorter documents come first
    assert divided.then is not None
    assert divided.then.payload == {"document_id": "a", "divided": True}


@pytest.mark.long
async def test_pages_that_a_dead_job_left_are_read_when_all_are_merged(
    pipeline: Pipeline, tmp_path: Path
):
    payload = await ingest_unread_scan(pipeline, tmp_path)
    await pipeline.run_job("ocr_pages", payload | {"pages": [1, 3]}, lane="vlm_ocr")
    merged = await pipeline.run_job("ocr_pdf", payload | {"divided": True}, lane="vlm_ocr")
    assert merged.result["pages_read"] == 1  # type: ignore[union-attr]
    assert read_page_texts(pipeline, payload["document_id"]) == list(SLIPS)


async def test_pages_that_a_document_does_not_have_are_refused(pipeline: Pipeline, tmp_path: Path):
    payload = await ingest_unread_scan(pipeline, tmp_path)
    for number in (0, 4, 10**12):
        with pytest.raises(PermanentError, match=f"3 pages, and no page {number:,}"):
            await pipeline.run_job("ocr_pages", payload | {"pages": [1, number]}, lane="vlm_ocr")


async def test_pages_that_were_read_before_a_death_are_kept(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pages_read, failing_pages = [], {3}
    original = ocr_worker._PageReader._recognise

    async def recognise(reader: Any, number: int) -> dict[str, Any]:
        if number in failing_pages:
            raise ConnectionError("the storage is away")
        pages_read.append(number)
        return await original(reader, number)

    monkeypatch.setattr(ocr_worker._PageReader, "_recognise", recognise)
    sequential_pipeline = replace(
        pipeline, settings=pipeline.settings.model_copy(update={"worker_concurrency": 1})
    )
    with pytest.raises(ConnectionError):
        await ingest_file(sequential_pipeline, tmp_path, "slips.pdf", scan(slips(SLIPS)))
    failing_pages.clear()
    document_id = str(sequential_pipeline.result("ingest_document")["document_id"])
    await sequential_pipeline.run("ocr_pdf", {"document_id": document_id}, lane="vlm_ocr")
    assert pages_read == [1, 2, 3]
    assert read_page_texts(sequential_pipeline, document_id) == list(SLIPS)


async def test_a_page_under_way_is_kept_although_another_fails(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    payload = await ingest_unread_scan(pipeline, tmp_path)
    under_way, failed, pages_read = asyncio.Event(), asyncio.Event(), list[int]()
    original = ocr_worker._PageReader._recognise

    async def recognise(reader: Any, number: int) -> dict[str, Any]:
        if number == 1 and not failed.is_set():
            await under_way.wait()
            failed.set()
            raise ConnectionError("the storage is away")
        under_way.set()
        await failed.wait()
        pages_read.append(number)
        return await original(reader, number)

    monkeypatch.setattr(ocr_worker._PageReader, "_recognise", recognise)
    monkeypatch.setattr(ocr_worker._PageReader, "_concurrency", lambda _: 2)
    with pytest.raises(ConnectionError):
        await pipeline.run_job("ocr_pdf", payload, lane="vlm_ocr")
    assert pages_read == [2]
    await pipeline.run_job("ocr_pdf", payload, lane="vlm_ocr")
    assert sorted(pages_read) == [1, 2, 3]
    assert read_page_texts(pipeline, payload["document_id"]) == list(SLIPS)
