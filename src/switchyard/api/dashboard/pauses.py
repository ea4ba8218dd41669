"""Begin and end pauses of lanes, types, sources and queues, by buttons on the pages that show
these."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Form, Path, Request
from starlette.responses import Response

from switchyard.api.dashboard.pages import DashboardView, Pages, allows, done
from switchyard.api.dashboard.sessions import PATH
from switchyard.api.engine.pauses import pause as make_pause
from switchyard.api.engine.pauses import resume as end_pause
from switchyard.api.http.problems import invalid
from switchyard.api.models.pauses import PauseRequest, PauseView
from switchyard.api.state import Shared
from switchyard.api.views.pauses import view_pauses
from switchyard.broker import patterns
from switchyard.services.common.durations import parse_seconds
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.engine.records.pauses import (
    MAX_PAUSE_SECONDS,
    MAX_PAUSES,
    MAX_REASON_LENGTH,
    MAX_TARGET_LENGTH,
    PauseScope,
)

# Forms only: there is no page of its own for the menu.
router = Pages(DashboardView("pauses", "Pauses", f"{PATH}/pauses", is_shown=lambda _: False))
ADMIN = [allows(Scope.ADMIN)]
RETURN_PATHS: dict[str, str] = {"overview": PATH, "workers": f"{PATH}/workers"}
"""The page to return to after a pause has begun or ended, by the view whose form was sent."""
From = Annotated[Literal["overview", "workers"], Form(alias="from")]


async def pauses_in_force(ledger: Ledger) -> dict[tuple[str, str], PauseView]:
    """Return the pauses with the jobs that each holds, by scope and target."""
    pauses = await view_pauses(ledger, ended=False, limit=MAX_PAUSES)
    return {(each.scope.value, each.target): each for each in pauses.pauses}


@router.post("", dependencies=ADMIN)
async def pause(
    request: Request,
    state: Shared,
    scope: Annotated[PauseScope, Form()],
    target: Annotated[str, Form(max_length=MAX_TARGET_LENGTH, pattern=patterns.PLAIN)] = "",
    reason: Annotated[str, Form(max_length=MAX_REASON_LENGTH, pattern=patterns.PLAIN)] = "",
    duration: Annotated[str, Form(alias="for", max_length=100)] = "",
    back: From = "overview",
) -> Response:
    """Pause a lane, type, source or queue, for a time or until it is resumed."""
    seconds = _seconds(duration)
    if not target.strip():
        raise invalid(RequestFieldError(("target",), "say what is to be paused"))
    pause_request = PauseRequest(
        scope=scope, target=target.strip(), reason=reason.strip() or None, seconds=seconds
    )
    pause_view = await make_pause(pause_request, request, Response(), state)
    return done(
        RETURN_PATHS[back],
        f"The {pause_view.scope} {pause_view.target} is paused: its jobs do not begin.",
    )


@router.post("/{pause_id}/resume", dependencies=ADMIN)
async def resume(
    pause_id: Annotated[str, Path(pattern=patterns.PAUSE_ID)],
    request: Request,
    state: Shared,
    back: From = "overview",
) -> Response:
    """End a pause."""
    ended = await end_pause(pause_id, request, state)
    return done(RETURN_PATHS[back], f"The {ended.scope} {ended.target} goes on.")


def _seconds(text: str) -> float | None:
    """Return the seconds of a duration such as `2h`; None for an empty text. Raises Problem."""
    if not text.strip():
        return None
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise invalid(RequestFieldError(("for",), str(error))) from error
    if not 1 <= seconds <= MAX_PAUSE_SECONDS:
        raise invalid(RequestFieldError(("for",), "a pause lasts from one second to 366 days"))
    return seconds
