"""Every operation of the API as a value: what is sent, and what comes back.

A function here describes one operation, whose id in `/openapi.json` it names; `Client` and
`AsyncClient` make a method of each. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Generic, Literal, ParamSpec, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from api import admin, backfill_models, contract, document_models, health, models, pressure

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")

_JSON = TypeAdapter(dict[str, Any])
UPLOAD_PATIENCE = 600.0
"""Seconds that an upload's answer is waited for: without a broker it has been worked by then."""

Upload = str | Path | IO[bytes]
"""A path, or a file that is open for reading in binary; neither is read into memory."""
Mode = Literal["hybrid", "vector", "keyword"]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[bytes], T]
    """Makes the result of an answer's body. Raises pydantic's ValidationError."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """Values that are None are not sent."""
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    file: Upload | None = None
    filename: str | None = None
    repeatable: bool = False
    """Twice is the same as once, so it may be tried again."""
    patience: float | None = None
    """Seconds to wait for the answer; None for the client's own."""
    also: frozenset[int] = frozenset()
    """Statuses beside 2xx whose body is an answer, no problem."""

    def opened(self) -> AbstractContextManager[IO[bytes] | None]:
        """The file, open; one that was given open stays so."""
        if isinstance(self.file, str | Path):
            return Path(self.file).open("rb")
        return nullcontext(self.file)

    def name(self) -> str:
        """The file's name, for people to read."""
        if self.filename is not None:
            return self.filename
        named = self.file if isinstance(self.file, str | Path) else getattr(self.file, "name", "")
        return Path(named).name if isinstance(named, str | Path) else ""


@dataclass(frozen=True, slots=True)
class Operation(Generic[P, T]):
    """An operation of the API: its id, and what makes a call of its arguments."""

    id: str
    call: Callable[P, Call[T]]


def operation(name: str) -> Callable[[Callable[P, Call[T]]], Operation[P, T]]:
    """Mark a function as the description of that operation."""

    def mark(call: Callable[P, Call[T]]) -> Operation[P, T]:
        return Operation(name, call)

    return mark


def _get(path: str, answer: type[M], **query: Any) -> Call[M]:
    return Call("GET", path, answer.model_validate_json, query, repeatable=True)


def _get_json(path: str, **query: Any) -> Call[dict[str, Any]]:
    return Call("GET", path, _JSON.validate_json, query, repeatable=True)


