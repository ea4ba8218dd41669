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
from tests.integration.pipeline.scans import SLIPS, ingest_file, text_of
from tests.support.pdfs import scan, slips


async def extracted_slips(pipeline: Pipeline, tmp_path: Path) -> dict[str, str]:
    """Ingest a scan whose pages are still to be read. Returns the payload that names it."""
    path = tmp_path / "slips.pdf"
    path.write_bytes(scan(slips(SLIPS)))
    ingested = await pipeline.one("ingest_document", {"path": str(path)})
    document = {"document_id": ingested.result["document_id"]}  # type: ignore[union-attr]
    await pipeline.one("extract_text", document)
    return document


async def test_a_job_leaves_pages_beyond_its_time_budget_to_another(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ocr_worker, "TIME_BUDGET", -1.0)
    document = await extracted_slips(pipeline, tmp_path)
    await pipeline.one("await_ocr", document)
    outcome = await pipeline.one("ocr_pdf", document, lane="vlm_ocr")
    assert isinstance(outcome, Next)
    assert [(job.job_type, dict(job.payload)) for job in outcome.jobs] == [("ocr_pdf", document)]
    assert (outcome.result["pages_done"], outcome.result["pages"]) == (0, 3)
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document["document_id"])
    assert stored is not None
    assert stored.state == "recognizing"
    assert "ocr_pdf" not in stored.completed_stages


async def test_the_pages_of_a_long_scan_are_read_by_several_jobs_and_put_together(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ocr_worker, "MAX_UNDIVIDED_PAGES", 2)
    monkeypatch.setattr(ocr_worker, "MIN_RANGE", 2)
    document_id = await ingest_file(pipeline, tmp_path, "slips.pdf", scan(slips(SLIPS)))
    names = [name for name, _ in pipeline.ran]
    assert names[3:8] == ["ocr_pdf", "ocr_pages", "ocr_pages", "ocr_pdf", "summarize_content"]
    answers = [outcome.result for _, outcome in pipeline.ran]  # type: ignore[union-attr]
    assert answers[3] == {"document_id": document_id, "pages": 3, "jobs": 2}
    assert [each["pages_read"] for each in answers[4:7]] == [2, 1, 0]
    assert text_of(pipeline, document_id) == list(SLIPS)
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert stored is not None
    assert stored.state == "completed"


@pytest.mark.parametrize(
    ("pages", "jobs", "longest"), [(21, 3, 10), (300, 20, 15), (2000, 20, 100)]
)
def test_no_document_fills_the_lane(pages: int, jobs: int, longest: int):
    divided = ocr_worker._divide(ocr_worker.OcrPdf(document_id="a"), range(1, pages + 1), 5)
    ranges = [job.payload["pages"] for job in divided.jobs]
    assert [number for each in ranges for number in each] == list(range(1, pages + 1))
    assert (len(ranges), max(map(len, ranges))) == (jobs, longest)
    assert {job.priority for job in divided.jobs} == {4}  # shorter documents come first
    assert divided.then is not None
    assert divided.then.payload == {"document_id": "a", "divided": True}


@pytest.mark.long
async def test_pages_that_a_dead_job_left_are_read_when_all_are_merged(
    pipeline: Pipeline, tmp_path: Path
):
    document = await extracted_slips(pipeline, tmp_path)
    await pipeline.one("ocr_pages", document | {"pages": [1, 3]}, lane="vlm_ocr")
    merged = await pipeline.one("ocr_pdf", document | {"divided": True}, lane="vlm_ocr")
    assert merged.result["pages_read"] == 1  # type: ignore[union-attr]
    assert text_of(pipeline, document["document_id"]) == list(SLIPS)


async def test_pages_that_a_document_has_not_are_refused_and_leave_nothing(
    pipeline: Pipeline, tmp_path: Path
):
    document = await extracted_slips(pipeline, tmp_path)
    for number in (0, 4, 10**12):
        with pytest.raises(PermanentError, match=f"3 pages, and no page {number:,}"):
            await pipeline.one("ocr_pages", document | {"pages": [1, number]}, lane="vlm_ocr")


async def test_pages_that_were_read_before_a_death_are_kept(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read, fails = [], {3}
    inner = ocr_worker._PageReader._recognise

    async def recognised(pages: Any, number: int) -> dict[str, Any]:
        if number in fails:
            raise ConnectionError("the storage is away")
        read.append(number)
        return await inner(pages, number)

    monkeypatch.setattr(ocr_worker._PageReader, "_recognise", recognised)
    one = replace(pipeline, settings=pipeline.settings.model_copy(update={"worker_concurrency": 1}))
    with pytest.raises(ConnectionError):
        await ingest_file(one, tmp_path, "slips.pdf", scan(slips(SLIPS)))
    fails.clear()
    document_id = str(one.result("ingest_document")["document_id"])
    await one.run("ocr_pdf", {"document_id": document_id}, lane="vlm_ocr")
    assert read == [1, 2, 3]
    assert text_of(one, document_id) == list(SLIPS)


async def test_a_page_under_way_is_kept_although_another_fails(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    document = await extracted_slips(pipeline, tmp_path)
    under_way, failed, read = asyncio.Event(), asyncio.Event(), list[int]()
    inner = ocr_worker._PageReader._recognise

    async def recognised(pages: Any, number: int) -> dict[str, Any]:
        if number == 1 and not failed.is_set():
            await under_way.wait()
            failed.set()
            raise ConnectionError("the storage is away")
        under_way.set()
        await failed.wait()
        read.append(number)
        return await inner(pages, number)

    monkeypatch.setattr(ocr_worker._PageReader, "_recognise", recognised)
    monkeypatch.setattr(ocr_worker._PageReader, "_concurrency", lambda _: 2)
    with pytest.raises(ConnectionError):
        await pipeline.one("ocr_pdf", document, lane="vlm_ocr")
    assert read == [2]
    await pipeline.one("ocr_pdf", document, lane="vlm_ocr")
    assert sorted(read) == [1, 2, 3]
    assert text_of(pipeline, document["document_id"]) == list(SLIPS)
