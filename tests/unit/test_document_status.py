"""The state of a document follows from its jobs, also while one stage has many of them."""

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


def job(job_type: str, state: State) -> JobSummary:
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


BEFORE = [
    job("ingest_document", State.SUCCEEDED),
    job("extract_text", State.SUCCEEDED),
    job("await_ocr", State.SUCCEEDED),
    job("ocr_pdf", State.SUCCEEDED),  # it has published one `ocr_pages` for each part
]


def state_of(*jobs: JobSummary) -> tuple[str, str | None, tuple[str, ...]]:
    status = status_of("a", DOCUMENT, jobs)
    return status.state, status.current_stage, status.completed_stages


def test_a_long_scan_is_being_read_until_its_pages_are_put_together():
    joining = job("ocr_pdf", State.JOINING)
    for state in (State.QUEUED, State.RUNNING, State.RETRYING, State.SUCCEEDED):
        assert state_of(*BEFORE, job("ocr_pages", state), joining) == (
            "recognizing",
            "ocr_pdf",
            ("ingest_document", "extract_text"),
        )
    waits = state_of(*BEFORE[:-1], job("ocr_pdf", State.QUEUED))
    assert waits[:2] == ("needs_ocr", "ocr_pdf")


def test_a_document_has_not_failed_where_another_job_reads_the_pages_of_one_that_died():
    dead, joining = job("ocr_pages", State.DEAD), job("ocr_pdf", State.JOINING)
    assert state_of(*BEFORE, dead, joining)[0] == "recognizing"
    merged, next_stage = job("ocr_pdf", State.SUCCEEDED), job("summarize_content", State.RUNNING)
    state, stage, completed = state_of(*BEFORE, dead, merged, next_stage)
    assert (state, stage, completed[-1]) == ("summarizing", "summarize_content", "ocr_pdf")
    failed = state_of(*BEFORE, dead, replace(joining, state=State.DEAD))
    assert failed[:2] == ("failed", "ocr_pdf")
