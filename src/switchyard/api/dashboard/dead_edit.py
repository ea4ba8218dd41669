"""Edit one dead letter in a form with the fields of its job type, show the difference, redrive
it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Form, Path, Request, Response

from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages, done
from switchyard.api.dashboard.schema_forms import PREFIX, fields_of, parsed_json, read_fields
from switchyard.api.dashboard.sessions import PATH, form_fields
from switchyard.api.engine.dead import record_redrive
from switchyard.api.http.problems import Problem
from switchyard.api.models.dead import LetterChange, NewRedrive
from switchyard.api.state import ApiState, Shared
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.dead.changes import (
    InvalidRedrive,
    make_copy,
    merge_patch,
    payload_difference,
    why_no_job,
)
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.stored import StoredLetter, stored_letter
from switchyard.services.engine.jobs.registered_types import learn_missing_type
from switchyard.services.engine.jobs.registry import UnknownJobType
from switchyard.services.engine.records.results import DeadLetter
from switchyard.services.engine.records.states import DeadLetterState

HERE = f"{PATH}/dead/letters"
# Reached from a letter's page: it needs one, so the menu has no entry for it.
router = Pages(DashboardView("edit", "Edit", HERE, Scope.ADMIN, is_shown=lambda _: False))

MAX_EDITED_BYTES = 256 * 1024
"""Bytes of the largest message that can be edited here; `jobctl dead edit` takes larger ones."""
MAX_DIFFERENCE = 2_000
"""Lines of a difference that are shown."""
LetterId = Annotated[str, Path(pattern=patterns.JOB_ID)]


@router.get("/{letter_id}/edit")
async def show_form(state: Shared, letter_id: LetterId) -> DashboardPage:
    """Show the payload of a letter as a form."""
    letter, stored, before = await _letter(state, letter_id)
    return await _form(state, letter, stored, before)


@router.post("/{letter_id}/edit")
async def show_difference(request: Request, state: Shared, letter_id: LetterId) -> DashboardPage:
    """Show what was changed, and whether the job type accepts it. Nothing is sent."""
    letter, stored, before = await _letter(state, letter_id)
    form = await form_fields(request)
    if "again" in form:
        return await _form(state, letter, stored, before, values=form)
    try:
        after = read_fields(_schema(state, stored), before, form)
        make_copy(stored, _change_of(before, after).to_change(), state.registry, remote=True)
    except (Problem, InvalidRedrive) as error:
        reason = str(error.detail if isinstance(error, Problem) else error)
        return await _form(state, letter, stored, before, values=form, trouble=reason)
    lines = _diff_lines(state, stored, after)
    context = {
        "letter": letter,
        "lines": lines[2 : MAX_DIFFERENCE + 2],
        "more": max(0, len(lines) - MAX_DIFFERENCE - 2),
        "payload": json.dumps(after),
        "sent_fields": {name: text for name, text in form.items() if name.startswith(PREFIX)},
    }
    return DashboardPage("dead_difference.html", context, title="Redrive it with these changes?")


@router.post("/{letter_id}/retry")
async def retry(
    request: Request,
    state: Shared,
    letter_id: LetterId,
    payload: Annotated[str, Form(max_length=4 * MAX_EDITED_BYTES)],
    why: Annotated[str, Form(max_length=1000, pattern=patterns.PLAIN)] = "",
) -> Response:
    """Redrive the letter with another payload; a scheduler sends it."""
    letter, stored, before = await _letter(state, letter_id)
    after = parsed_json(payload, "the payload")
    if not isinstance(after, dict):
        raise Problem("invalid", "the payload must be a JSON object")
    change = _change_of(before, after)
    make_copy(stored, change.to_change(), state.registry, remote=True)
    order = NewRedrive(
        filter=LetterFilter(ids=frozenset({letter.id}), job_type=letter.job_type),
        change=change,
        reason=why.strip() or "edited",
    )
    operation = await record_redrive(state, request, order)
    return done(f"{PATH}/dead/redrives/{operation.id}", f"{operation.id} has begun.")


async def _letter(
    state: ApiState, letter_id: str
) -> tuple[DeadLetter, StoredLetter, dict[str, Any]]:
    """Return a letter that can be edited, and its payload as it is shown.

    Raises Problem, UnknownLetter.
    """
    letter = await state.ledger.dead_letters.require_dead(letter_id)
    stored = stored_letter(letter)
    if letter.state != DeadLetterState.WAITING:
        raise Problem("wrong-state", f"letter {letter.id} is {letter.state}")
    if len(letter.body) > MAX_EDITED_BYTES:
        raise Problem("invalid", f"it is too large for a form: `jobctl dead edit {letter.id}`")
    if stored.message is None:
        raise Problem("invalid", why_no_job(stored))
    await learn_missing_type(state.registry, state.ledger, stored.message.job_type)
    shown = state.registry.hide_secrets(stored.message.job_type, stored.message.payload)
    return letter, stored, shown


def _diff_lines(state: ApiState, stored: StoredLetter, after: dict[str, Any]) -> list[str]:
    if (message := stored.message) is None:
        return []
    return payload_difference(message.payload, after, state.registry.secrets_of(message.job_type))


def _schema(state: ApiState, stored: StoredLetter) -> Mapping[str, Any]:
    """Return the schema of the letter's payload; an empty one where nobody knows its type."""
    name = stored.message.job_type if stored.message is not None else ""
    try:
        payload_model = state.registry.get_publishable(name).payload_model
    except UnknownJobType:
        return {}
    return payload_model.model_json_schema()


async def _form(
    state: ApiState,
    letter: DeadLetter,
    stored: StoredLetter,
    before: dict[str, Any],
    *,
    values: Mapping[str, str] | None = None,
    trouble: str = "",
) -> DashboardPage:
    """Show the form; after a refusal with the fields that were sent (`values`) and the reason."""
    context = {
        "letter": letter,
        "fields": fields_of(_schema(state, stored), before, values),
        "trouble": trouble,
    }
    status = 422 if trouble else 200
    return DashboardPage("dead_edit.html", context, title=f"Edit {letter.id}", status=status)


def _change_of(before: dict[str, Any], after: dict[str, Any]) -> LetterChange:
    """Return the change from `before` to `after`: a merge patch if one can express it, so that
    local-only fields stay as they are; else the whole payload."""
    patch = _patch(before, after)
    if json.dumps(merge_patch(before, patch), sort_keys=True) == json.dumps(after, sort_keys=True):
        return LetterChange(merge=patch)
    return LetterChange(payload=after)


def _patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch (RFC 7396)."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        was = before.get(name)
        if isinstance(was, dict) and isinstance(value, dict):
            if inner := _patch(was, value):
                patch[name] = inner
        elif name not in before or json.dumps(was) != json.dumps(value):
            patch[name] = value
    return patch
