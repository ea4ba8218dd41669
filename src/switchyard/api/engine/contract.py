"""`/schemas`, `/asyncapi.json` and `/problems`: the service's contract, described by itself."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Path

from switchyard.api.http.problems import (
    Problem,
    responses,
)
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.problems import KINDS, TYPE_BASE, Kind
from switchyard.api.models.service import JobTypes, JobTypeView, ProblemKind, ProblemKinds
from switchyard.api.state import Shared
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.jobs.registry import JobType, Registry
from switchyard.services.engine.publishing.asyncapi import asyncapi, payload_schema

router = Routes(tags=["contract"])


@router.get("/schemas", dependencies=[needs(Scope.READ, Scope.PUBLISH)])
async def list_schemas(state: Shared) -> JobTypes:
    """List the job types with the JSON Schemas of their payloads."""
    return await asyncio.to_thread(_view_types, state.registry)


@router.get(
    "/schemas/{job_type}",
    dependencies=[needs(Scope.READ, Scope.PUBLISH)],
    responses=responses("not-found"),
)
async def show_schema(
    job_type: Annotated[str, Path(pattern=patterns.NAME)], state: Shared
) -> dict[str, Any]:
    """Get the JSON Schema of the payload of a job type."""
    return payload_schema(state.registry.get_publishable(job_type))


@router.get("/asyncapi.json", dependencies=[needs(Scope.READ, Scope.PUBLISH)])
async def show_asyncapi(state: Shared) -> dict[str, Any]:
    """Get the AsyncAPI 3 document of the exchange, for clients that publish over AMQP."""
    return await asyncio.to_thread(asyncapi, state.registry)


@router.get("/problems")
async def list_problems() -> ProblemKinds:
    """List the problem types (RFC 9457) of this API. Needs no key."""
    return ProblemKinds(problems=[_view_kind(kind) for kind in KINDS.values()])


@router.get("/problems/{name}", responses=responses("not-found"))
async def show_problem(name: Annotated[str, Path(pattern=patterns.PROBLEM_NAME)]) -> ProblemKind:
    """Show a problem type: the target of the `type` of a problem. Needs no key."""
    if name not in KINDS:
        raise Problem("not-found", f"there is no problem {name}")
    return _view_kind(KINDS[name])


def _view_kind(kind: Kind) -> ProblemKind:
    return ProblemKind(type=TYPE_BASE + kind.name, status=kind.status.value, title=kind.title)


def _view_types(registry: Registry) -> JobTypes:
    """Describe all types: in a thread, as it takes a tenth of a second."""
    return JobTypes(job_types=[_view_type(job_type) for job_type in registry.publishable_types])


def _view_type(job_type: JobType) -> JobTypeView:
    return JobTypeView.from_record(
        job_type,
        job_type=job_type.name,
        routing_keys=[route.routing_key for route in job_type.routes],
        payload=payload_schema(job_type),
    )
