"""Publish a new job by a form made from the schema of its type; the form is empty, or filled with
the values of another job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Query, Request, Response

from switchyard.api.dashboard import jobs
from switchyard.api.dashboard.jobs import JOBS_PATH
from switchyard.api.dashboard.pages import DashboardPage, Pages, allows, done
from switchyard.api.dashboard.schema_forms import PREFIX, fields_of, read_fields
from switchyard.api.dashboard.sessions import form_fields
from switchyard.api.engine.job_publishing import prepare_job, publish_job
from switchyard.api.http.problems import Problem
from switchyard.api.middleware.access import may, source_of
from switchyard.api.state import ApiState, Shared
from switchyard.broker import patterns
from switchyard.broker.lanes import LANES
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.common.errors import InvalidInput
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.jobs.registered_types import learn_missing_type
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.jobs.secret_fields import hide_secrets, reveal_secrets
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.requests import parse_tag
from switchyard.services.engine.records.results import JobRecord

router = Pages(jobs.router.view)
PUBLISH = [allows(Scope.PUBLISH)]
LikeJob = Annotated[str, Query(pattern=patterns.JOB_ID_OR_NONE)]
OWN_FIELDS = ("lane", "priority", "tags")
"""Fields of the form besides those of the payload."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The type of a new job, and the job whose values fill its form."""

    job_type: JobType
    like: JobRecord | None
    keeps_secrets: bool = False
    """Whether the user may use that job's secrets in another job, which may send them elsewhere."""

    @property
    def before(self) -> Mapping[str, Any]:
        """The payload of that job; empty without such a job."""
        return {} if self.like is None else self.like.payload

    @property
    def shown(self) -> Mapping[str, Any]:
        """The payload of that job as people may see it."""
        shown: Mapping[str, Any] = hide_secrets(self.before, self.job_type.secrets)
        return shown

    def payload(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Return the payload that the form asks for. A secret that was left as it is shown is that
        of the other job, if the user may use it. Raises Problem."""
        schema = self.job_type.payload_model.model_json_schema()
        values = read_fields(schema, self.shown, form)
        before = self.before if self.keeps_secrets else {}
        payload: dict[str, Any] = reveal_secrets(values, self.job_type.secrets, before)
        return payload


@router.get("/new", dependencies=PUBLISH)
async def show_form(
    state: Shared,
    name: Annotated[str, Query(alias="type", max_length=200)] = "",
    like: LikeJob = "",
) -> DashboardPage:
    """Show the form of a new job; first the choice of its type."""
    if not name.strip() and not like:
        types = [each.name for each in state.registry.publishable_types]
        return DashboardPage("new_job_type.html", {"types": types}, title="New job")
    return _form(await _load_wanted(state, name, like))


@router.post("/new", dependencies=PUBLISH)
async def publish(
    request: Request,
    state: Shared,
    name: Annotated[str, Query(alias="type", max_length=200)] = "",
    like: LikeJob = "",
) -> Response:
    """Publish the job; if it is refused, show the form again with the reason."""
    wanted = replace(await _load_wanted(state, name, like), keeps_secrets=may(request, Scope.ADMIN))
    form = await form_fields(request)
    broker = state.require_broker()
    try:
        order = _request(wanted, form, source=source_of(request, None))
        job = await prepare_job(broker, order, by_routing_key=True)
    except (Problem, InvalidInput, ValueError) as error:
        reason = str(error.detail if isinstance(error, Problem) else error)
        return _form(wanted, values=form, trouble=reason)
    accepted = await publish_job(broker, job)
    return done(f"{JOBS_PATH}/{accepted.job_id}", "Published.")


def _request(wanted: Wanted, form: Mapping[str, str], *, source: str) -> JobRequest:
    """Make the request for the job from the form. Raises Problem, ValueError."""
    priority = form.get("priority", "").strip()
    if priority and not priority.isdecimal():
        raise ValueError(f"the priority must be a number from 0 to {MAX_PRIORITY}")
    return JobRequest(
        f"{form.get('lane', '')}.{wanted.job_type.name}",
        wanted.payload(form),
        priority=int(priority) if priority else None,
        source=source,
        tags=dict(parse_tag(each) for each in form.get("tags", "").split()),
    )


async def _load_wanted(state: ApiState, name: str, like: str) -> Wanted:
    """Return the type of a new job, and the job `like`. Raises UnknownJobType, UnknownJob."""
    record = await state.ledger.job_reads.require(like) if like else None
    name = record.job_type if record is not None else name.strip()
    await learn_missing_type(state.registry, state.ledger, name)
    return Wanted(state.registry.get_publishable(name), record)


def _form(
    wanted: Wanted, *, values: Mapping[str, str] | None = None, trouble: str = ""
) -> DashboardPage:
    """Show the form; after a refusal with the values that were sent and the reason."""
    job_type, like = wanted.job_type, wanted.like
    lanes = [each.name for each in LANES if each.name in job_type.lanes]
    own_values = {"lane": lanes[0], "priority": "", "tags": ""}
    if like is not None:
        tags = " ".join(f"{name}={value}" for name, value in like.tags.items())
        own_values = {"lane": like.lane, "priority": str(like.priority), "tags": tags}
    if values is not None:
        own_values |= {name: values.get(name, "") for name in OWN_FIELDS}
    schema = job_type.payload_model.model_json_schema()
    fields = {name: text for name, text in (values or {}).items() if name.startswith(PREFIX)}
    context = {
        "type": job_type.name,
        "about": str(schema.get("description", ""))[:500],
        "like": like,
        "lanes": lanes,
        "given": own_values,
        "max_priority": MAX_PRIORITY,
        "fields": fields_of(schema, wanted.shown, None if values is None else fields),
        "trouble": trouble,
    }
    status = 422 if trouble else 200
    return DashboardPage("new_job.html", context, title=f"New {job_type.name}", status=status)
