"""Describe calls that list and change schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.api.client.call import Call, get, in_path, operation, without_none
from switchyard.api.models import schedules as models


@operation("schedules-list_schedules")
def schedules() -> Call[models.ScheduleList]:
    """Return all schedules, by name."""
    return get("/schedules", models.ScheduleList)


@operation("schedules-show")
def schedule(name: str) -> Call[models.ScheduleView]:
    """Show a schedule."""
    return get(f"/schedules/{in_path(name)}", models.ScheduleView)


@operation("schedules-add")
def add_schedule(
    name: str,
    cron: str,
    job: str,
    payload: Mapping[str, Any] | None = None,
    *,
    timezone: str = "UTC",
    priority: int | None = None,
    max_attempts: int | None = None,
    tags: Mapping[str, str] | None = None,
    payload_version: int | None = None,
    jitter: float | None = None,
    grace: float | None = None,
) -> Call[models.ScheduleView]:
    """Add a schedule; `job` is a routing key, `jitter` and `grace` are seconds."""
    body = {
        "name": name,
        "cron": cron,
        "job": job,
        "payload": dict(payload or {}),
        "timezone": timezone,
        "priority": priority,
        "max_attempts": max_attempts,
        "tags": None if tags is None else dict(tags),
        "payload_version": payload_version,
        "jitter": jitter,
        "grace": grace,
    }
    read = models.ScheduleView.model_validate_json
    return Call("POST", "/schedules", read, json=without_none(body), repeatable=False)


@operation("schedules-remove")
def remove_schedule(name: str) -> Call[None]:
    """Remove a schedule that was added, with its history."""
    return Call("DELETE", f"/schedules/{in_path(name)}", lambda body: None)


@operation("schedules-pause")
def pause_schedule(name: str) -> Call[models.ScheduleView]:
    """Pause a schedule."""
    return _change(name, "pause")


@operation("schedules-resume")
def resume_schedule(name: str) -> Call[models.ScheduleView]:
    """Resume a schedule with its next due time."""
    return _change(name, "resume")


@operation("schedules-run")
def run_schedule(name: str) -> Call[models.FiringView]:
    """Fire a schedule now; the answer names its job, which a scheduler publishes soon."""
    read = models.FiringView.model_validate_json
    return Call("POST", f"/schedules/{in_path(name)}/run", read, repeatable=False)


@operation("schedules-history")
def schedule_history(name: str, *, limit: int | None = None) -> Call[models.ScheduleHistory]:
    """List the results of a schedule's due times, newest first."""
    return get(f"/schedules/{in_path(name)}/history", models.ScheduleHistory, limit=limit)


def _change(name: str, what: str) -> Call[models.ScheduleView]:
    read = models.ScheduleView.model_validate_json
    return Call("POST", f"/schedules/{in_path(name)}/{what}", read)
