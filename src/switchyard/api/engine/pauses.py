"""`/pauses`: lanes, job types, sources and queues whose jobs do not begin."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request, Response

from switchyard.api.http.problems import Problem, invalid, responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs, starter_of
from switchyard.api.models import pauses as models
from switchyard.api.state import Shared
from switchyard.api.views.pauses import view_pause, view_pauses
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.engine.records.pauses import NewPause

router = Routes(prefix="/pauses", tags=["pauses"])
READS, CHANGES = [needs(Scope.READ)], [needs(Scope.ADMIN)]
PauseId = Annotated[
    str,
    Path(
        pattern=patterns.PAUSE_ID,
        description="Id of the pause.",
        examples=["pause-0b0f6c1e6a5e"],
    ),
]


@router.get("", dependencies=READS, responses=responses("ledger-away"))
async def list_pauses(
    state: Shared,
    ended: Annotated[
        bool, Query(description="List the pauses that have ended, the latest first.")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 200,
) -> models.PauseList:
    """List the pauses that are in force, the oldest first, with the number of jobs that each
    holds."""
    return await view_pauses(state.ledger, ended=ended, limit=limit)


@router.post(
    "",
    status_code=201,
    dependencies=CHANGES,
    responses=responses("invalid", "wrong-state", "ledger-away"),
)
async def pause(
    body: models.PauseRequest, request: Request, response: Response, state: Shared
) -> models.PauseView:
    """Pause a lane, a job type, a source or a queue, at once and in the whole fleet. Running jobs
    end normally; the others are kept in the ledger, where they do not expire, until the pause ends.
    A pause of the same target is replaced."""
    try:
        new_pause = NewPause(
            body.scope, body.target, starter_of(request), body.reason, body.seconds
        )
    except ValueError as error:
        raise invalid(RequestFieldError(("target",), str(error))) from error
    record = await state.ledger.pauses.pause(new_pause)
    response.headers["Location"] = "/pauses"
    return view_pause(record)


@router.delete("/{pause_id}", dependencies=CHANGES, responses=responses("not-found", "ledger-away"))
async def resume(pause_id: PauseId, request: Request, state: Shared) -> models.PauseView:
    """End a pause. A scheduler publishes the jobs that no other pause holds, the most urgent lane
    and the oldest job first."""
    record = await state.ledger.pauses.resume(pause_id, starter_of(request))
    if record is None:
        raise Problem("not-found", f"no pause {pause_id} is in force")
    return view_pause(record)
