"""Dead letters by cause, one of them, and what is done to them: redrives and purges."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Depends, Form, Path, Query, Request, Response
from pydantic import BeforeValidator, Field

from switchyard.api.dashboard.pages import (
    PRESETS,
    DashboardPage,
    DashboardView,
    Pages,
    allows,
    done,
)
from switchyard.api.dashboard.sessions import PATH
from switchyard.api.engine.dead import count_redrive, record_redrive
from switchyard.api.http.problems import Problem
from switchyard.api.http.routing import Cursor
from switchyard.api.middleware.access import may, starter_of
from switchyard.api.models.dead import NewRedrive
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.dead import (
    parse_message,
    shown_body,
    view_group,
    view_letter_details,
    view_purge,
    view_redrive_outcomes,
)
from switchyard.broker import patterns
from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.lanes import LANES
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.dead import purge
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.records.bulk import (
    ACTIVE,
    MAX_RATE,
    MIN_RATE,
    RESUMABLE,
    BulkOperation,
)
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.results import DeadGroup
from switchyard.services.engine.records.states import DeadLetterState
from switchyard.services.engine.redrive.spec import KIND, RedriveSpec, resume_redrive

HERE = f"{PATH}/dead"
router = Pages(DashboardView("dead", "Dead letters", HERE))

MAX_GROUPS = 50
PAGE_SIZE = 50
MAX_OPERATIONS = 8
MAX_OPERATIONS_READ = 200
"""Latest operations among which those of one group are looked for."""
MAX_TEXT_LENGTH = 100_000
"""Characters of a message, its headers or a traceback that a page shows."""
MAX_PARSED_BYTES = 256 * 1024
"""Bytes of a message up to which it is indented as JSON."""


def _none_if_empty(value: Any) -> Any:
    """Read a field of a form that was left empty as not given."""
    return None if value == "" else value


NameInQuery = Annotated[
    Annotated[str, Field(pattern=patterns.NAME)] | None, BeforeValidator(_none_if_empty), Query()
]
GroupId = Annotated[str, Path(pattern=patterns.GROUP_ID)]
LetterId = Annotated[str, Path(pattern=patterns.JOB_ID)]
OperationId = Annotated[str, Path(pattern=patterns.REDRIVE_ID)]
Name = Annotated[str | None, Form(pattern=patterns.NAME)]
Why = Annotated[str | None, Form(max_length=1000, pattern=patterns.PLAIN)]
ADMIN = [allows(Scope.ADMIN)]


async def _chosen(
    group: Annotated[str | None, Form(pattern=patterns.GROUP_ID)] = None,
    letter: Annotated[str | None, Form(pattern=patterns.JOB_ID)] = None,
    reason: Name = None,
    job_type: Name = None,
    lane: Name = None,
) -> LetterFilter:
    """Return the filter for the letters that a form is about."""
    ids = frozenset() if letter is None else frozenset({letter})
    return LetterFilter(ids=ids, group=group, reason=reason, job_type=job_type, lane=lane)


ChosenLetters = Annotated[LetterFilter, Depends(_chosen)]


async def _build_redrive(
    which: ChosenLetters,
    limit: Annotated[int | None, Form(ge=1, le=2_000_000_000)] = None,
    canary: Annotated[int | None, Form(ge=1, le=100_000)] = None,
    rate: Annotated[float | None, Form(ge=MIN_RATE, le=MAX_RATE)] = None,
    halt_percent: Annotated[float | None, Form(gt=0, le=100)] = None,
    from_ledger: Annotated[bool, Form()] = False,
    why: Why = None,
) -> NewRedrive:
    """Return the redrive that a form asks for."""
    return NewRedrive(
        filter=which,
        all=which.is_empty,
        limit=limit,
        canary=canary,
        rate=rate,
        halt_on=None if halt_percent is None else halt_percent / 100,
        from_ledger=from_ledger,
        reason=why,
    )


RequestedRedrive = Annotated[NewRedrive, Depends(_build_redrive)]


@router.get("")
async def show_dead(
    request: Request,
    state: Shared,
    reason: NameInQuery = None,
    job_type: NameInQuery = None,
    lane: NameInQuery = None,
) -> DashboardPage:
    """Show the causes of dead letters, those with most letters first, and what was done about
    them."""
    chosen = {"reason": reason, "job_type": job_type, "lane": lane}
    letter_filter = DeadLetterFilter(
        reason=reason, job_type=job_type, lane=lane, state=DeadLetterState.WAITING
    )
    groups = await state.ledger.dead_letters.dead_groups(
        letter_filter=letter_filter, limit=MAX_GROUPS
    )
    context = {
        "groups": [_group_context(each) for each in groups],
        "is_capped": len(groups) == MAX_GROUPS,
        "waiting": await state.ledger.dead_letters.count_dead(letter_filter),
        "chosen": {name: value for name, value in chosen.items() if value is not None},
        "reasons": [str(each) for each in Reason],
        "lanes": [each.name for each in LANES],
        "job_types": sorted(each.name for each in state.registry),
        "presets": PRESETS,
        **await _operations(request, state),
    }
    return DashboardPage("dead.html", context, title="Dead letters")


@router.get("/groups/{group_id}")
async def show_group(
    request: Request,
    state: Shared,
    group_id: GroupId,
    letters: Literal["waiting", "all"] = "waiting",
    cursor: Cursor = None,
) -> DashboardPage:
    """Show the letters of one cause."""
    reads = state.ledger.dead_letters
    waiting = DeadLetterFilter(group=group_id, state=DeadLetterState.WAITING)
    anything = DeadLetterFilter(group=group_id)
    groups = await reads.dead_groups(letter_filter=waiting, limit=1)
    found = groups or await reads.dead_groups(letter_filter=anything, limit=1)
    if not found:
        raise Problem("not-found", f"no dead letter is of group {group_id}")
    page = await reads.list_dead(
        waiting if letters == "waiting" else anything, limit=PAGE_SIZE, cursor=cursor
    )
    older = f"?letters={letters}&cursor={page.next_cursor}" if page.next_cursor else None
    context = {
        "group": _group_context(found[0]),
        "waiting": groups[0].count if groups else 0,
        "which": letters,
        "letters": page.items,
        "older": older,
        "newer": f"?letters={letters}" if cursor else None,
        "presets": PRESETS,
        **await _operations(request, state, group=found[0].fingerprint),
    }
    return DashboardPage("dead_group.html", context, title="Dead letters of one cause")


@router.get("/letters/{letter_id}", dependencies=ADMIN)
async def show_letter(state: Shared, letter_id: LetterId) -> DashboardPage:
    """Show one letter with all that it carries."""
    letter = await state.ledger.dead_letters.require_dead(letter_id)
    job = None if letter.job_id is None else await state.ledger.job_reads.get(letter.id)
    edits = await state.ledger.redrives.letter_edits(letter_id=letter.id)
    context = {
        "letter": view_letter_details(state.registry, letter, job, edits),
        "has_job": job is not None,
        "message": _indent_json(shown_body(state.registry, letter.body)),
        "size": len(letter.body),
        "headers": _cut(json.dumps(letter.headers, indent=2, ensure_ascii=False, default=str)),
        "traceback": _cut(letter.traceback or ""),
    }
    return DashboardPage("dead_letter.html", context, title=f"Dead letter {letter.id}")


@router.post("/redrives/plan", dependencies=ADMIN)
async def show_plan(request: Request, state: Shared, order: RequestedRedrive) -> DashboardPage:
    """Count what a redrive would send where, without sending anything."""
    plan = await count_redrive(state, order)
    context = {
        "plan": plan,
        "order": order,
        "what": order.filter.describe(),
        "back": _page_of(order.filter),
        "fields": _fields(order),
    }
    return DashboardPage("dead_plan.html", context, title="Redrive?")


@router.post("/redrives", dependencies=ADMIN)
async def start_redrive(request: Request, state: Shared, order: RequestedRedrive) -> Response:
    """Start the redrive; a scheduler runs it."""
    operation = await record_redrive(state, request, order)
    return done(f"{HERE}/redrives/{operation.id}", f"{operation.id} has begun.")


@router.get("/redrives/{redrive_id}", dependencies=ADMIN)
async def show_redrive(state: Shared, redrive_id: OperationId) -> DashboardPage:
    """Show how far a redrive is, and what has become of its letters."""
    operation = await bulk_control.require_bulk(state.ledger, redrive_id, KIND)
    operation = shown_operation(state.registry, operation)
    spec = RedriveSpec.from_json(operation.spec)
    context = {
        "redrive": await view_redrive_outcomes(state.ledger, operation),
        "order": spec,
        "may_pause": operation.state in ACTIVE,
        "may_resume": operation.state in RESUMABLE,
        "back": _page_of(spec.which),
    }
    return DashboardPage("dead_redrive.html", context, title=operation.id)


@router.post("/redrives/{redrive_id}/{action}", dependencies=ADMIN)
async def control_redrive(
    state: Shared, redrive_id: OperationId, action: Literal["halt", "resume", "cancel"]
) -> Response:
    """Halt a redrive until somebody resumes it, resume it, or end it for good."""
    if action == "halt":
        operation = await bulk_control.pause(state.ledger, redrive_id, kinds=[KIND])
    elif action == "resume":
        operation = await resume_redrive(state.ledger, redrive_id)
    else:
        operation = await bulk_control.cancel(state.ledger, redrive_id, kinds=[KIND])
    return done(f"{HERE}/redrives/{operation.id}", f"{operation.id} is {operation.state}.")


@router.post("/purges", dependencies=ADMIN)
async def start_purge(
    request: Request, state: Shared, which: ChosenLetters, why: Why = None
) -> Response:
    """Throw letters away; a scheduler does it. Their record stays."""
    if which.is_empty:
        raise Problem("invalid", "name a group or a letter: this form throws no others away")
    state.require_broker()
    operation = await purge.start_purge(
        state.ledger, which, created_by=starter_of(request), reason=why
    )
    return done(HERE, f"{operation.id} has begun: it is listed below.")


async def _operations(
    request: Request, state: ApiState, *, group: str | None = None
) -> dict[str, Any]:
    """Return the latest redrives and purges, only of `group` if it is given. They name who started
    them: without the scope `admin`, return none."""
    if not may(request, Scope.ADMIN):
        return {"redrives": [], "purges": []}

    async def latest(kind: str) -> list[BulkOperation]:
        read = MAX_OPERATIONS if group is None else MAX_OPERATIONS_READ
        page = await state.ledger.bulk.list_bulk(kind, limit=read)
        of_group = [
            each
            for each in page.items
            if group is None or each.spec["filter"].get("group") == group
        ]
        return of_group[:MAX_OPERATIONS]

    return {
        "redrives": [
            await view_redrive_outcomes(state.ledger, shown_operation(state.registry, each))
            for each in await latest(KIND)
        ],
        "purges": [view_purge(each) for each in await latest(purge.KIND)],
    }


def _group_context(group: DeadGroup) -> dict[str, Any]:
    """Return what a page shows of a group, the letters of one cause; some is of the latest one."""
    view = view_group(group)
    return {
        "id": group.fingerprint,
        "count": group.count,
        "first_at": group.first_at,
        "last_at": group.last_at,
        "trend": group.trend,
        "today": sum(group.trend),
        "reason": view.reason,
        "error": view.error_type,
        "job_type": view.job_type,
        "lane": group.sample.lane,
        "message": _cut(group.sample.error_message or "", 2_000),
        "location": view.location,
        "traceback": _cut(group.sample.traceback or "", 20_000),
        "letter": group.sample.id,
    }


def _page_of(which: LetterFilter) -> str:
    """Return the address of the page with the letters that fit a filter."""
    if which.group is not None:
        return f"{HERE}/groups/{which.group}"
    return f"{HERE}/letters/{next(iter(which.ids))}" if len(which.ids) == 1 else HERE


def _fields(order: NewRedrive) -> dict[str, Any]:
    """Return the fields of the form that asks for this redrive."""
    which = asdict(order.filter)
    fields = {name: which[name] for name in ("group", "reason", "job_type", "lane")}
    fields |= {
        "letter": next(iter(order.filter.ids), None),
        "limit": order.limit,
        "canary": order.canary,
        "rate": order.rate,
        "halt_percent": None if order.halt_on is None else order.halt_on * 100,
        "from_ledger": "true" if order.from_ledger else None,
        "why": order.reason,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _indent_json(body: bytes) -> str:
    """Indent a message that is JSON; return any other as it is."""
    message = parse_message(body) if len(body) <= MAX_PARSED_BYTES else None
    if message is not None:
        return _cut(json.dumps(message, indent=2, ensure_ascii=False))
    return _cut(body[: 4 * MAX_TEXT_LENGTH].decode("utf-8", "replace"))


def _cut(text: str, length: int = MAX_TEXT_LENGTH) -> str:
    return text if len(text) <= length else f"{text[:length]}\n… the rest is not shown"
