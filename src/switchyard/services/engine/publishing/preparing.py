"""Prepare jobs from requests, or from a handler's outcome: checked against their job type, in a
form that every worker can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from pydantic import ValidationError

from switchyard.broker.errors import MalformedMessage
from switchyard.broker.lanes import Lane, lane_named, split_routing_key
from switchyard.broker.message import (
    MAX_NEW_BODY_BYTES,
    MAX_PRIORITY,
    JobMessage,
    Metadata,
    describe,
    may_be_unreadable,
    now,
)
from switchyard.services.common.errors import InvalidInput
from switchyard.services.common.settings import Settings
from switchyard.services.common.tracing import current_traceparent
from switchyard.services.engine.jobs.outcomes import Job
from switchyard.services.engine.jobs.registry import InvalidPayload, JobType, Registry
from switchyard.services.engine.records.job_ids import PUBLIC_IDS, JobIds
from switchyard.services.engine.records.joins import Joining, WhenDead
from switchyard.services.engine.records.requests import (
    MAX_DELAY,
    MAX_NOTIFY_URL,
    NewJob,
    is_namespaced,
)

CHILDREN_PER_TURN = 50
"""Jobs of one handler that are made before other tasks run."""
_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/jobs")
_KEY_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/keys")


class InvalidJob(InvalidInput):
    """The job can't be published as it was asked for; the text says what to change."""

    def __init__(self, text: str, *, at: str | None = None) -> None:
        super().__init__(text)
        self.at = at
        """The invalid field: `routing_key`, `lane`, `priority`, `max_attempts`, `delay` or
        `notify_url`."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request to publish a job."""

    routing_key: str
    payload: Mapping[str, Any]
    priority: int | None = None
    """0 to 10 within the lane; None for the lane's default."""
    max_attempts: int | None = None
    source: str = "user"
    delay: float = 0
    """Seconds to wait before the job enters its lane."""
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    """Identifies the job: publishing with the same key again changes nothing."""
    job_id: str | None = None
    operation_id: str | None = None
    """The backfill or rerun that it belongs to."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Labels to find the job by, at most 16. Jobs that follow from it have them, too."""
    rerun_of: str | None = None
    """The job that it does again."""
    reply_to: str | None = None
    traceparent: str | None = None
    notify_url: str | None = None
    """Is told when the job, and all that followed from it, has ended: docs/notices.md."""
    payload_version: int | None = None
    """The version of its type's payload that it was written for, where it was written before; None
    for the type's own."""
    vouched: Mapping[str, Any] | None = None
    """Values of local-only fields that this system has set itself, such as an upload's key. They
    pass where the rest of the payload comes from outside."""


NOTICE_KEY = "maintenance.send_notice"
"""Routing key of the job that sends a notice: behind all urgent lanes, first in its own."""
_REPLACED = "\ufffd".encode()
THEN = "then"
"""The place of the job that follows when all others have ended."""


def job_id_of(ids: JobIds, parent_id: str, job_type: str, index: int | str) -> str:
    """Make the id of a job that follows from another: the same each time, so that a repeat of the
    parent publishes the same jobs."""
    return ids.derive(_NAMESPACE, f"{parent_id}/{job_type}/{index}")


