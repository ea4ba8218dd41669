"""`/backfills`: bulk jobs that are started, watched, paused, resumed and cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import ValidationError

from switchyard.api.engine.bulk import BulkRoutes
from switchyard.api.http.problems import invalid, responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import PrincipalOf, needs, require_scope, starter_of
from switchyard.api.middleware.uploads import InvalidUpload, UploadForm
from switchyard.api.models.backfills import (
    EXAMPLE_ID,
    BackfillInput,
    BackfillLimits,
    BackfillPage,
    BackfillPlan,
    BackfillPreview,
    BackfillView,
    Cancellation,
    CancelledBackfill,
)
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.backfills import view_counted_backfill, view_preview
from switchyard.broker import patterns
from switchyard.broker.message import describe
from switchyard.services.common.files.storage_quota import Quota
from switchyard.services.engine.access.api_keys import Principal, Scope
from switchyard.services.engine.backfill.files import format_of, store_input
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.backfill.sources import InvalidBackfill
from switchyard.services.engine.backfill.spec import KIND, BackfillSpec
from switchyard.services.engine.backfill.starting import Backfills
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.ledger.short_ids import IdTable
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.engine.records.bulk import BulkState

router = Routes(prefix="/backfills", tags=["backfills"])

SOURCE_TIMEOUT = 5.0
"""Seconds that a request waits for a turn to ask a source."""

BACKFILLS = BulkRoutes(
    noun=KIND,
    kinds=(KIND,),
    path="",
    id_pattern=patterns.BACKFILL_ID,
    view=BackfillView,
    view_of=view_counted_backfill,
    page=BackfillPage,
    resume=partial(bulk_control.resume, kinds=[KIND]),
    reads=[needs(Scope.READ)],
    changes=[needs(Scope.PUBLISH)],
)
BackfillId = Annotated[
    str, Path(pattern=patterns.BACKFILL_ID, description="The backfill's id.", examples=[EXAMPLE_ID])
]
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


@router.post(
    "",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    responses={
        202: {
            "description": "Recorded; a scheduler publishes its jobs.",
            "headers": {"Location": {"description": "The backfill.", "schema": {"type": "string"}}},
        },
        **responses("invalid", "no-broker", "source-away", "ledger-away"),
    },
)
async def start(
    body: BackfillPlan, request: Request, response: Response, state: Shared, principal: PrincipalOf
) -> BackfillView:
    """Start a backfill: one job for each item of a source. The jobs of its first items are
    validated before it starts. The source `documents` also needs the scope `read`.
    """
    state.require_broker()
    operation = await _backfills_for(state, body, principal).start(
        _make_spec(body),
        created_by=starter_of(request),
        reason=body.reason,
        rate=body.rate,
        max_open=body.max_open,
        budget=body.budget,
    )
    response.headers["Location"] = f"/backfills/{operation.id}"
    return await view_counted_backfill(state.ledger, shown_operation(state.registry, operation))


@router.post(
    "/preview",
    dependencies=[needs(Scope.PUBLISH)],
    responses=responses("invalid", "source-away", "ledger-away"),
)
async def preview(body: BackfillPlan, state: Shared, principal: PrincipalOf) -> BackfillPreview:
    """Preview a backfill: the number of items, the first jobs and the estimated cost. Nothing is
    started. The source `documents` also needs the scope `read`.
    """
    return view_preview(
        state.registry, await _backfills_for(state, body, principal).preview(_make_spec(body))
    )


@router.post(
    "/inputs",
    status_code=201,
    dependencies=[needs(Scope.PUBLISH)],
    openapi_extra=FORM,
    responses=responses("invalid", "too-large", "storage-full"),
)
async def store_file(
    request: Request,
    state: Shared,
    file_format: Annotated[
        FileFormat | None,
        Query(alias="format", description="Format of the file. Default: from its name."),
    ] = None,
) -> BackfillInput:
    """Store a file for a backfill from the source `file`."""
    try:
        quota = Quota(state.storage, state.settings.storage_quota)
        await quota.check()
        form = UploadForm(request)
        parts = quota.metered(await _begin_upload(form))
        chosen_format = file_format or format_of(form.filename or "")
        key = await store_input(state.storage, parts, chosen_format, lambda: form.charset)
        try:
            await form.rest()
        except BaseException:
            await state.storage.delete_async(key)
            raise
    except InvalidUpload as error:
        raise invalid(RequestFieldError((), str(error.text))) from error
    return BackfillInput(key=key, format=chosen_format, name=form.filename)


@router.patch(
    "/{backfill_id}",
    dependencies=[needs(Scope.PUBLISH)],
    responses=responses("invalid", "not-found", "wrong-state", "ledger-away"),
)
async def set_limits(
    backfill_id: BackfillId, body: BackfillLimits, request: Request, state: Shared
) -> BackfillView:
    """Change the limits of a backfill, also while it runs."""
    changes = body.model_dump(exclude_unset=True)
    return await BACKFILLS.set_limits(state, request, backfill_id, changes)


@router.post(
    "/{backfill_id}/cancel",
    dependencies=[needs(Scope.PUBLISH)],
    responses=responses("invalid", "not-found", "wrong-state", "ledger-away"),
)
async def cancel(
    backfill_id: BackfillId, state: Shared, body: Cancellation | None = None
) -> CancelledBackfill:
    """Cancel a backfill permanently; with `jobs` also its published jobs that have not started."""
    cancellation = body or Cancellation()
    backfill_id = await state.ledger.short_ids.full_id(IdTable.OPERATIONS, backfill_id)
    number = await _backfills(state).cancel(backfill_id, jobs=cancellation.jobs)
    return CancelledBackfill(id=backfill_id, state=BulkState.CANCELLED, cancelled_jobs=number)


def _backfills(state: ApiState) -> Backfills:
    return Backfills.from_settings(
        state.settings, state.registry, state.ledger, max_wait=SOURCE_TIMEOUT
    )


def _backfills_for(state: ApiState, body: BackfillPlan, principal: Principal) -> Backfills:
    """Return the service that starts backfills. Raises Problem (403) where the key may not read the
    source's items; InvalidBackfill."""
    backfills = _backfills(state)
    if backfills.sources.get(body.source).shows_records:
        require_scope(principal, Scope.READ)
    return backfills


def _make_spec(plan: BackfillPlan) -> BackfillSpec:
    """Make the spec of a plan. Raises InvalidBackfill where fields do not fit together."""
    fields = plan.model_dump(exclude={"rate", "max_open", "budget", "reason"})
    try:
        # remote: the plan comes from outside, so that some options are refused.
        return BackfillSpec.model_validate({**fields, "remote": True})
    except ValidationError as error:
        raise InvalidBackfill(describe(error)) from error


async def _begin_upload(form: UploadForm) -> AsyncIterator[bytes]:
    """Read up to the first part of the form's file, so that the file's name is known; return all
    parts."""
    parts = form.file()
    first_part = await anext(parts, b"")

    async def all_parts() -> AsyncIterator[bytes]:
        yield first_part
        async for part in parts:
            yield part

    return all_parts()


BACKFILLS.add_to(router)
