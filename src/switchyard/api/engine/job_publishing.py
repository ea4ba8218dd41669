"""Shared by all endpoints that publish jobs: headers, refusals, idempotency keys."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Response

from switchyard.api.http.problems import Problem, lane_full
from switchyard.api.state import BrokerSide, Shared
from switchyard.broker import patterns
from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import queue_name
from switchyard.services.engine.jobs.registry import InvalidPayload, UnknownJobType
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.publishing.requests import (
    differs,
    invalid_request_from,
)
from switchyard.services.engine.records.requests import (
    NewJob,
)
from switchyard.services.engine.records.states import Pressure
from switchyard.services.engine.records.states import State as JobState

ACCEPTED_HEADERS: dict[str, Any] = {
    "Location": {"description": "The job.", "schema": {"type": "string"}},
    "X-Lane-Pressure": {
        "description": "How full the job's queue is: publish less when it is slow.",
        "schema": {"type": "string", "enum": [each.value for each in Pressure]},
    },
    "Idempotency-Replayed": {
        "description": "`true` if the key was already used: no new job was made.",
        "schema": {"type": "string"},
    },
}
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=patterns.NO_SPACE,
        description="Makes a repeated request safe: with the same key and content it makes nothing "
        "new, and is answered with what the first request made.",
    ),
]


async def set_pressure_header(
    broker: BrokerSide, job: NewJob, accepted: Published, response: Response
) -> Pressure | None:
    """Set the header that tells how full the queue of a published job is, and return the pressure;
    None where it is not known."""
    pressure = accepted.pressure
    if pressure is None and accepted.state is JobState.QUEUED:
        depth = await broker.pressure.get_soon(queue_name(job.lane, job.worker))
        pressure = None if depth is None else depth.pressure
    if pressure is not None:
        response.headers["X-Lane-Pressure"] = pressure
    return pressure


async def prepare_job(broker: BrokerSide, request: JobRequest, *, by_routing_key: bool) -> NewJob:
    """Prepare the job of a request. Raises InvalidRequest."""
    try:
        return await broker.jobs.learn_and_prepare(request)
    except (InvalidJob, InvalidPayload, UnknownJobType) as error:
        raise invalid_request_from(error, by_routing_key=by_routing_key) from error


async def publish_job(broker: BrokerSide, job: NewJob) -> Published:
    """Record the job and publish it, or only record it if it is to be published later. Raises
    Problem."""
    try:
        return await broker.jobs.publish_one(job)
    except LaneFull as error:
        raise lane_full(error, job_id=job.message.job_id) from error


async def require_same_request(
    state: Shared, request: JobRequest, published: Published, *, expires_in: float | None = None
) -> None:
    """Raise Problem where the idempotency key belongs to a job of a different request."""
    record = await state.ledger.job_reads.get(published.job_id)
    if record is None:
        return
    field = differs(request, record, expires_in=expires_in)
    if field is None:
        # The address of the notice stands in the job that is joined to this one, which sends it.
        notice = (
            None if record.join_id is None else await state.ledger.job_reads.get(record.join_id)
        )
        first_url = None if notice is None else notice.payload.get("url")
        field = None if first_url == request.notify_url else "notify_url"
    if field is not None:
        raise Problem(
            "idempotency-conflict",
            f"the key belongs to job {published.job_id}, which has another {field}",
            job_id=published.job_id,
        )