def prepare(
    registry: Registry,
    request: JobRequest,
    *,
    remote: bool = False,
    ids: JobIds = PUBLIC_IDS,
) -> NewJob:
    """Check a request against its job type and make the job.

    `ids` makes the id of one that has an idempotency key and no id.

    With `remote` somebody outside has written the payload: see `JobType.validate_remote`.
    Raises InvalidJob, UnknownJobType or InvalidPayload; nothing is sent then.
    """
    lane, job_type = _target(registry, request.routing_key)
    if request.priority is not None and not 0 <= request.priority <= MAX_PRIORITY:
        text = f"priority must be 0 to {MAX_PRIORITY}, not {request.priority}"
        raise InvalidJob(text, at="priority")
    if request.max_attempts is not None and not 1 <= request.max_attempts <= 1000:
        text = f"max_attempts must be 1 to 1000, not {request.max_attempts}"
        raise InvalidJob(text, at="max_attempts")
    if not 0 <= request.delay <= MAX_DELAY:
        text = f"delay must be 0 to {MAX_DELAY:,} seconds, not {request.delay}"
        raise InvalidJob(text, at="delay")
    if (
        not remote
        and request.idempotency_key is not None
        and is_namespaced(request.idempotency_key)
    ):
        text = "an idempotency key of this form belongs to an API key or a webhook: choose another"
        raise InvalidJob(text)
    version = job_type.version if request.payload_version is None else request.payload_version
    if remote:
        job_type.validate_remote(request.payload, request.vouched, version=version)
    elif job_type.can_read(version):
        job_type.read(request.payload, version)
    moment = now()
    message = _message(
        job_type,
        request.payload,
        job_id=_id_for(ids, request, job_type.name),
        priority=lane.default_priority if request.priority is None else request.priority,
        created_at=moment,
        queued_at=moment + timedelta(seconds=request.delay),
        source=request.source,
        max_attempts=request.max_attempts or job_type.max_attempts,
        expires_at=request.expires_at,
        operation_id=request.operation_id,
        rerun_of=request.rerun_of,
        tags=dict(request.tags),
        reply_to=request.reply_to,
        traceparent=request.traceparent,
        payload_version=version,
    )
    job = NewJob(
        message=message,
        lane=lane.name,
        worker=job_type.worker,
        routing_key=request.routing_key,
        run_at=moment.timestamp() + request.delay if request.delay else None,
        idempotency_key=request.idempotency_key,
    )
    return job if request.notify_url is None else _with_notice(registry, job, request.notify_url)


def notice_of(registry: Registry, url: str, **about: str) -> NewJob:
    """Make the job that sends the notice of the end of a job or a backfill, once it is let go.

    Raises InvalidJob for a URL that is none, UnknownJobType where nobody could run it.
    """
    check_notify_url(url)
    notice = prepare(registry, JobRequest(NOTICE_KEY, {"url": url, **about}, priority=MAX_PRIORITY))
    return replace(notice, joins=Joining("go_on", again=True))


def check_notify_url(url: str, settings: Settings | None = None) -> None:
    """Raises InvalidJob for what is no URL; with settings also where no secret is set to sign the
    notice with. Whether the URL may be called is checked later, by the worker that sends it."""
    # Here, for most who publish name no URL, and this takes a tenth of a second.
    from switchyard.services.common.files.safe_http import FetchRefused, parse_url

    if settings is not None and settings.notify_secret is None:
        text = "notify_url: set JOBS_NOTIFY_SECRET first, for the workers, too"
        raise InvalidJob(text, at="notify_url")
    if len(url) > MAX_NOTIFY_URL:
        raise InvalidJob(f"notify_url has more than {MAX_NOTIFY_URL:,} characters", at="notify_url")
    try:
        parse_url(url)
    except FetchRefused as error:
        raise InvalidJob(f"notify_url: {error}", at="notify_url") from error


def _with_notice(registry: Registry, job: NewJob, url: str) -> NewJob:
    job_id = job.message.job_id
    notice = notice_of(registry, url, job_id=job_id)
    # A pipeline of its own: the job's is over when it is told of.
    message = notice.message.with_metadata(
        parent_id=job_id, traceparent=job.message.metadata.traceparent
    )
    return replace(job, join_id=message.job_id, notice=replace(notice, message=message))


def _target(registry: Registry, routing_key: str) -> tuple[Lane, JobType]:
    """Find the lane, worker and type that a routing key leads to. Raises InvalidJob,
    UnknownJobType."""
    try:
        lane_name, type_name = split_routing_key(routing_key)
    except ValueError as error:
        raise InvalidJob(f"routing key {error}", at="routing_key") from error
    try:
        lane = lane_named(lane_name)
    except ValueError as error:
        raise InvalidJob(f"routing key {routing_key!r}: {error}", at="lane") from error
    job_type = registry.get_publishable(type_name)
    _require_lane(job_type, lane_name)
    return lane, job_type


def _require_lane(job_type: JobType, lane: str) -> None:
    if lane not in job_type.lanes:
        keys = " or ".join(f"{each}.{job_type.name}" for each in job_type.lanes)
        raise InvalidJob(f"{job_type.name} is not worked in lane {lane}: use {keys}", at="lane")


