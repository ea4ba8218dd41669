"""Describe calls that start, follow and control backfills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from switchyard.api.client.call import (
    UPLOAD_TIMEOUT,
    Call,
    Upload,
    get,
    in_path,
    modify,
    operation,
    without_none,
)
from switchyard.api.client.times import Time, future_param
from switchyard.api.models import backfills as backfill_models


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
    tags: Mapping[str, str] | None = None,
    low: int | None = None,
    high: int | None = None,
    weight: float | None = None,
    until: Time | None = None,
    then: str | None = None,
    then_payload: Mapping[str, Any] | None = None,
    when_dead: Literal["wait", "go_on", "fail"] | None = None,
    rate: float | None = None,
    max_open: int | None = None,
    budget: float | None = None,
    reason: str | None = None,
    notify_url: str | None = None,
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
        tags=tags,
        low=low,
        high=high,
        weight=weight,
        until=future_param("until", until),
        then=then,
        then_payload=then_payload,
        when_dead=when_dead,
        rate=rate,
        max_open=max_open,
        budget=budget,
        reason=reason,
        notify_url=notify_url,
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
    """Show what a backfill would do: the number of items, and the first jobs."""
    plan = _plan(source, options, job_type=job_type, lane=lane, payload=payload)
    return modify("/backfills/preview", backfill_models.BackfillPreview, plan)


@operation("backfills-store_file")
def store_backfill_input(
    file: Upload,
    *,
    format: Literal["jsonl", "csv", "lines"] | None = None,  # noqa: A002 - as the API calls it
    filename: str | None = None,
) -> Call[backfill_models.BackfillInput]:
    """Store a file for a backfill. The answer has the options of the source `file`."""
    read = backfill_models.BackfillInput.model_validate_json
    return Call(
        "POST",
        "/backfills/inputs",
        read,
        without_none({"format": format}),
        file=file,
        filename=filename,
        read_timeout=UPLOAD_TIMEOUT,
    )


@operation("backfills-list_backfills")
def backfills_page(
    *, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[backfill_models.BackfillPage]:
    """Return a page of the backfills, newest first."""
    page = backfill_models.BackfillPage
    return get("/backfills", page, state=state, limit=limit, cursor=cursor)


@operation("backfills-show")
def backfill(backfill_id: str) -> Call[backfill_models.BackfillView]:
    """Return the progress and results of a backfill."""
    return get(_path(backfill_id), backfill_models.BackfillView)


@operation("backfills-set_limits")
def set_backfill_limits(
    backfill_id: str, **limits: float | None
) -> Call[backfill_models.BackfillView]:
    """Change `rate`, `max_open`, `budget` or `weight`, also while the backfill runs; None removes a
    limit."""
    return modify(_path(backfill_id), backfill_models.BackfillView, limits, method="PATCH")


@operation("backfills-pause")
def pause_backfill(backfill_id: str) -> Call[backfill_models.BackfillView]:
    """Pause the backfill: within a second, it publishes no more jobs until it is resumed."""
    return modify(f"{_path(backfill_id)}/pause", backfill_models.BackfillView)


@operation("backfills-resume")
def resume_backfill(backfill_id: str) -> Call[backfill_models.BackfillView]:
    """Resume the backfill where it stopped."""
    return modify(f"{_path(backfill_id)}/resume", backfill_models.BackfillView)


@operation("backfills-cancel")
def cancel_backfill(
    backfill_id: str, *, jobs: bool = False
) -> Call[backfill_models.CancelledBackfill]:
    """Cancel the backfill for good; with `jobs`, also its published jobs that have not started."""
    answer = backfill_models.CancelledBackfill
    return modify(f"{_path(backfill_id)}/cancel", answer, {"jobs": jobs})


def _path(backfill_id: str) -> str:
    return f"/backfills/{in_path(backfill_id)}"


def _plan(source: str, options: Mapping[str, Any] | None, **others: Any) -> dict[str, Any]:
    return {"source": source, "options": dict(options or {}), **without_none(others)}
