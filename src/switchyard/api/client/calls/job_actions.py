"""Describe calls that start, follow and control bulk actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from switchyard.api.client.call import Call, get, in_path, modify, operation, without_none
from switchyard.api.models import job_actions as models

_ACTIONS = "/jobs/actions"
Action = Literal["cancel", "rerun", "move"]


@operation("jobs-start_job_action")
def start_job_action(
    action: Action,
    filter: Mapping[str, Any],  # noqa: A002 - the API's own word
    *,
    change: Mapping[str, Any] | None = None,
    lane: str | None = None,
    priority: int | None = None,
    limit: int | None = None,
    rate: float | None = None,
    halt_on: float | None = None,
    canary: int | None = None,
    reason: str | None = None,
) -> Call[models.JobActionView]:
    """Start a bulk action: a scheduler cancels, reruns or moves the jobs that fit the filter."""
    body = {
        "action": action,
        "filter": dict(filter),
        "change": change,
        "lane": lane,
        "priority": priority,
        "limit": limit,
        "rate": rate,
        "halt_on": halt_on,
        "canary": canary,
        "reason": reason,
    }
    read = models.JobActionView.model_validate_json
    return Call("POST", _ACTIONS, read, json=without_none(body))


@operation("jobs-start_job_action")
def plan_job_action(
    action: Action,
    filter: Mapping[str, Any],  # noqa: A002 - the API's own word
    *,
    lane: str | None = None,
    priority: int | None = None,
    limit: int | None = None,
) -> Call[models.JobActionPlan]:
    """Show how many jobs fit, and the oldest of them. Nothing is changed."""
    options = {"lane": lane, "priority": priority, "limit": limit}
    body = {"action": action, "filter": dict(filter), "dry_run": True} | without_none(options)
    return modify(_ACTIONS, models.JobActionPlan, body)


@operation("jobs-list_actions")
def job_actions_page(
    *, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[models.JobActionPage]:
    """Return a page of the bulk actions, newest first."""
    return get(_ACTIONS, models.JobActionPage, state=state, limit=limit, cursor=cursor)


@operation("jobs-show_job_action")
def job_action(action_id: str) -> Call[models.JobActionView]:
    """Return the progress of a bulk action, and its results so far."""
    return get(_path(action_id), models.JobActionView)


@operation("jobs-set_job_action_rate")
def set_job_action_rate(action_id: str, rate: float | None) -> Call[models.JobActionView]:
    """Change the action's rate, also while it runs; None removes the limit."""
    return modify(_path(action_id), models.JobActionView, {"rate": rate}, method="PATCH")


@operation("jobs-pause_job_action")
def pause_job_action(action_id: str) -> Call[models.JobActionView]:
    """Pause the action: within a second, it changes no more jobs until it is resumed."""
    return modify(f"{_path(action_id)}/pause", models.JobActionView)


@operation("jobs-resume_job_action")
def resume_job_action(action_id: str) -> Call[models.JobActionView]:
    """Resume the action where it stopped, also after a halt."""
    return modify(f"{_path(action_id)}/resume", models.JobActionView)


@operation("jobs-cancel_job_action")
def cancel_job_action(action_id: str) -> Call[models.JobActionView]:
    """End the action for good. Jobs that it has changed stay changed."""
    return modify(f"{_path(action_id)}/cancel", models.JobActionView)


@operation("jobs-undo_job_action")
def undo_job_action(action_id: str) -> Call[models.JobActionView]:
    """Start the action that undoes this one, for jobs whose state still allows it."""
    return modify(f"{_path(action_id)}/undo", models.JobActionView)


def _path(action_id: str) -> str:
    return f"{_ACTIONS}/{in_path(action_id)}"
