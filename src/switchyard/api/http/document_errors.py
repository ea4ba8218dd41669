"""Problems of requests for documents: which an operation may answer with, and what a document
without a result is answered with."""

from __future__ import annotations

from typing import Any

from switchyard.api.http.problems import POLL_AFTER, Problem, responses
from switchyard.services.engine.records.states import State
from switchyard.services.pipeline.documents.document_service import NotFinished
from switchyard.services.pipeline.documents.document_status import DocumentStatus
from switchyard.services.pipeline.documents.extractions import ExtractionNotFinished
from switchyard.services.pipeline.records.documents import FAILED

UPLOAD_PROBLEMS = responses(
    "malformed-request",
    "request-timeout",
    "too-large",
    "unsupported-media-type",
    "invalid",
    "document-unreadable",
    "lane-full",
    "no-queue",
    "broker-away",
    "ledger-away",
    "storage-full",
)
READ_PROBLEMS = responses("not-found", "invalid", "ledger-away")
RESULT_PROBLEMS = responses(
    "not-found", "invalid", "ledger-away", "not-finished", "document-failed"
)
SEARCH_PROBLEMS = responses("invalid", "ledger-away", "search-away")


def unfinished(error: NotFinished | ExtractionNotFinished) -> Problem:
    """Make the problem of a document or text that has no result yet, or will never have one."""
    if isinstance(error, NotFinished):
        return _without_result(error.status)
    return _without_text(error)


def unreadable(error: NotFinished | ExtractionNotFinished) -> Problem:
    """Make the problem of an upload that was processed at once and failed: the request is at
    fault."""
    problem = unfinished(error)
    return Problem("document-unreadable", problem.text, **problem.extra)


def _without_result(status: DocumentStatus) -> Problem:
    failure = status.error
    extra: dict[str, Any] = {
        "document_id": status.document_id,
        "state": status.state,
        "current_stage": status.current_stage,
        "job_id": failure.job_id if failure else status.job_id,
    }
    if status.state != FAILED or failure is None:
        reason = f"the document is {status.state}: ask again"
        return Problem("not-finished", reason, headers=POLL_AFTER, **extra)
    extra |= {"reason": failure.reason, "error_type": failure.error_type}
    reason = f"it failed at {status.current_stage}: {failure.message or failure.reason}"
    return Problem("document-failed", reason, **extra)


def _without_text(error: ExtractionNotFinished) -> Problem:
    record = error.record
    extra: dict[str, Any] = {"job_id": record.id, "state": str(record.state)}
    if record.state not in (State.DEAD, State.CANCELLED):
        return Problem("not-finished", str(error), headers=POLL_AFTER, **extra)
    extra |= {"reason": record.reason, "error_type": record.error_type}
    return Problem("document-failed", record.error_message or str(error), **extra)
