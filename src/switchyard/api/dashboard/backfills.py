"""Backfills: show progress and dead jobs of each; pause, limit and end them; start new ones."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlencode

from fastapi import Form, Path, Query, Request, Response
from pydantic import BaseModel, ValidationError

from switchyard.api.dashboard.jobs import pretty
from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages, allows, done
from switchyard.api.dashboard.schema_forms import fields_of, read_fields
from switchyard.api.dashboard.sessions import PATH, form_fields
from switchyard.api.engine import backfills as api
from switchyard.api.http.problems import Problem
from switchyard.api.http.routing import Cursor
from switchyard.api.models.backfills import BackfillLimits, BackfillPlan, Cancellation
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.backfills import view_counted_backfill
from switchyard.broker import patterns
from switchyard.broker.lanes import BACKFILL, LANES
from switchyard.broker.message import describe
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.backfill.sources import Sources
from switchyard.services.engine.backfill.spec import KIND
from switchyard.services.engine.bulk import control
from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.records.bulk import ACTIVE, ENDED, RESUMABLE

M = TypeVar("M", bound=BaseModel)
HERE = f"{PATH}/backfills"
router = Pages(DashboardView("backfills", "Backfills", HERE))

PAGE_SIZE = 20
PUBLISH = [allows(Scope.PUBLISH)]
SHOWN_JOBS = 5
"""Jobs of a preview that are written out."""
PLAN_FIELDS = ("job_type", "lane", "weight", "rate", "max_open", "budget", "reason")
"""Fields of the form that are fields of the plan; the others are options of the source."""
NUMBER_FIELDS = ("weight", "rate", "max_open", "budget")
BackfillId = Annotated[str, Path(pattern=patterns.BACKFILL_ID)]


@router.get("")
async def list_backfills(state: Shared, cursor: Cursor = None) -> DashboardPage:
    """List backfills, newest first, each with the present states of its jobs."""
    page = await state.ledger.bulk.list_bulk(KIND, limit=PAGE_SIZE, cursor=cursor)
    context = {
        "backfills": [
            await view_counted_backfill(state.ledger, shown_operation(state.registry, each))
            for each in page.items
        ],
        "newer": HERE if cursor else None,
        "older": f"{HERE}?cursor={page.next_cursor}" if page.next_cursor else None,
    }
    return DashboardPage("backfills.html", context, title="Backfills")


@router.get("/new", dependencies=PUBLISH)
async def show_form(
    request: Request,
    state: Shared,
    source: Annotated[str, Query(max_length=100, pattern=patterns.PLAIN)] = "",
) -> DashboardPage:
    """Show the form of a new backfill: first the choice of a source, then the source's options."""
    sources = _sources(state)
    schema = sources.get(source).Options.model_json_schema() if source else {}
    option_values = {
        name: request.query_params[name]
        for name in schema.get("properties", {})
        if name in request.query_params
    }
    context = {
        "source": source,
        "sources": [
            (each.name, (each.__doc__ or "").strip().partition("\n")[0]) for each in sources
        ],
        "fields": fields_of(schema, option_values) if schema.get("properties") else [],
        "own_type": sources.get(source).job_type if source else None,
        "lanes": [each.name for each in LANES],
        "lane": BACKFILL.name,
        "types": sorted(each.name for each in state.registry),
        "has_prices": state.settings.llm_prices is not None,
        "currency": state.settings.prices.currency,
    }
    return DashboardPage("backfill_new.html", context, title="New backfill")


@router.post("/inputs", dependencies=PUBLISH, openapi_extra=api.FORM)
async def store_input(request: Request, state: Shared) -> Response:
    """Store a file, and go on with the form for it."""
    stored = await api.store_file(request, state)
    options = {"source": "file", "key": stored.key, "format": stored.format, "name": stored.name}
    query = urlencode({name: value for name, value in options.items() if value})
    return done(f"{HERE}/new?{query}", f"{stored.name or 'The file'} is stored.")


