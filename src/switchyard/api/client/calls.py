"""Operations of the API as values: jobs, documents, the service itself, and its operators.

A function here, in `backfill_calls` or in `dead_calls` describes one operation, whose id in
`/openapi.json` it names; `Client` and `AsyncClient` make a method of each. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from switchyard.api.client.call import (
    UPLOAD_PATIENCE,
    Call,
    Upload,
    get,
    get_json,
    given,
    in_path,
    operation,
)
from switchyard.api.models import dead as dead_models
from switchyard.api.models import documents as document_models
from switchyard.api.models import jobs as models
from switchyard.api.models import lanes as lane_models
from switchyard.api.models import service

M = TypeVar("M", bound=BaseModel)

Mode = Literal["hybrid", "vector", "keyword"]


# --- jobs -----------------------------------------------------------------------------------------


@operation("jobs-publish")
def publish(
    routing_key: str,
    payload: Mapping[str, Any] | None = None,
    *,
    priority: int | None = None,
    max_attempts: int | None = None,
    delay: float | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    source: str | None = None,
    idempotency_key: str | None = None,
    traceparent: str | None = None,
) -> Call[models.AcceptedJob]:
    """Publish a job. With an `idempotency_key`, again is the same job, and it may be retried."""
    body = {
        "routing_key": routing_key,
        "payload": dict(payload or {}),
        "priority": priority,
        "max_attempts": max_attempts,
        "delay": delay,
        "run_at": run_at.isoformat() if run_at else None,
        "expires_at": expires_at.isoformat() if expires_at else None,
        "source": source,
    }
    headers = {"Idempotency-Key": idempotency_key, "Traceparent": traceparent}
    return Call(
        "POST",
        "/jobs",
        models.AcceptedJob.model_validate_json,
        json=given(body),
        headers=given(headers),
        repeatable=idempotency_key is not None,
    )


@operation("jobs-list_jobs")
def jobs_page(
    *,
    state: str | None = None,
    lane: str | None = None,
    job_type: str | None = None,
    worker: str | None = None,
    source: str | None = None,
    parent_id: str | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[models.JobPage]:
    """A page of the jobs, newest first."""
    return get(
        "/jobs",
        models.JobPage,
        state=state,
        lane=lane,
        job_type=job_type,
        worker=worker,
        source=source,
        parent_id=parent_id,
        since=since.isoformat() if since else None,
        limit=limit,
        cursor=cursor,
    )


@operation("jobs-show")
def job(job_id: str) -> Call[models.JobDetails]:
    """A job with its payload, its result and its timeline."""
    return get(f"/jobs/{in_path(job_id)}", models.JobDetails)


@operation("jobs-show_status")
def job_status(job_id: str) -> Call[models.JobStatus]:
    """How things stand with a job."""
    return get(f"/jobs/{in_path(job_id)}/status", models.JobStatus)


@operation("jobs-cancel")
def cancel(job_id: str) -> Call[models.CancelledJob]:
    """Call a job off; `stopping` says that it runs and its worker has been told."""
    read = models.CancelledJob.model_validate_json
    return Call("DELETE", f"/jobs/{in_path(job_id)}", read)


# --- documents ------------------------------------------------------------------------------------


@operation("documents-send_document")
def upload(
    file: Upload,
    *,
    source: str | None = None,
    title: str | None = None,
    lane: Literal["hot", "backfill"] | None = None,
    filename: str | None = None,
) -> Call[document_models.DocumentView]:
    """Send a document. It is read as it is sent."""
    return _upload("/documents", document_models.DocumentView, file, source, title, lane, filename)


@operation("documents-list_documents")
def documents_page(
    *,
    state: str | None = None,
    source: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[document_models.DocumentList]:
    """A page of the documents, newest first."""
    return get(
        "/documents",
        document_models.DocumentList,
        state=state,
        source=source,
        limit=limit,
        cursor=cursor,
    )


@operation("documents-document_status")
def document(document_id: str) -> Call[document_models.DocumentView]:
    """How far a document is."""
    return get(f"/documents/{in_path(document_id)}", document_models.DocumentView)


@operation("documents-document_result")
def document_result(document_id: str, *, with_text: bool = False) -> Call[dict[str, Any]]:
    """What was made of a document; with its text, page by page, where that is wanted."""
    include = "text" if with_text else None
    return get_json(f"/documents/{in_path(document_id)}/result", include=include)


@operation("extraction-order_text")
def extract_text(
    file: Upload,
    *,
    title: str | None = None,
    lane: Literal["hot", "backfill"] | None = None,
    filename: str | None = None,
) -> Call[document_models.ExtractionView]:
    """Have a file's text extracted; the file is not kept as a document."""
    view = document_models.ExtractionView
    return _upload("/extract/text", view, file, None, title, lane, filename)


