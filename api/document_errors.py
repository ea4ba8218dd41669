"""What can go wrong with documents, as problems."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import HTTPException

from api.problems import MEDIA_TYPE, Kind, Problem, responses
from api.uploads import InvalidUpload
from services.document_status import DocumentStatus
from services.documents import NotFinished, UnknownDocument
from services.extractions import ExtractionNotFinished, UnknownExtraction
from services.ingest.errors import DocumentTooLarge, UnsupportedMedia
from services.ledger import State
from services.quota import StorageFull
from services.stages import FAILED

NOT_FINISHED = Kind("not-finished", HTTPStatus.CONFLICT, "There is no result yet")
FAILED_DOCUMENT = Kind("document-failed", HTTPStatus.CONFLICT, "The document has failed")
SEARCH_AWAY = Kind(
    "search-away", HTTPStatus.SERVICE_UNAVAILABLE, "The index or its embedder can't be used now"
)
UNREADABLE = Kind("document-unreadable", HTTPStatus.UNPROCESSABLE_ENTITY, "It can't be read")

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
    "lane-full",
    "broker-away",
    "ledger-away",
    "storage-full",
)
READ_PROBLEMS = responses("not-found", "invalid", "ledger-away")
RESULT_PROBLEMS: dict[int | str, dict[str, Any]] = READ_PROBLEMS | {
    409: {
        "description": f"{NOT_FINISHED.title}; {FAILED_DOCUMENT.title}",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
}
SEARCH_PROBLEMS = responses("invalid", "ledger-away")
SEARCH_PROBLEMS[503]["description"] += f"; {SEARCH_AWAY.title}"


class DocumentProblem(Problem):
    """A problem of a kind that only documents have."""

    def __init__(
        self, kind: Kind, detail: str, *, headers: dict[str, str] | None = None, **extra: Any
    ) -> None:
        HTTPException.__init__(self, kind.status, detail, headers)
        self.kind = kind
        self.text = detail
        self.extra = extra


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
    return DocumentProblem(UNREADABLE, problem.text or "", **problem.extra)


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
        return DocumentProblem(NOT_FINISHED, said, headers={"Retry-After": "1"}, **extra)
    extra |= {"reason": failure.reason, "error_type": failure.error_type}
    said = f"it failed at {status.current_stage}: {failure.message or failure.reason}"
    return DocumentProblem(FAILED_DOCUMENT, said, **extra)


def _without_text(error: ExtractionNotFinished) -> Problem:
    record = error.record
    extra: dict[str, Any] = {"job_id": record.id, "state": str(record.state)}
    if record.state not in (State.DEAD, State.CANCELLED):
        return DocumentProblem(NOT_FINISHED, str(error), headers={"Retry-After": "1"}, **extra)
    extra |= {"reason": record.reason, "error_type": record.error_type}
    return DocumentProblem(FAILED_DOCUMENT, record.error_message or str(error), **extra)
