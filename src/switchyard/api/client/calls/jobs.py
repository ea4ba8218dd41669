"""Describe calls that publish, list, show and cancel single jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.api.client.call import (
    Call,
    get,
    in_path,
    operation,
    without_none,
)
from switchyard.api.client.times import Time, future_param, past_param
from switchyard.api.models import jobs as models


@operation("jobs-publish")
def publish(
    routing_key: str,
    payload: Mapping[str, Any] | None = None,
    *,
    priority: int | None = None,
    max_attempts: int | None = None,
    delay: float | None = None,
    run_at: Time | None = None,
    expires_at: Time | None = None,
    source: str | None = None,
    idempotency_key: str | None = None,
    traceparent: str | None = None,
    notify_url: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Call[models.AcceptedJob]:
    """Publish a job. With an `idempotency_key`, a repeated call returns the same job.
    `notify_url` is notified when the job and all its follow-up jobs have ended."""
    body = {
        "routing_key": routing_key,
        "payload": dict(payload or {}),
        "priority": priority,
        "max_attempts": max_attempts,
        "delay": delay,
        "run_at": future_param("run_at", run_at),
        "expires_at": future_param("expires_at", expires_at),
        "source": source,
        "notify_url": notify_url,
        "tags": None if tags is None else dict(tags),
    }
    headers = {"Idempotency-Key": idempotency_key, "Traceparent": traceparent}
    return Call(
        "POST",
        "/jobs",
        models.AcceptedJob.model_validate_json,
        json=without_none(body),
        headers=without_none(headers),
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
    pipeline: str | None = None,
    operation_id: str | None = None,
    acted_by: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
    finished_since: Time | None = None,
    finished_until: Time | None = None,
    slower_than: float | None = None,
    error: str | None = None,
    payload: str | None = None,
    tags: Mapping[str, str] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[models.JobPage]:
    """Return a page of the jobs, newest first. `slower_than` is in seconds, `payload` is
    `PATH=VALUE`."""
    return get(
        "/jobs",
        models.JobPage,
        state=state,
        lane=lane,
        job_type=job_type,
        worker=worker,
        source=source,
        parent_id=parent_id,
        pipeline=pipeline,
        operation_id=operation_id,
        acted_by=acted_by,
        since=past_param("since", since),
        until=past_param("until", until),
        finished_since=past_param("finished_since", finished_since),
        finished_until=past_param("finished_until", finished_until),
        slower_than=slower_than,
        error=error,
        payload=payload,
        tag=[f"{name}={value}" for name, value in (tags or {}).items()] or None,
        limit=limit,
        cursor=cursor,
    )


@operation("jobs-show")
def job(job_id: str) -> Call[models.JobDetails]:
    """Return a job with its payload, its result and its timeline."""
    return get(f"/jobs/{in_path(job_id)}", models.JobDetails)


@operation("jobs-show_status")
def job_status(job_id: str) -> Call[models.JobProgress]:
    """Return the state of a job."""
    return get(f"/jobs/{in_path(job_id)}/status", models.JobProgress)


@operation("jobs-cancel")
def cancel(job_id: str) -> Call[models.CancelledJob]:
    """Cancel a job. `stopping` in the result: the job is running, and its worker was told to stop
    it."""
    read = models.CancelledJob.model_validate_json
    return Call("DELETE", f"/jobs/{in_path(job_id)}", read)


@operation("jobs-release")
def release(job_id: str) -> Call[models.ReleasedJob]:
    """Let a job that waits for others run although some of these are dead."""
    read = models.ReleasedJob.model_validate_json
    return Call("POST", f"/jobs/{in_path(job_id)}/release", read)