async def children_of(
    registry: Registry,
    ids: JobIds,
    parent: JobMessage,
    parent_lane: str,
    jobs: Sequence[Job],
    then: Job | None = None,
    when_dead: WhenDead = "wait",
) -> list[NewJob]:
    """Make the jobs that a handler wants next, and last the one that waits for them. Others run in
    between: a thousand take a tenth of a second.

    Raises InvalidJob, UnknownJobType or InvalidPayload.
    """
    children = []
    for index, job in enumerate(jobs):
        children.append(_child(registry, ids, parent, parent_lane, job, index))
        if not len(children) % CHILDREN_PER_TURN:
            await asyncio.sleep(0)
    if then is None:
        return children
    last = _child(registry, ids, parent, parent_lane, then, THEN)
    if not children:
        return [last]  # there is nothing to wait for
    joined = [replace(each, join_id=last.message.job_id) for each in children]
    return [*joined, replace(last, joins=Joining(when_dead))]


def _child(
    registry: Registry,
    ids: JobIds,
    parent: JobMessage,
    parent_lane: str,
    job: Job,
    index: int | str,
) -> NewJob:
    job_type = registry.get_publishable(job.job_type)
    lane = job.lane or (parent_lane if parent_lane in job_type.lanes else job_type.lanes[0])
    _require_lane(job_type, lane)
    job_type.validate(job.payload)
    moment = now()
    # Not where the handler has said where it belongs, nor where a job goes on in pieces, between
    # which others are to come.
    is_later_stage = (
        job.priority is None
        and not job.own_pipeline
        and job.job_type != parent.job_type
        and job_type.worker == registry.get_publishable(parent.job_type).worker
    )
    message = _message(
        job_type,
        job.payload,
        job_id=job_id_of(ids, parent.job_id, job_type.name, index),
        priority=parent.priority if job.priority is None else job.priority,
        created_at=moment,
        queued_at=moment,
        source=parent.metadata.source,
        max_attempts=job_type.max_attempts,
        expires_at=parent.metadata.expires_at,
        parent_id=parent.job_id,
        pipeline=None if job.own_pipeline else parent.metadata.pipeline or parent.job_id,
        is_later_stage=is_later_stage,
        operation_id=parent.metadata.operation_id,
        tags=parent.metadata.tags,
        traceparent=current_traceparent() or parent.metadata.traceparent,
    )
    return NewJob(
        message=message,
        lane=lane,
        worker=job_type.worker,
        routing_key=f"{lane}.{job_type.name}",
    )


def _message(
    job_type: JobType, payload: Mapping[str, Any], *, job_id: str, priority: int, **metadata: Any
) -> JobMessage:
    """Make a message that every worker can read, of a valid payload. Raises InvalidJob or
    InvalidPayload."""
    try:
        message = JobMessage(
            job_id=job_id,
            job_type=job_type.name,
            priority=priority,
            payload=dict(payload),
            metadata=Metadata(**{"payload_version": job_type.version, **metadata}),
        )
    except ValidationError as error:
        raise InvalidJob(f"{job_type.name}: {describe(error)}") from error
    try:
        encoded = message.encode()
        if _REPLACED in encoded:  # in the name of a field, pydantic writes so what UTF-8 can't say
            json.dumps(message.payload, ensure_ascii=False, default=str).encode()
        if may_be_unreadable(encoded) and len(encoded) <= MAX_NEW_BODY_BYTES:
            JobMessage.decode(encoded)
    except (ValueError, MalformedMessage) as error:
        raise InvalidPayload(f"payload of {job_type.name}: {error}") from error
    if len(encoded) > MAX_NEW_BODY_BYTES:
        raise InvalidPayload(
            f"the job has {len(encoded)} bytes, the limit is {MAX_NEW_BODY_BYTES}: put the large "
            "input into storage and pass its key"
        )
    return message


def _id_for(ids: JobIds, request: JobRequest, job_type: str) -> str:
    if request.job_id is not None:
        return request.job_id
    if request.idempotency_key is not None:
        return ids.derive(_KEY_NAMESPACE, f"{job_type}/{request.idempotency_key}")
    return str(uuid4())