@operation("extraction-extracted_text")
def extracted_text(job_id: str) -> Call[dict[str, Any]]:
    """That text, page by page; Conflict as long as it is not there."""
    return get_json(f"/extract/text/{in_path(job_id)}")


@operation("search-search")
def search(
    query: str,
    *,
    mode: Mode | None = None,
    limit: int | None = None,
    per_document: int | None = None,
    document_ids: Sequence[str] | None = None,
    source: str | None = None,
) -> Call[document_models.SearchAnswer]:
    """Places in documents that answer a query, best first."""
    filters = given({"document_ids": document_ids and list(document_ids), "source": source})
    body = {
        "query": query,
        "mode": mode,
        "limit": limit,
        "per_document": per_document,
        "filters": filters or None,
    }
    read = document_models.SearchAnswer.model_validate_json
    return Call("POST", "/search", read, json=given(body), repeatable=True)


# --- the service itself ---------------------------------------------------------------------------


@operation("lanes-backpressure")
def backpressure() -> Call[lane_models.PressureView]:
    """How full each lane is."""
    return get("/backpressure", lane_models.PressureView)


@operation("contract-list_schemas")
def schemas() -> Call[service.JobTypes]:
    """The job types, with the JSON Schemas of their payloads."""
    return get("/schemas", service.JobTypes)


@operation("contract-show_schema")
def schema(job_type: str) -> Call[dict[str, Any]]:
    """The JSON Schema of one job type's payload."""
    return get_json(f"/schemas/{in_path(job_type)}")


@operation("contract-show_asyncapi")
def asyncapi() -> Call[dict[str, Any]]:
    """The AsyncAPI document of the exchange."""
    return get_json("/asyncapi.json")


@operation("contract-list_problems")
def problems() -> Call[service.ProblemKinds]:
    """The kinds of problems that the service answers with."""
    return get("/problems", service.ProblemKinds)


@operation("contract-show_problem")
def problem(name: str) -> Call[service.ProblemKind]:
    """One of them."""
    return get(f"/problems/{in_path(name)}", service.ProblemKind)


@operation("health-live")
def live() -> Call[service.Liveness]:
    """Whether the service's process answers."""
    return get("/health/live", service.Liveness)


@operation("health-ready")
def ready() -> Call[service.Readiness]:
    """What the service stands on; one that is away is in the answer, and no error."""
    return _health("/health/ready")


@operation("health-health")
def health_of_all() -> Call[service.Readiness]:
    """The same as `ready`."""
    return _health("/health")


# --- operators ------------------------------------------------------------------------------------


@operation("admin-lanes")
def lanes() -> Call[lane_models.LaneList]:
    """Each lane's queues, and its jobs by state."""
    return get("/admin/lanes", lane_models.LaneList)


@operation("admin-workers")
def workers() -> Call[lane_models.WorkerList]:
    """The workers, those that started last first."""
    return get("/admin/workers", lane_models.WorkerList)


@operation("admin-list_dead")
def dead_page(
    *,
    state: str | None = None,
    reason: str | None = None,
    job_type: str | None = None,
    lane: str | None = None,
    error_type: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[dead_models.DeadLetterPage]:
    """A page of the dead letters, the latest first."""
    return get(
        "/admin/dead",
        dead_models.DeadLetterPage,
        state=state,
        reason=reason,
        job_type=job_type,
        lane=lane,
        error_type=error_type,
        limit=limit,
        cursor=cursor,
    )


@operation("admin-show_dead")
def dead_letter(letter_id: str) -> Call[dead_models.DeadLetterDetails]:
    """A dead letter with its headers and body."""
    return get(f"/admin/dead/{in_path(letter_id)}", dead_models.DeadLetterDetails)


def _health(path: str) -> Call[service.Readiness]:
    read = service.Readiness.model_validate_json
    return Call("GET", path, read, also=frozenset({503}), repeatable=True)


def _upload(
    path: str,
    answer: type[M],
    file: Upload,
    source: str | None,
    title: str | None,
    lane: str | None,
    filename: str | None,
) -> Call[M]:
    return Call(
        "POST",
        path,
        answer.model_validate_json,
        form=given({"source": source, "title": title, "lane": lane}),
        file=file,
        filename=filename,
        patience=UPLOAD_PATIENCE,
    )
