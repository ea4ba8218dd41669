"""Describe calls of the operations on dead letters: letters, groups, and redrives with a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.api.client.call import Call, get, in_path, modify, operation, without_none
from switchyard.api.models import dead as dead_models

_REDRIVES = "/admin/dead/redrives"


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
    """Return a page of the dead letters, latest first."""
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
    """Return a dead letter with its headers and body."""
    return get(f"/admin/dead/{in_path(letter_id)}", dead_models.DeadLetterDetails)


@operation("admin-dead_groups")
def dead_groups(
    *, state: str | None = None, limit: int | None = None
) -> Call[dead_models.DeadGroupList]:
    """Dead letters by cause, the most frequent first."""
    return get("/admin/dead/groups", dead_models.DeadGroupList, state=state, limit=limit)


@operation("admin-start_redrive")
def start_redrive(
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - the API's own word
    *,
    change: Mapping[str, Any] | None = None,
    limit: int | None = None,
    canary: int | None = None,
    rate: float | None = None,
    halt_on: float | None = None,
    from_ledger: bool | None = None,
    reason: str | None = None,
) -> Call[dead_models.RedriveView]:
    """Start a redrive of the letters that fit; of all where no filter is given. docs/redrive.md
    explains the rest."""
    body = _body(
        filter,
        change=change,
        limit=limit,
        canary=canary,
        rate=rate,
        halt_on=halt_on,
        from_ledger=from_ledger,
        reason=reason,
    )
    return Call("POST", _REDRIVES, dead_models.RedriveView.model_validate_json, json=body)


@operation("admin-start_redrive")
def plan_redrive(
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - the API's own word
    *,
    change: Mapping[str, Any] | None = None,
    limit: int | None = None,
    from_ledger: bool | None = None,
) -> Call[dead_models.RedrivePlan]:
    """Show what a redrive would do: which letters would go where. Nothing is sent."""
    body = _body(filter, change=change, limit=limit, from_ledger=from_ledger, dry_run=True)
    return modify(_REDRIVES, dead_models.RedrivePlan, body)


@operation("admin-list_redrives")
def redrives_page(
    *, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[dead_models.RedrivePage]:
    """Return a page of the redrives, newest first."""
    return get(_REDRIVES, dead_models.RedrivePage, state=state, limit=limit, cursor=cursor)


@operation("admin-show_redrive")
def redrive(redrive_id: str) -> Call[dead_models.RedriveView]:
    """Return the progress of a redrive, and the results of its letters so far."""
    return get(_path(redrive_id), dead_models.RedriveView)


@operation("admin-set_redrive_rate")
def set_redrive_rate(redrive_id: str, rate: float | None) -> Call[dead_models.RedriveView]:
    """Change the redrive's rate, also while it runs; None removes the limit."""
    return modify(_path(redrive_id), dead_models.RedriveView, {"rate": rate}, method="PATCH")


@operation("admin-pause_redrive")
def pause_redrive(redrive_id: str) -> Call[dead_models.RedriveView]:
    """Pause the redrive: within a second, it sends no more letters until it is resumed."""
    return modify(f"{_path(redrive_id)}/pause", dead_models.RedriveView)


@operation("admin-resume_redrive")
def resume_redrive(redrive_id: str) -> Call[dead_models.RedriveView]:
    """Resume the redrive where it stopped, also after a halt."""
    return modify(f"{_path(redrive_id)}/resume", dead_models.RedriveView)


@operation("admin-cancel_redrive")
def cancel_redrive(redrive_id: str) -> Call[dead_models.RedriveView]:
    """Cancel the redrive for good. Letters that were sent stay in their lanes."""
    return modify(f"{_path(redrive_id)}/cancel", dead_models.RedriveView)


def _path(redrive_id: str) -> str:
    return f"{_REDRIVES}/{in_path(redrive_id)}"


def _body(which: Mapping[str, Any] | None, **others: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"filter": dict(which)} if which else {"all": True}
    return chosen | without_none(others)
