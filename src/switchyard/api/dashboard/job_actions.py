"""Bulk actions from the page of jobs: counted first, then started, followed, halted, undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Form, Path, Request, Response

from switchyard.api.dashboard import jobs
from switchyard.api.dashboard.jobs import JOBS_PATH, Asked
from switchyard.api.dashboard.pages import PRESETS, DashboardPage, Pages, allows, done
from switchyard.api.engine.job_actions import undo_action
from switchyard.api.middleware.access import starter_of
from switchyard.api.state import Shared
from switchyard.api.views.job_actions import view_action, view_settled_action
from switchyard.broker import patterns
from switchyard.broker.lanes import LANES
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.actions.spec import (
    KINDS,
    MAX_COUNTED,
    ActionSpec,
    start_action,
)
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.records.bulk import ACTIVE, MAX_RATE, MIN_RATE, RESUMABLE
from switchyard.services.engine.records.job_actions import TAKES, JobAction
from switchyard.services.engine.records.states import FINISHED, OPEN, State

router = Pages(jobs.router.view)
ADMIN = [allows(Scope.ADMIN)]
COUNT_LIMIT = 100_000
"""Jobs that have ended, and jobs that have not, that are counted before somebody acts on them; of
more, the page says that there are so many or more."""
MAX_EXAMPLES = 5
PAGE_SIZE = 50
ActionId = Annotated[str, Path(pattern=patterns.ACTION_ID)]


@dataclass(frozen=True, slots=True)
class JobCount:
    """A number of jobs, which may be capped."""

    number: int
    is_capped: bool
    """Whether counting ended at COUNT_LIMIT: there may be more."""


def _count(counts: Mapping[State, int], states: frozenset[State]) -> JobCount:
    """Add up the jobs in these states."""
    is_capped = any(
        sum(counts.get(state, 0) for state in group) >= COUNT_LIMIT
        for group in (FINISHED, OPEN)
        if not states.isdisjoint(group)
    )
    return JobCount(sum(counts.get(state, 0) for state in states), is_capped)


@router.get("/act", dependencies=ADMIN)
async def show_choice(state: Shared, asked: Asked) -> DashboardPage:
    """Count the jobs that match, by what can be done to them, and offer to do it."""
    reads = state.ledger.job_reads
    counts = await reads.count_matching_by_state(asked.job_filter, at_most=COUNT_LIMIT)
    context = {
        "matching": _count(counts, frozenset(State)),
        "possible": {action.value: _count(counts, states) for action, states in TAKES.items()},
        "examples": await reads.matching_jobs(
            asked.job_filter, frozenset(State), limit=MAX_EXAMPLES
        )
        if counts
        else [],
        "filter_text": asked.job_filter.describe(),
        "query": asked.query,
        "lanes": [each.name for each in LANES],
        "max_priority": MAX_PRIORITY,
        "presets": PRESETS,
    }
    return DashboardPage("jobs_act.html", context, title="Act on jobs")


@router.post("/act", dependencies=ADMIN)
async def start(
    request: Request,
    state: Shared,
    asked: Asked,
    action: Annotated[JobAction, Form()],
    lane: Annotated[str | None, Form(pattern=patterns.NAME)] = None,
    priority: Annotated[int | None, Form(ge=0, le=MAX_PRIORITY)] = None,
    limit: Annotated[int | None, Form(ge=1, le=2_000_000_000)] = None,
    rate: Annotated[float | None, Form(ge=MIN_RATE, le=MAX_RATE)] = None,
    halt_percent: Annotated[float | None, Form(gt=0, le=100)] = None,
    canary: Annotated[int | None, Form(ge=1, le=100_000)] = None,
    why: Annotated[str | None, Form(max_length=1000, pattern=patterns.PLAIN)] = None,
) -> Response:
    """Start an action on all that match; a scheduler runs it."""
    state.require_broker()
    is_move, is_rerun = action is JobAction.MOVE, action is JobAction.RERUN
    spec = ActionSpec(
        action,
        asked.job_filter,
        lane=lane if is_move else None,
        priority=priority if is_move else None,
        limit=limit,
        halt_on=halt_percent / 100 if is_rerun and halt_percent is not None else None,
        canary=canary if is_rerun else None,
        remote=True,
    )
    operation = await start_action(
        state.ledger, spec, created_by=starter_of(request), reason=why, rate=rate
    )
    return done(f"{JOBS_PATH}/actions/{operation.id}", f"{operation.id} has begun.")


@router.get("/actions", dependencies=ADMIN)
async def list_actions(state: Shared) -> DashboardPage:
    """List the latest bulk actions: who did what, when and why."""
    page = await state.ledger.bulk.list_bulk(*KINDS, limit=PAGE_SIZE)
    context: dict[str, Any] = {
        "actions": [view_action(shown_operation(state.registry, each)) for each in page.items]
    }
    return DashboardPage("jobs_actions.html", context, title="Bulk actions")


@router.get("/actions/{action_id}", dependencies=ADMIN)
async def show_action(state: Shared, action_id: ActionId) -> DashboardPage:
    """Show how far a bulk action is, and what has become of its new jobs."""
    operation = await bulk_control.require_bulk(state.ledger, action_id, *KINDS)
    operation = shown_operation(state.registry, operation)
    spec = ActionSpec.from_operation(operation)
    context = {
        "operation": await view_settled_action(state.ledger, operation),
        "spec": spec,
        "may_pause": operation.state in ACTIVE,
        "may_resume": operation.state in RESUMABLE,
        "count_limit": MAX_COUNTED,
    }
    return DashboardPage("jobs_action.html", context, title=operation.id)


@router.post("/actions/{action_id}/{step}", dependencies=ADMIN)
async def control_action(
    request: Request,
    state: Shared,
    action_id: ActionId,
    step: Literal["pause", "resume", "cancel", "undo"],
) -> Response:
    """Pause a bulk action until somebody resumes it, resume it, end it for good, or undo it."""
    if step == "undo":
        operation = await undo_action(state, request, action_id)
        return done(f"{JOBS_PATH}/actions/{operation.id}", f"{operation.id} undoes {action_id}.")
    if step == "pause":
        operation = await bulk_control.pause(state.ledger, action_id, kinds=KINDS)
    elif step == "resume":
        operation = await bulk_control.resume(state.ledger, action_id, kinds=KINDS)
    else:
        operation = await bulk_control.cancel(state.ledger, action_id, kinds=KINDS)
    return done(f"{JOBS_PATH}/actions/{operation.id}", f"{operation.id} is {operation.state}.")
