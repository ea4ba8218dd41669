"""Describe calls that list, make and end pauses."""

from __future__ import annotations

from switchyard.api.client.call import Call, get, in_path, operation, without_none
from switchyard.api.models import pauses as models
from switchyard.services.engine.records.pauses import PauseScope


@operation("pauses-list_pauses")
def pauses(*, ended: bool | None = None, limit: int | None = None) -> Call[models.PauseList]:
    """List the pauses in force with the jobs that they hold; with `ended`, the ended ones."""
    return get("/pauses", models.PauseList, ended=ended, limit=limit)


@operation("pauses-pause")
def pause(
    scope: PauseScope, target: str, *, reason: str | None = None, seconds: float | None = None
) -> Call[models.PauseView]:
    """Pause a lane, a job type, a source or a queue."""
    body = {"scope": scope, "target": target, "reason": reason, "seconds": seconds}
    read = models.PauseView.model_validate_json
    return Call("POST", "/pauses", read, json=without_none(body))


@operation("pauses-resume")
def resume(pause_id: str) -> Call[models.PauseView]:
    """End a pause."""
    return Call("DELETE", f"/pauses/{in_path(pause_id)}", models.PauseView.model_validate_json)
