"""`/jobs/actions`: cancel, rerun or move all jobs that match a filter, with a record of it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request, Response

from switchyard.api.engine.bulk import BulkRoutes
from switchyard.api.http.problems import JsonResponse, responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs, starter_of
from switchyard.api.models.job_actions import (
    EXAMPLE_ACTION,
    JobActionPage,
    JobActionPlan,
    JobActionRate,
    JobActionView,
    NewJobAction,
)
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.job_actions import view_action_plan, view_settled_action
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.actions.spec import (
    KINDS,
    ActionSpec,
    plan_action,
    start_action,
    undo_spec,
)
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkOperation

router = Routes(prefix="/jobs", tags=["jobs"], dependencies=[needs(Scope.ADMIN)])


async def _resume(ledger: Ledger, operation_id: str) -> BulkOperation:
    return await bulk_control.resume(ledger, operation_id, kinds=KINDS)


ACTIONS = BulkRoutes(
    noun="action",
    kinds=KINDS,
    path="/actions",
    suffix="_job_action",
    id_pattern=patterns.ACTION_ID,
    view=JobActionView,
    view_of=view_settled_action,
    page=JobActionPage,
    resume=_resume,
)
ActionId = Annotated[
    str,
    Path(pattern=patterns.ACTION_ID, description="The action's id.", examples=[EXAMPLE_ACTION]),
]
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"headers": {"Location": {"schema": {"type": "string"}}}}
}


@router.post(
    "/actions",
    status_code=202,
    response_model=JobActionView,
    responses={
        200: {"model": JobActionPlan, "description": "With `dry_run`: how many jobs fit."},
        **ACCEPTED,
        **responses("invalid", "no-broker", "ledger-away"),
    },
)
async def start_job_action(
    body: NewJobAction, state: Shared, request: Request, response: Response
) -> JobActionView | JsonResponse:
    """Cancel, rerun or move many jobs; a running `jobctl scheduler` executes it."""
    spec = action_spec(state, body)
    if body.dry_run:
        plan = view_action_plan(await plan_action(state.ledger, spec))
        return JsonResponse(plan.model_dump(mode="json"))
    operation = await start_action(
        state.ledger, spec, created_by=starter_of(request), reason=body.reason, rate=body.rate
    )
    response.headers["Location"] = f"/jobs/actions/{operation.id}"
    return await view_settled_action(state.ledger, shown_operation(state.registry, operation))


@router.patch(
    "/actions/{action_id}",
    responses=responses("invalid", "not-found", "wrong-state", "ledger-away"),
)
async def set_job_action_rate(
    action_id: ActionId, body: JobActionRate, request: Request, state: Shared
) -> JobActionView:
    """Change the rate of a bulk action, also while it runs."""
    return await ACTIONS.set_limits(state, request, action_id, {"rate": body.rate})


@router.post(
    "/actions/{action_id}/cancel", responses=responses("not-found", "wrong-state", "ledger-away")
)
async def cancel_job_action(action_id: ActionId, state: Shared) -> JobActionView:
    """End a bulk action permanently. What it has done stays."""
    await bulk_control.cancel(state.ledger, action_id, kinds=KINDS)
    return await ACTIONS.view_operation(state, action_id)


@router.post(
    "/actions/{action_id}/undo",
    status_code=202,
    responses={**ACCEPTED, **responses("not-found", "no-broker", "ledger-away")},
)
async def undo_job_action(
    action_id: ActionId, state: Shared, request: Request, response: Response
) -> JobActionView:
    """Undo a bulk action by another one, for jobs whose state still allows it: jobs that it
    cancelled are rerun, new jobs of a rerun are cancelled, moved jobs go back."""
    operation = await undo_action(state, request, action_id)
    response.headers["Location"] = f"/jobs/actions/{operation.id}"
    return await view_settled_action(state.ledger, shown_operation(state.registry, operation))


def action_spec(state: ApiState, order: NewJobAction) -> ActionSpec:
    """Make the ActionSpec of a request. Raises Problem (no broker), InvalidAction,
    InvalidRedrive."""
    state.require_broker()
    spec = ActionSpec(
        order.action,
        order.filter.to_filter(),
        order.change.to_change(),
        lane=order.lane,
        priority=order.priority,
        limit=order.limit,
        halt_on=order.halt_on,
        canary=order.canary,
        remote=True,
    )
    spec.check()
    return spec


async def undo_action(state: ApiState, request: Request, action_id: str) -> BulkOperation:
    """Start the action that undoes another. Raises Problem (no broker), UnknownBulkOperation."""
    state.require_broker()
    operation = await bulk_control.require_bulk(state.ledger, action_id, *KINDS)
    return await start_action(
        state.ledger,
        undo_spec(operation, remote=True),
        created_by=starter_of(request),
        reason=f"undoes {operation.id}",
    )


ACTIONS.add_to(router)
