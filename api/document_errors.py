"""What can go wrong with documents, as problems."""

from __future__ import annotations

from typing import Any

from api.problems import Problem, responses
from api.uploads import InvalidUpload
from services.document_status import DocumentStatus
from services.documents import NotFinished, UnknownDocument
from services.extractions import ExtractionNotFinished, UnknownExtraction
from services.ingest.errors import DocumentTooLarge, UnsupportedMedia
from services.ledger import State
from services.quota import StorageFull
from services.stages import FAILED

POLL_AFTER = 0.5
"""Seconds after which a result that is not there yet may be."""

_NAMES: tuple[tuple[type[Exception], str], ...] = (
    (UnknownDocument, "not-found"),
    (UnknownExtraction, "not-found"),
    (InvalidUpload, "malformed-request"),
    (DocumentTooLarge, "too-large"),
    (UnsupportedMedia, "unsupported-media-type"),
    (StorageFull, "storage-full"),
)

UPLOAD_PROBLEMS = responses(
    "malformed-request",
    "request-timeout",
    "too-large",
    "unsupported-media-type",
    "invalid",
    "document-unreadable",
    "lane-full",
    "broker-away",
    "ledger-away",
    "storage-full",
)
READ_PROBLEMS = responses("not-found", "invalid", "ledger-away")
RESULT_PROBLEMS = responses(
    "not-found", "invalid", "ledger-away", "not-finished", "document-failed"
)
SEARCH_PROBLEMS = responses("invalid", "ledger-away", "search-away")


def problem_of(error: Exception) -> Problem:
    """The problem to raise for an error of the services."""
    if isinstance(error, NotFinished):
        return _unfinished(error.status)
    if isinstance(error, ExtractionNotFinished):
        return _without_text(error)
    name = next((name for kind, name in _NAMES if isinstance(error, kind)), "invalid")
    return Problem(name, str(error))


def unreadable(error: NotFinished | ExtractionNotFinished) -> Problem:
    """For an upload that was worked at once, and failed: it is the request that is at fault."""
    problem = problem_of(error)
    return Problem("document-unreadable", problem.text, **problem.extra)


def _unfinished(status: DocumentStatus) -> Problem:
    failure = status.error
    extra: dict[str, Any] = {
        "document_id": status.document_id,
        "state": status.state,
        "current_stage": status.current_stage,
        "job_id": failure.job_id if failure else status.job_id,
    }
    if status.state != FAILED or failure is None:
        said = f"the document is {status.state}: ask again"
        return Problem("not-finished", said, retry_after=POLL_AFTER, **extra)
    extra |= {"reason": failure.reason, "error_type": failure.error_type}
    said = f"it failed at {status.current_stage}: {failure.message or failure.reason}"
    return Problem("document-failed", said, **extra)


def _without_text(error: ExtractionNotFinished) -> Problem:
    record = error.record
    extra: dict[str, Any] = {"job_id": record.id, "state": str(record.state)}
    if record.state not in (State.DEAD, State.CANCELLED):
        return Problem("not-finished", str(error), retry_after=POLL_AFTER, **extra)
    extra |= {"reason": record.reason, "error_type": record.error_type}
    return Problem("document-failed", record.error_message or str(error), **extra)
