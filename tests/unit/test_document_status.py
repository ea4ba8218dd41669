"""The state of a document is derived from its jobs, also while one stage has several."""

from __future__ import annotations

from dataclasses import replace

from switchyard.services.engine.records.results import JobSummary
from switchyard.services.engine.records.states import State
from switchyard.services.pipeline.documents.document_status import status_of
from switchyard.services.pipeline.records.documents import Document

DOCUMENT = Document(
    id="a",
    content_hash="b",
    source=None,
    filename="book.tif",
    title=None,
    media_type="image/tiff",
    size_bytes=1,
    pipeline="ingest",
    state="recognizing",
    current_stage="ocr_pdf",
    completed_stages=("ingest_document", "extract_text"),
    created_at=1.0,
    updated_at=1.0,
)


def make_job(job_type: str, state: State) -> JobSummary:
    return JobSummary(
        id=job_type,
        job_type=job_type,
        lane="vlm_ocr",
        routing_key=f"vlm_ocr.{job_type}",
        worker="ocr",
        priority=5,
        state=state,
        source="test",
        parent_id=None,
        pipeline="ingest",
        attempts=1,
        max_attempts=3,
        redrives=0,
        crashes=0,
        worker_id=None,
        claim_id=None,
        created_at=1.0,
        queued_at=1.0,
        started_at=None,
        finished_at=None,
        updated_at=1.0,
        run_at=None,
        expires_at=None,
        reason="exhausted" if state is State.DEAD else None,
        error_type=None,
        error_message=None,
        idempotency_key=None,
        join_id=None,
        joins=False,
        operation_id=None,
    )


READING_JOBS = [
    make_job("ingest_document", State.SUCCEEDED),
    make_job("extract_text", State.SUCCEEDED),
    make_job("await_ocr", State.SUCCEEDED),
    make_job("ocr_pdf", State.SUCCEEDED),  # it has published one `ocr_pages` for each part
]


def summarize(*jobs: JobSummary) -> tuple[str, str | None, tuple[str, ...]]:
    status = status_of("a", DOCUMENT, jobs)
    return status.state, status.current_stage, status.completed_stages


def test_a_long_scan_is_recognizing_until_its_pages_are_joined():
    joining = make_job("ocr_pdf", State.JOINING)
    for state in (State.QUEUED, State.RUNNING, State.RETRYING, State.SUCCEEDED):
        assert summarize(*READING_JOBS, make_job("ocr_pages", state), joining) == (
            "recognizing",
            "ocr_pdf",
            ("ingest_document", "extract_text"),
        )
    waiting = summarize(*READING_JOBS[:-1], make_job("ocr_pdf", State.QUEUED))
    assert waiting[:2] == ("needs_ocr", "ocr_pdf")


def test_a_dead_job_for_pages_does_not_fail_a_document_that_is_being_joined():
    dead, joining = make_job("ocr_pages", State.DEAD), make_job("ocr_pdf", State.JOINING)
    assert summarize(*READING_JOBS, dead, joining)[0] == "recognizing"
    merged, next_stage = (
        make_job("ocr_pdf", State.SUCCEEDED),
        make_job("summarize_content", State.RUNNING),
    )
    state, stage, completed = summarize(*READING_JOBS, dead, merged, next_stage)
    assert (state, stage, completed[-1]) == ("summarizing", "summarize_content", "ocr_pdf")
    failed = summarize(*READING_JOBS, dead, replace(joining, state=State.DEAD))
    assert failed[:2] == ("failed", "ocr_pdf")
