"""`/admin/dead/groups` and `/admin/dead/redrives`: dead letters by cause, and back again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from switchyard.api.entry.access import needs
from switchyard.api.http.answers import JSONAnswer
from switchyard.api.http.problems import responses
from switchyard.api.models import jobs as models
from switchyard.api.models.dead import (
    EXAMPLE_ID,
    REDRIVE_ID,
    DeadGroupList,
    DeadGroupView,
    NewRedrive,
    RedrivePage,
    RedrivePlan,
    RedriveRate,
    RedriveView,
)
from switchyard.api.routes.redrive_views import plan_view, redrive_view, spec_of
from switchyard.api.state import ApiState, Shared
from switchyard.services.access.api_keys import Scope
from switchyard.services.bulk import control as bulk_control
from switchyard.services.dead.scan import wait_at_most
from switchyard.services.records import BulkState, DeadLetterState
from switchyard.services.redrive import spec as redrive_spec
from switchyard.services.redrive.plan import plan_redrive
from switchyard.services.redrive.spec import KIND, settled

router = APIRouter(prefix="/admin/dead", tags=["admin"], dependencies=[needs(Scope.ADMIN)])

PATIENCE = 5.0
"""Seconds that a request waits until nobody else goes through `jobs.dead`."""
RedriveId = Annotated[
    str, Path(pattern=REDRIVE_ID, description="The redrive's id.", examples=[EXAMPLE_ID])
]


@router.get("/groups", responses=responses("invalid", "ledger-away"))
async def dead_groups(
    state: Shared,
    letter_state: Annotated[DeadLetterState, Query(alias="state")] = DeadLetterState.WAITING,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> DeadGroupList:
    """Dead letters by cause, the most frequent first, as the scheduler has indexed them."""
    found = await state.ledger.dead_groups(state=letter_state, limit=limit)
    return DeadGroupList(groups=[DeadGroupView.of(group) for group in found])


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
) -> RedriveView | JSONAnswer:
    """Start a redrive; a running `jobctl scheduler` sees it through."""
    state.require_broker()
    spec = spec_of(body)
    spec.check_remote(state.registry)
    if body.dry_run:
        tally = await plan_redrive(
            state.settings, state.registry, state.ledger, spec, wait=wait_at_most(PATIENCE)
        )
        return JSONAnswer(plan_view(tally).model_dump(mode="json"))
    operation = await redrive_spec.start_redrive(
        state.ledger,
        spec,
        created_by=f"api: {request.state.principal}",
        reason=body.reason,
        rate=body.rate,
    )
    response.headers["Location"] = f"/admin/dead/redrives/{operation.id}"
    return redrive_view(operation)


@router.get("/redrives", responses=responses("invalid", "ledger-away"))
async def list_redrives(
    state: Shared,
    wanted: Annotated[BulkState | None, Query(alias="state")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str | None, Query(pattern=models.CURSOR, max_length=500)] = None,
) -> RedrivePage:
    """Redrives, the newest first."""
    states = [] if wanted is None else [wanted]
    page = await state.ledger.list_bulk(KIND, states=states, limit=limit, cursor=cursor)
    found = [redrive_view(await settled(state.ledger, each)) for each in page.items]
    return RedrivePage(redrives=found, next_cursor=page.next_cursor)


@router.get("/redrives/{redrive_id}", responses=responses("not-found", "ledger-away"))
async def show_redrive(redrive_id: RedriveId, state: Shared) -> RedriveView:
    """How far a redrive is, and what has become of its letters by now."""
    return await _view(state, redrive_id)


@router.patch(
    "/redrives/{redrive_id}",
    responses=responses("invalid", "not-found", "wrong-state", "ledger-away"),
)
async def set_redrive_rate(redrive_id: RedriveId, body: RedriveRate, state: Shared) -> RedriveView:
    """Change its rate, also while it runs."""
    await bulk_control.set_limits(state.ledger, redrive_id, {"rate": body.rate}, kind=KIND)
    return await _view(state, redrive_id)


@router.post(
    "/redrives/{redrive_id}/pause", responses=responses("not-found", "wrong-state", "ledger-away")
)
async def pause_redrive(redrive_id: RedriveId, state: Shared) -> RedriveView:
    """Send nothing more, within a second, until it is resumed."""
    await bulk_control.pause(state.ledger, redrive_id, kind=KIND)
    return await _view(state, redrive_id)


@router.post(
    "/redrives/{redrive_id}/resume", responses=responses("not-found", "wrong-state", "ledger-away")
)
async def resume_redrive(redrive_id: RedriveId, state: Shared) -> RedriveView:
    """Let it go on where it was; after a halt it tries again."""
    await redrive_spec.resume_redrive(state.ledger, redrive_id)
    return await _view(state, redrive_id)


@router.post(
    "/redrives/{redrive_id}/cancel", responses=responses("not-found", "wrong-state", "ledger-away")
)
async def cancel_redrive(redrive_id: RedriveId, state: Shared) -> RedriveView:
    """End it for good. What it has sent stays where it is."""
    await bulk_control.cancel(state.ledger, redrive_id, kind=KIND)
    return await _view(state, redrive_id)


async def _view(state: ApiState, redrive_id: str) -> RedriveView:
    operation = await bulk_control.require_bulk(state.ledger, redrive_id, KIND)
    return redrive_view(await settled(state.ledger, operation))