@router.post("/plan", dependencies=PUBLISH)
async def show_plan(request: Request, state: Shared) -> DashboardPage:
    """Show what a backfill would do: nothing is started."""
    plan = await _plan_of(request, state)
    preview = await api.preview(plan, state, request.state.principal)
    context = {
        "plan": plan,
        "preview": preview,
        "shown": [(each.routing_key, pretty(each.payload)) for each in preview.jobs[:SHOWN_JOBS]],
        "encoded": plan.model_dump_json(exclude_unset=True),
    }
    return DashboardPage("backfill_plan.html", context, title="Start a backfill?")


@router.post("", dependencies=PUBLISH)
async def start(
    request: Request, state: Shared, plan: Annotated[str, Form(max_length=1_000_000)]
) -> Response:
    """Start the backfill; a scheduler publishes its jobs."""
    try:
        backfill_plan = BackfillPlan.model_validate_json(plan)
    except ValidationError as error:
        raise Problem("invalid", describe(error)) from error
    started = await api.start(backfill_plan, request, Response(), state, request.state.principal)
    return done(f"{HERE}/{started.id}", f"{started.id} has begun.")


@router.get("/{backfill_id}")
async def show_backfill(backfill_id: BackfillId, state: Shared) -> DashboardPage:
    """Show the progress of a backfill and the states of its jobs."""
    operation = await control.require_bulk(state.ledger, backfill_id, KIND)
    operation = shown_operation(state.registry, operation)
    context = {
        "backfill": await view_counted_backfill(state.ledger, operation),
        "plan": pretty(operation.spec),
        "weight": operation.spec.get("weight", 1.0),
        "may_pause": operation.state in ACTIVE,
        "may_resume": operation.state in RESUMABLE,
        "has_ended": operation.state in ENDED,
    }
    return DashboardPage("backfill.html", context, title=operation.title)


@router.post("/{backfill_id}/limits", dependencies=PUBLISH)
async def set_limits(backfill_id: BackfillId, request: Request, state: Shared) -> Response:
    """Change the limits of a backfill, also while it runs: an empty field removes its limit; an
    empty weight leaves the weight as it is."""
    form = await form_fields(request)
    numbers = {name: _number(form.get(name, ""), name) for name in BackfillLimits.model_fields}
    if numbers["weight"] is None:
        del numbers["weight"]
    limits = _validate(BackfillLimits, numbers)
    await api.set_limits(backfill_id, limits, request, state)
    return done(f"{HERE}/{backfill_id}", "Its limits are changed.")


@router.post("/{backfill_id}/{action}", dependencies=PUBLISH)
async def control_backfill(
    backfill_id: BackfillId, state: Shared, action: Literal["pause", "resume", "cancel", "end"]
) -> Response:
    """Pause, resume or cancel a backfill; `end` also cancels its jobs that have not begun."""
    if action == "pause":
        await control.pause(state.ledger, backfill_id, kinds=[KIND])
        notice = "It is paused: nothing more is published."
    elif action == "resume":
        await control.resume(state.ledger, backfill_id, kinds=[KIND])
        notice = "It goes on."
    else:
        ended = await api.cancel(backfill_id, state, Cancellation(jobs=action == "end"))
        notice = f"It is cancelled, and {ended.cancelled_jobs:,} of its jobs."
    return done(f"{HERE}/{backfill_id}", notice)


async def _plan_of(request: Request, state: ApiState) -> BackfillPlan:
    """Return the plan that a form asks for. Raises Problem (422), InvalidBackfill."""
    form = await form_fields(request)
    source = form.get("source", "")
    schema = _sources(state).get(source).Options.model_json_schema()
    fields: dict[str, Any] = {"source": source, "options": read_fields(schema, {}, form)}
    for name in PLAN_FIELDS:
        if text := form.get(name, "").strip():
            fields[name] = _number(text, name) if name in NUMBER_FIELDS else text
    if text := form.get("payload", "").strip():
        try:
            fields["payload"] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Problem("invalid", f"the payload is no JSON: {error}") from error
    return _validate(BackfillPlan, fields)


def _validate(model: type[M], fields: dict[str, Any]) -> M:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise Problem("invalid", describe(error)) from error


def _number(text: str, name: str) -> float | int | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise Problem("invalid", f"{name} must be a number, not {text[:50]!r}") from error
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _sources(state: ApiState) -> Sources:
    return Sources.load(state.settings.modules)
