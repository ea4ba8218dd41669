"""`/jobs`: publish, list, show, cancel, release."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import StringConstraints

from switchyard.api.dependencies import JobOutputs, JobOutputsOf
from switchyard.api.engine.job_publishing import (
    ACCEPTED_HEADERS,
    IdempotencyKey,
    prepare_job,
    publish_job,
    require_same_request,
    set_pressure_header,
)
from switchyard.api.http.problems import Problem, invalid, responses, try_later
from switchyard.api.http.routing import Cursor, Limit, Routes
from switchyard.api.middleware.access import needs, own_key, source_of
from switchyard.api.models import jobs as models
from switchyard.api.models.base import Moment
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.jobs import (
    view_accepted_job,
    view_job_details,
    view_job_page,
    view_job_progress,
)
from switchyard.broker import patterns
from switchyard.broker.errors import PublishError
from switchyard.broker.lanes import LANES
from switchyard.broker.message import MAX_TAGS
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.ledger.short_ids import IdTable
from switchyard.services.engine.monitoring.job_events import announce
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest, check_notify_url
from switchyard.services.engine.publishing.release_join import release_join
from switchyard.services.engine.publishing.requests import (
    RequestFieldError,
    delay_until,
    invalid_request_from,
    job_id_for,
    routing_key_of,
)
from switchyard.services.engine.records.errors import UnknownJob
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.requests import (
    MAX_PAYLOAD_PATH,
    JobFilter,
    PayloadField,
    parse_tag,
)
from switchyard.services.engine.records.results import (
    AlreadyFinished,
    Cancelled,
    JobRecord,
    NoSuchJob,
)
from switchyard.services.engine.records.states import State as JobState
from switchyard.services.engine.runtime.worker_commands import send_cancel


async def _full_job_id(
    job_id: Annotated[
        str,
        Path(
            pattern=patterns.JOB_ID,
            description="The job's id, or its first characters, at least six.",
            examples=["0b0f6c1e"],
        ),
    ],
    state: Shared,
) -> str:
    return await state.ledger.short_ids.full_id(IdTable.JOBS, job_id)


JobIdInPath = Annotated[str, Depends(_full_job_id)]

router = Routes(prefix="/jobs", tags=["jobs"])

LaneName = Annotated[str | None, Query(pattern=patterns.NAME, examples=[LANES[0].name])]
TypeName = Annotated[str | None, Query(pattern=patterns.NAME)]
PlainText = Annotated[str | None, Query(pattern=patterns.PLAIN, max_length=200)]


@router.post(
    "",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    responses={
        202: {"headers": ACCEPTED_HEADERS, "description": "Recorded; it will be run."},
        **responses("idempotency-conflict", "lane-full", "no-queue", "broker-away", "no-broker"),
    },
)
async def publish(
    body: models.JobToPublish,
    state: Shared,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
    traceparent: Annotated[str | None, Header(pattern=patterns.TRACEPARENT)] = None,
) -> models.AcceptedJob:
    """Publish a job. Answers within two seconds, even if the broker is unreachable."""
    broker = state.require_broker()
    if body.notify_url is not None:
        _check_notify_url(state, body.notify_url)
    source = source_of(request, body.source)
    key = own_key(request, idempotency_key)
    ids = await state.ledger.system.job_ids()
    job_request = _make_request(body, source, key, traceparent, state.ledger.clock.now(), ids)
    job = await prepare_job(broker, job_request, by_routing_key=body.routing_key is not None)
    accepted = await publish_job(broker, job)
    if accepted.duplicate:
        await require_same_request(state, job_request, accepted)
        response.headers["Idempotency-Replayed"] = "true"
    pressure = await set_pressure_header(broker, job, accepted, response)
    response.headers["Location"] = f"/jobs/{accepted.job_id}"
    return view_accepted_job(replace(accepted, pressure=pressure))


async def _job_filter(
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
    lane: LaneName = None,
    job_type: TypeName = None,
    worker: TypeName = None,
    source: PlainText = None,
    parent_id: Annotated[str | None, Query(pattern=patterns.JOB_ID)] = None,
    pipeline: Annotated[
        str | None,
        Query(pattern=patterns.JOB_ID, description="A run's first job: all jobs of that run."),
    ] = None,
    operation_id: Annotated[
        str | None,
        Query(
            pattern=patterns.BACKFILL_ID,
            description="Only new jobs that this backfill or rerun has published.",
        ),
    ] = None,
    acted_by: Annotated[
        str | None,
        Query(
            pattern=patterns.ACTION_ID,
            description="Only jobs that this bulk action has changed, or rerun as new jobs.",
        ),
    ] = None,
    since: Annotated[
        Moment | None, Query(description="Only jobs created at or after this time.")
    ] = None,
    until: Annotated[
        Moment | None, Query(description="Only jobs created before this time.")
    ] = None,
    finished_since: Annotated[
        Moment | None, Query(description="Only jobs that ended at or after this time.")
    ] = None,
    finished_until: Annotated[
        Moment | None, Query(description="Only jobs that ended before this time.")
    ] = None,
    slower_than: Annotated[
        float | None,
        Query(ge=0, le=1e9, description="Only jobs whose last attempt took more seconds."),
    ] = None,
    error: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=200,
            pattern=patterns.PLAIN,
            description=(
                "Text in the error's type, its message or the reason; upper and lower case are "
                "alike."
            ),
        ),
    ] = None,
    payload: Annotated[
        str | None,
        Query(
            max_length=MAX_PAYLOAD_PATH + 200,
            pattern=patterns.PLAIN,
            description="PATH=VALUE: only jobs whose payload has that value there, as text.",
            examples=["document.id=42"],
        ),
    ] = None,
    tag: Annotated[
        list[Annotated[str, StringConstraints(max_length=200, pattern=patterns.PLAIN)]],
        Query(
            max_length=MAX_TAGS,
            description="NAME=VALUE: only jobs with this tag; repeatable.",
            examples=[["team=search"]],
        ),
    ] = [],  # noqa: B006
) -> JobFilter:
    def seconds(moment: datetime | None) -> float | None:
        return None if moment is None else moment.timestamp()

    try:
        field = None if payload is None else PayloadField.parse(payload)
    except ValueError as wrong:
        raise invalid(RequestFieldError(("payload",), str(wrong)), place="query") from wrong
    try:
        tags = dict(parse_tag(each) for each in tag)
    except ValueError as wrong:
        raise invalid(RequestFieldError(("tag",), str(wrong)), place="query") from wrong
    return JobFilter(
        state=job_state,
        lane=lane,
        job_type=job_type,
        worker=worker,
        source=source,
        parent_id=parent_id,
        pipeline=pipeline,
        operation_id=operation_id,
        acted_by=acted_by,
        since=seconds(since),
        until=seconds(until),
        finished_since=seconds(finished_since),
        finished_until=seconds(finished_until),
        slower_than=slower_than,
        error=error,
        payload=field,
        tags=tags,
    )


@router.get("", dependencies=[needs(Scope.READ)], responses=responses())
async def list_jobs(
    state: Shared,
    job_filter: Annotated[JobFilter, Depends(_job_filter)],
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.JobPage:
    """List jobs, newest first; all filters must match."""
    page = await state.ledger.job_reads.list_jobs(job_filter, limit=limit, cursor=cursor)
    return view_job_page(page)


@router.get("/{job_id}", dependencies=[needs(Scope.READ)], responses=responses("not-found"))
async def show(job_id: JobIdInPath, state: Shared, outputs: JobOutputsOf) -> models.JobDetails:
    """Show a job with its payload, its result and its failed or interrupted attempts."""
    record = await state.ledger.job_reads.require(job_id)
    return await view_job_details(
        state.ledger,
        state.registry,
        record,
        await _read_stages(record, outputs),
        await outputs.output(record),
    )


@router.get("/{job_id}/status", dependencies=[needs(Scope.READ)], responses=responses("not-found"))
async def show_status(
    job_id: JobIdInPath, state: Shared, outputs: JobOutputsOf
) -> models.JobProgress:
    """Show the state of a job."""
    record = await state.ledger.job_reads.require(job_id)
    return view_job_progress(record, await _read_stages(record, outputs))


@router.delete(
    "/{job_id}",
    dependencies=[needs(Scope.PUBLISH)],
    responses={
        200: {"description": "It will not be run."},
        202: {"model": models.CancelledJob, "description": "It runs; its worker has been told."},
        **responses("not-found", "already-ended", "broker-away", "no-broker"),
    },
)
async def cancel(job_id: JobIdInPath, state: Shared, response: Response) -> models.CancelledJob:
    """Cancel a job. A waiting job will not run. A running job is stopped by its worker, and not
    retried.
    """
    cancelled = await cancel_job(state, job_id)
    if cancelled.stopping:
        response.status_code = 202
    return cancelled


async def cancel_job(state: ApiState, job_id: str) -> models.CancelledJob:
    """Cancel a job, and tell its worker to stop. Raises Problem, LedgerError."""
    answer = await state.ledger.jobs.cancel(job_id, state.ledger.clock.time())
    if isinstance(answer, NoSuchJob):
        raise UnknownJob(job_id)
    if isinstance(answer, AlreadyFinished):
        if answer.state is not JobState.CANCELLED:
            raise Problem("already-ended", f"the job is {answer.state}", state=answer.state)
        return models.CancelledJob(job_id=job_id, state=answer.state, stopping=False)
    if isinstance(answer, Cancelled):
        await _announce_cancelled(state, job_id)
        return models.CancelledJob(job_id=job_id, state=JobState.CANCELLED, stopping=False)
    if state.cancel_here(job_id):
        return models.CancelledJob(job_id=job_id, state=JobState.RUNNING, stopping=True)
    try:
        await send_cancel(state.require_broker().publisher, job_id)
    except PublishError as error:
        raise try_later(
            "broker-away", "its worker could not be told; nobody runs it again"
        ) from error
    return models.CancelledJob(job_id=job_id, state=JobState.RUNNING, stopping=True)


@router.post(
    "/{job_id}/release",
    dependencies=[needs(Scope.PUBLISH)],
    responses=responses("not-found", "wrong-state"),
)
async def release(job_id: JobIdInPath, state: Shared) -> models.ReleasedJob:
    """Release a job that waits for others: it runs as soon as they have ended, even if some are
    dead. `wrong-state` where it waits for none."""
    join = await release_join(state.ledger, job_id)
    return models.ReleasedJob(job_id=job_id, open=join.open, dead=join.dead)


async def _read_stages(record: JobRecord, outputs: JobOutputs) -> dict[str, Any]:
    stages = await outputs.stages(record)
    if stages is None:
        return {}
    return {"current_stage": stages.current, "completed_stages": list(stages.completed)}


def _make_request(
    body: models.JobToPublish,
    source: str,
    idempotency_key: str | None,
    traceparent: str | None,
    now: datetime,
    ids: JobIds,
) -> JobRequest:
    """Make the job request from the body of an HTTP request. Raises InvalidRequest."""
    routing_key = routing_key_of(body.routing_key, body.lane, body.job_type)
    job_type = routing_key.partition(".")[2]
    return JobRequest(
        routing_key,
        body.payload,
        priority=body.priority,
        max_attempts=body.max_attempts,
        source=source,
        delay=body.delay if body.run_at is None else delay_until(body.run_at, now),
        expires_at=body.expires_at,
        idempotency_key=idempotency_key,
        job_id=job_id_for(ids, idempotency_key, job_type, body.payload),
        traceparent=traceparent,
        notify_url=body.notify_url,
        tags=body.tags,
    )


def _check_notify_url(state: ApiState, url: str) -> None:
    """Check the address for the notice of a job's end. Raises InvalidRequest."""
    try:
        check_notify_url(url, state.settings)
    except InvalidJob as error:
        # The error's place is `notify_url`, however the target is named.
        raise invalid_request_from(error, by_routing_key=True) from error


async def _announce_cancelled(state: ApiState, job_id: str) -> None:
    record = await state.ledger.job_reads.get(job_id)
    if state.broker is not None and record is not None:
        announce(
            state.broker.publisher,
            "cancelled",
            job_id=job_id,
            job_type=record.job_type,
            lane=record.lane,
            attempt=record.attempts + 1,
        )
