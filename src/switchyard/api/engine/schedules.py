"""`/schedules`: jobs that are published at their times."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request, Response

from switchyard.api.http.problems import invalid, responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs, starter_of
from switchyard.api.models import schedules as models
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.system import view_firing, view_schedule
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.rule import InvalidSchedule
from switchyard.services.engine.schedules.service import Schedules

router = Routes(prefix="/schedules", tags=["schedules"])

Name = Annotated[
    str,
    Path(
        pattern=patterns.DASHED_NAME,
        description="Name of the schedule.",
        examples=["papers-of-the-day"],
    ),
]
READS, CHANGES = [needs(Scope.READ)], [needs(Scope.ADMIN)]


@router.get("", dependencies=READS, responses=responses("ledger-away"))
async def list_schedules(state: Shared) -> models.ScheduleList:
    """List schedules by name, with the result of the last due time."""
    records = await _schedules_of(state).list_all()
    return models.ScheduleList(schedules=[view_schedule(record, last) for record, last in records])


@router.post(
    "",
    status_code=201,
    dependencies=CHANGES,
    responses=responses("invalid", "wrong-state", "ledger-away"),
)
async def add(
    body: models.NewSchedule, request: Request, response: Response, state: Shared
) -> models.ScheduleView:
    """Add a schedule. The rules for its payload are those of `POST /jobs`."""
    entry = ScheduleEntry.from_fields(body.model_dump())
    by = starter_of(request)
    try:
        record = await _schedules_of(state).add(entry, remote=True, created_by=by)
    except InvalidSchedule as error:
        raise invalid(RequestFieldError((error.at,) if error.at else (), str(error))) from error
    response.headers["Location"] = f"/schedules/{record.name}"
    return view_schedule(record)


@router.get("/{name}", dependencies=READS, responses=responses("not-found", "ledger-away"))
async def show(name: Name, state: Shared) -> models.ScheduleView:
    """Show a schedule."""
    record = await _schedules_of(state).get(name)
    last = await _schedules_of(state).history(name, 1)
    return view_schedule(record, last[0] if last else None)


@router.delete(
    "/{name}",
    status_code=204,
    response_class=Response,
    dependencies=CHANGES,
    responses=responses("not-found", "wrong-state", "ledger-away"),
)
async def remove(name: Name, state: Shared) -> None:
    """Remove an added schedule and its history. Jobs that it has published still run."""
    await _schedules_of(state).remove(name)


@router.post("/{name}/pause", dependencies=CHANGES, responses=responses("not-found", "ledger-away"))
async def pause(name: Name, state: Shared) -> models.ScheduleView:
    """Pause a schedule. Due times during the pause are neither fired nor counted as missed."""
    return view_schedule(await _schedules_of(state).pause(name))


@router.post(
    "/{name}/resume", dependencies=CHANGES, responses=responses("not-found", "ledger-away")
)
async def resume(name: Name, state: Shared) -> models.ScheduleView:
    """Resume a schedule with its next due time."""
    return view_schedule(await _schedules_of(state).resume(name))


@router.post(
    "/{name}/run",
    status_code=202,
    dependencies=CHANGES,
    responses=responses("not-found", "invalid", "ledger-away"),
)
async def run(name: Name, request: Request, state: Shared) -> models.FiringView:
    """Fire a schedule now, even if it is paused. A scheduler publishes its job within a second."""
    try:
        firing = await _schedules_of(state).run(name, starter_of(request))
    except InvalidSchedule as error:
        raise invalid(RequestFieldError((), str(error))) from error
    return view_firing(firing)


@router.get("/{name}/history", dependencies=READS, responses=responses("not-found", "ledger-away"))
async def history(
    name: Name, state: Shared, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> models.ScheduleHistory:
    """List the results of a schedule's due times, newest first."""
    firings = await _schedules_of(state).history(name, limit)
    return models.ScheduleHistory(firings=[view_firing(each) for each in firings])


def _schedules_of(state: ApiState) -> Schedules:
    return Schedules(state.ledger, state.registry)