def in_path(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


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
        json=_given(body),
        headers=_given(headers),
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
    return _get(
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
    return _get(f"/jobs/{in_path(job_id)}", models.JobDetails)


@operation("jobs-show_status")
def job_status(job_id: str) -> Call[models.JobStatus]:
    """How things stand with a job."""
    return _get(f"/jobs/{in_path(job_id)}/status", models.JobStatus)


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
    return _get(
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
    return _get(f"/documents/{in_path(document_id)}", document_models.DocumentView)


@operation("documents-document_result")
def document_result(document_id: str, *, with_text: bool = False) -> Call[dict[str, Any]]:
    """What was made of a document; with its text, page by page, where that is wanted."""
    include = "text" if with_text else None
    return _get_json(f"/documents/{in_path(document_id)}/result", include=include)


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
    return _get_json(f"/extract/text/{in_path(job_id)}")


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
    filters = _given({"document_ids": document_ids and list(document_ids), "source": source})
    body = {
        "query": query,
        "mode": mode,
        "limit": limit,
        "per_document": per_document,
        "filters": filters or None,
    }
    read = document_models.SearchAnswer.model_validate_json
    return Call("POST", "/search", read, json=_given(body), repeatable=True)


# --- backfills ------------------------------------------------------------------------------------


@operation("backfills-start")
def start_backfill(
    source: str,
    options: Mapping[str, Any] | None = None,
    *,
    job_type: str | None = None,
    lane: str | None = None,
    payload: Mapping[str, Any] | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    low: int | None = None,
    high: int | None = None,
    until: datetime | None = None,
    rate: float | None = None,
    max_open: int | None = None,
    reason: str | None = None,
) -> Call[backfill_models.BackfillView]:
    """Start a backfill: one job for each item of a source. docs/backfills.md explains the rest."""
    plan = _plan(
        source,
        options,
        job_type=job_type,
        lane=lane,
        payload=payload,
        priority=priority,
        max_attempts=max_attempts,
        low=low,
        high=high,
        until=until.isoformat() if until else None,
        rate=rate,
        max_open=max_open,
        reason=reason,
    )
    return Call("POST", "/backfills", backfill_models.BackfillView.model_validate_json, json=plan)


@operation("backfills-preview")
def preview_backfill(
    source: str,
    options: Mapping[str, Any] | None = None,
    *,
    job_type: str | None = None,
    lane: str | None = None,
    payload: Mapping[str, Any] | None = None,
) -> Call[backfill_models.BackfillPreview]:
    """What a backfill would do: the number of items, and the first jobs."""
    plan = _plan(source, options, job_type=job_type, lane=lane, payload=payload)
    read = backfill_models.BackfillPreview.model_validate_json
    return Call("POST", "/backfills/preview", read, json=plan, repeatable=True)


@operation("backfills-store_file")
def store_backfill_input(
    file: Upload,
    *,
    format: Literal["jsonl", "csv", "lines"] | None = None,  # noqa: A002 - as the API calls it
    filename: str | None = None,
) -> Call[backfill_models.BackfillInput]:
    """Store a file for a backfill: what it answers are the options of the source `file`."""
    read = backfill_models.BackfillInput.model_validate_json
    return Call(
        "POST",
        "/backfills/inputs",
        read,
        _given({"format": format}),
        file=file,
        filename=filename,
        patience=UPLOAD_PATIENCE,
    )


@operation("backfills-list_backfills")
def backfills_page(
    *, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[backfill_models.BackfillPage]:
    """A page of the backfills, newest first."""
    page = backfill_models.BackfillPage
    return _get("/backfills", page, state=state, limit=limit, cursor=cursor)


@operation("backfills-show")
def backfill(backfill_id: str) -> Call[backfill_models.BackfillView]:
    """How far a backfill is, and what came of it."""
    return _get(f"/backfills/{in_path(backfill_id)}", backfill_models.BackfillView)


@operation("backfills-set_limits")
def set_backfill_limits(
    backfill_id: str, **limits: float | None
) -> Call[backfill_models.BackfillView]:
    """Change `rate` or `max_open`, also while it runs; None takes a limit away."""
    read = backfill_models.BackfillView.model_validate_json
    path = f"/backfills/{in_path(backfill_id)}"
    return Call("PATCH", path, read, json=limits, repeatable=True)


@operation("backfills-pause")
def pause_backfill(backfill_id: str) -> Call[backfill_models.BackfillView]:
    """Publish nothing more of it, within a second, until it is resumed."""
    read = backfill_models.BackfillView.model_validate_json
    return Call("POST", f"/backfills/{in_path(backfill_id)}/pause", read, repeatable=True)


@operation("backfills-resume")
def resume_backfill(backfill_id: str) -> Call[backfill_models.BackfillView]:
    """Let it go on where it was."""
    read = backfill_models.BackfillView.model_validate_json
    return Call("POST", f"/backfills/{in_path(backfill_id)}/resume", read, repeatable=True)


@operation("backfills-cancel")
def cancel_backfill(
    backfill_id: str, *, jobs: bool = False
) -> Call[backfill_models.CancelledBackfill]:
    """End it for good; with `jobs` also those of its jobs that have not begun."""
    read = backfill_models.CancelledBackfill.model_validate_json
    path = f"/backfills/{in_path(backfill_id)}/cancel"
    return Call("POST", path, read, json={"jobs": jobs}, repeatable=True)


def _plan(source: str, options: Mapping[str, Any] | None, **others: Any) -> dict[str, Any]:
    return {"source": source, "options": dict(options or {}), **_given(others)}


# --- the service itself ---------------------------------------------------------------------------


@operation("lanes-backpressure")
def backpressure() -> Call[pressure.PressureView]:
    """How full each lane is."""
    return _get("/backpressure", pressure.PressureView)


@operation("contract-list_schemas")
def schemas() -> Call[contract.JobTypes]:
    """The job types, with the JSON Schemas of their payloads."""
    return _get("/schemas", contract.JobTypes)


@operation("contract-show_schema")
def schema(job_type: str) -> Call[dict[str, Any]]:
    """The JSON Schema of one job type's payload."""
    return _get_json(f"/schemas/{in_path(job_type)}")


@operation("contract-show_asyncapi")
def asyncapi() -> Call[dict[str, Any]]:
    """The AsyncAPI document of the exchange."""
    return _get_json("/asyncapi.json")


@operation("contract-list_problems")
def problems() -> Call[contract.ProblemKinds]:
    """The kinds of problems that the service answers with."""
    return _get("/problems", contract.ProblemKinds)


@operation("contract-show_problem")
def problem(name: str) -> Call[contract.ProblemKind]:
    """One of them."""
    return _get(f"/problems/{in_path(name)}", contract.ProblemKind)


@operation("health-live")
def live() -> Call[health.Liveness]:
    """Whether the service's process answers."""
    return _get("/health/live", health.Liveness)


@operation("health-ready")
def ready() -> Call[health.Readiness]:
    """What the service stands on; one that is away is in the answer, and no error."""
    return _health("/health/ready")


@operation("health-health")
def health_of_all() -> Call[health.Readiness]:
    """The same as `ready`."""
    return _health("/health")


# --- operators ------------------------------------------------------------------------------------


@operation("admin-lanes")
def lanes() -> Call[admin.LaneReports]:
    """Each lane's queues, and its jobs by state."""
    return _get("/admin/lanes", admin.LaneReports)


@operation("admin-workers")
def workers() -> Call[admin.Workers]:
    """The workers, those that started last first."""
    return _get("/admin/workers", admin.Workers)


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
) -> Call[admin.DeadLetterPage]:
    """A page of the dead letters, the latest first."""
    return _get(
        "/admin/dead",
        admin.DeadLetterPage,
        state=state,
        reason=reason,
        job_type=job_type,
        lane=lane,
        error_type=error_type,
        limit=limit,
        cursor=cursor,
    )


@operation("admin-show_dead")
def dead_letter(letter_id: str) -> Call[admin.DeadLetterDetails]:
    """A dead letter with its headers and body."""
    return _get(f"/admin/dead/{in_path(letter_id)}", admin.DeadLetterDetails)


def _health(path: str) -> Call[health.Readiness]:
    read = health.Readiness.model_validate_json
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
        form=_given({"source": source, "title": title, "lane": lane}),
        file=file,
        filename=filename,
        patience=UPLOAD_PATIENCE,
    )


def _given(values: Mapping[str, T | None]) -> dict[str, T]:
    return {name: value for name, value in values.items() if value is not None}
