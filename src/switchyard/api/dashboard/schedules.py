"""Schedules: show due times and their results; run now, pause, resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages, allows, done
from switchyard.api.http.problems import invalid
from switchyard.api.middleware.access import starter_of
from switchyard.api.state import ApiState, Shared
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.engine.schedules.rule import InvalidSchedule
from switchyard.services.engine.schedules.service import Schedules

router = Pages(DashboardView("schedules", "Schedules", "/dashboard/schedules"))

Name = Annotated[str, Path(pattern=patterns.DASHED_NAME)]
ADMIN = [allows(Scope.ADMIN)]
MAX_FIRINGS = 100


@router.get("")
async def show_schedules(state: Shared) -> DashboardPage:
    """List the schedules by name, each with the result of its last due time."""
    schedules = await _schedules_of(state).list_all()
    return DashboardPage("schedules.html", {"schedules": schedules}, title="Schedules")


@router.get("/{name}")
async def show_schedule(name: Name, state: Shared) -> DashboardPage:
    """Show a schedule with its history."""
    schedules = _schedules_of(state)
    context = {
        "schedule": await schedules.get(name),
        "firings": await schedules.history(name, MAX_FIRINGS),
    }
    return DashboardPage("schedule.html", context, title=name)


@router.post("/{name}/pause", dependencies=ADMIN)
async def pause(name: Name, state: Shared) -> Response:
    """Pause a schedule."""
    await _schedules_of(state).pause(name)
    return done(f"{router.view.path}/{name}", f"{name} is paused.")


@router.post("/{name}/resume", dependencies=ADMIN)
async def resume(name: Name, state: Shared) -> Response:
    """Resume a schedule with its next due time."""
    await _schedules_of(state).resume(name)
    return done(f"{router.view.path}/{name}", f"{name} goes on.")


@router.post("/{name}/run", dependencies=ADMIN)
async def run(name: Name, request: Request, state: Shared) -> Response:
    """Fire a schedule now."""
    try:
        await _schedules_of(state).run(name, starter_of(request))
    except InvalidSchedule as error:
        raise invalid(RequestFieldError((), str(error))) from error
    return done(f"{router.view.path}/{name}", f"{name} is fired: its job comes within a second.")


def _schedules_of(state: ApiState) -> Schedules:
    return Schedules(state.ledger, state.registry)
