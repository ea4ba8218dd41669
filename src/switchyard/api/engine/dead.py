"""`/admin/dead/groups`, `/admin/dead/redrives`: list dead letters by cause, and send them back."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Path, Query, Request, Response

from switchyard.api.engine.bulk import BulkRoutes
from switchyard.api.http.problems import JsonResponse, responses
from switchyard.api.http.routing import Limit, Routes
from switchyard.api.middleware.access import needs, starter_of
from switchyard.api.models.dead import (
    EXAMPLE_ID,
    DeadGroupList,
    NewRedrive,
    RedrivePage,
    RedrivePlan,
    RedriveRate,
    RedriveView,
)
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.dead import view_group, view_redrive_outcomes, view_redrive_plan
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.dead.groups import with_full_ids
from switchyard.services.engine.dead.scan import wait_at_most
from switchyard.services.engine.records.bulk import BulkOperation
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.states import DeadLetterState
from switchyard.services.engine.redrive import spec as redrive_spec
from switchyard.services.engine.redrive.plan import plan_redrive
from switchyard.services.engine.redrive.spec import KIND, RedriveSpec

router = Routes(prefix="/admin/dead", tags=["admin"], dependencies=[needs(Scope.ADMIN)])

SCAN_TIMEOUT = 5.0
"""Seconds that a request waits until no other process reads through `jobs.dead`."""

REDRIVES = BulkRoutes(
    noun=KIND,
    kinds=(KIND,),
    path="/redrives",
    suffix="_redrive",
    id_pattern=patterns.REDRIVE_ID,
    view=RedriveView,
    view_of=view_redrive_outcomes,
    page=RedrivePage,
    resume=redrive_spec.resume_redrive,
)
RedriveId = Annotated[
    str, Path(pattern=patterns.REDRIVE_ID, description="The redrive's id.", examples=[EXAMPLE_ID])
]


@router.get("/groups", responses=responses("invalid", "ledger-away"))
async def dead_groups(
    state: Shared,
    letter_state: Annotated[DeadLetterState, Query(alias="state")] = DeadLetterState.WAITING,
    limit: Limit = 50,
) -> DeadGroupList:
    """List dead letters by cause, most frequent first, as indexed by the scheduler."""
    letter_filter = DeadLetterFilter(state=letter_state)
    groups = await state.ledger.dead_letters.dead_groups(letter_filter=letter_filter, limit=limit)
    return DeadGroupList(groups=[view_group(group) for group in groups])


@router.post(
    "/redrives",
    status_code=202,
    response_model=RedriveView,
    responses={
        200: {"model": RedrivePlan, "description": "With `dry_run`: what would go where."},
        202: {"headers": {"Location": {"schema": {"type": "string"}}}},
        **responses("invalid", "wrong-state", "broker-away", "no-broker", "ledger-away"),
    },
)
async def start_redrive(
    body: NewRedrive, state: Shared, request: Request, response: Response
) -> RedriveView | JsonResponse:
    """Start a redrive; a running `jobctl scheduler` executes it."""
    if body.dry_run:
        return JsonResponse((await count_redrive(state, body)).model_dump(mode="json"))
    operation = await record_redrive(state, request, body)
    response.headers["Location"] = f"/admin/dead/redrives/{operation.id}"
    return await view_redrive_outcomes(state.ledger, shown_operation(state.registry, operation))


@router.patch(
    "/redrives/{redrive_id}",
    responses=responses("invalid", "not-found", "wrong-state", "ledger-away"),
)
async def set_redrive_rate(
    redrive_id: RedriveId, body: RedriveRate, request: Request, state: Shared
) -> RedriveView:
    """Change the rate of a redrive, also while it runs."""
    return await REDRIVES.set_limits(state, request, redrive_id, {"rate": body.rate})


@router.post(
    "/redrives/{redrive_id}/cancel", responses=responses("not-found", "wrong-state", "ledger-away")
)
async def cancel_redrive(redrive_id: RedriveId, state: Shared) -> RedriveView:
    """Cancel a redrive permanently. Letters that were sent stay in their lanes."""
    await bulk_control.cancel(state.ledger, redrive_id, kinds=[KIND])
    return await REDRIVES.view_operation(state, redrive_id)


async def count_redrive(state: ApiState, order: NewRedrive) -> RedrivePlan:
    """Return what the redrive would do. Raises Problem (no broker), InvalidRedrive, InvalidRequest,
    UnknownGroup, ScanBusy, BrokerUnavailable, LedgerUnavailable."""
    spec = await _make_spec(state, order)
    wait = wait_at_most(SCAN_TIMEOUT)
    counts = await plan_redrive(state.settings, state.registry, state.ledger, spec, wait=wait)
    return view_redrive_plan(spec, counts)


async def record_redrive(state: ApiState, request: Request, order: NewRedrive) -> BulkOperation:
    """Start the redrive. Raises as `count_redrive` does, and RedriveConflict."""
    spec = await _make_spec(state, order)
    return await redrive_spec.start_redrive(
        state.ledger, spec, created_by=starter_of(request), reason=order.reason, rate=order.rate
    )


async def _make_spec(state: ApiState, order: NewRedrive) -> RedriveSpec:
    state.require_broker()
    spec = RedriveSpec(
        order.filter,
        order.change.to_change(),
        limit=order.limit,
        canary=order.canary,
        halt_on=order.halt_on,
        from_ledger=order.from_ledger,
        remote=True,
    )
    spec.check_remote(state.registry)
    return replace(spec, which=await with_full_ids(state.ledger, spec.which))


REDRIVES.add_to(router)
