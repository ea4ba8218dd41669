"""Publishing jobs: validate, record, publish, mark; the way in for the CLI, the API and users.

The record comes first (`pending`), then the confirmed publish, then the mark (`queued`). A crash
in between leaves a `pending` record, which the scheduler publishes again: the outbox.

A job that was recorded before is the earlier request's, or the scheduler's: it is not sent a second
time from here. A job that the broker refuses is taken back, unless another request was told of it
meanwhile; then it is kept, and will run. So an error says that nothing was kept, or what of it was.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import NAMESPACE_URL, uuid4, uuid5

from pydantic import ValidationError

from switchyard.broker.errors import LaneFull, PublishError
from switchyard.broker.lanes import Lane, lane_named, split_routing_key
from switchyard.broker.message import (
    MAX_BODY_BYTES,
    MAX_PRIORITY,
    JobMessage,
    Metadata,
    describe,
    now,
)
from switchyard.broker.publish.outcome import Accepted, Outgoing, Result
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.errors import InvalidInput
from switchyard.services.jobs.outcomes import Job
from switchyard.services.jobs.registry import (
    BUILT_IN_MODULES,
    InvalidPayload,
    JobType,
    Registry,
)
from switchyard.services.ledger import Ledger
from switchyard.services.records import (
    Created,
    Existing,
    IdempotencyConflict,
    NewJob,
    Recorded,
    State,
)
from switchyard.services.records.requests import MAX_DELAY
from switchyard.services.settings import Settings

_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/jobs")


class InvalidJob(InvalidInput):
    """The job can't be published as it was asked for; the text says what to change."""

    def __init__(self, text: str, *, at: str | None = None) -> None:
        super().__init__(text)
        self.at = at
        """What of it is wrong: `routing_key`, `lane`, `priority`, `max_attempts` or `delay`."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job that somebody wants done."""

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
    """The same key names the same job: publishing again changes nothing."""
    job_id: str | None = None
    operation_id: str | None = None
    """The backfill that it belongs to."""
    reply_to: str | None = None
    traceparent: str | None = None
    vouched: Mapping[str, Any] | None = None
    """Values of local-only fields that this system has set itself, such as an upload's key. They
    pass where the rest of the payload comes from outside."""


@dataclass(frozen=True, slots=True)
class Published:
    """The job is in its lane (`queued`), waits for its time (`scheduled`), or is recorded
    (`pending`): the scheduler publishes it. A duplicate may be in any state."""

    job_id: str
    routing_key: str
    state: State
    duplicate: bool = False
    """The idempotency key or id was known: this is the earlier job, and nothing was sent."""


PublishOutcome = Published | PublishError | IdempotencyConflict


def job_id_of(parent_id: str, job_type: str, index: int) -> str:
    """The id of a job that follows from another: the same each time, so that a repeat of the
    parent publishes the same jobs."""
    return str(uuid5(_NAMESPACE, f"{parent_id}/{job_type}/{index}"))


def prepare(registry: Registry, request: JobRequest, *, remote: bool = False) -> NewJob:
    """Check a request against its job type and make the job.

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
    if remote:
        job_type.validate_remote(request.payload, request.vouched)
    else:
        job_type.validate(request.payload)
    moment = now()
    message = _message(
        job_type,
        request.payload,
        job_id=_id_for(request, job_type.name),
        priority=lane.default_priority if request.priority is None else request.priority,
        created_at=moment,
        queued_at=moment + timedelta(seconds=request.delay),
        source=request.source,
        max_attempts=request.max_attempts or job_type.max_attempts,
        expires_at=request.expires_at,
        operation_id=request.operation_id,
        reply_to=request.reply_to,
        traceparent=request.traceparent,
    )
    return NewJob(
        message=message,
        lane=lane.name,
        worker=job_type.worker,
        routing_key=request.routing_key,
        run_at=moment.timestamp() + request.delay if request.delay else None,
        idempotency_key=request.idempotency_key,
    )


def _target(registry: Registry, routing_key: str) -> tuple[Lane, JobType]:
    """Where a routing key leads. Raises InvalidJob, UnknownJobType."""
    try:
        lane_name, type_name = split_routing_key(routing_key)
    except ValueError as error:
        raise InvalidJob(f"routing key {error}", at="routing_key") from error
    try:
        lane = lane_named(lane_name)
    except ValueError as error:
        raise InvalidJob(f"routing key {routing_key!r}: {error}", at="lane") from error
    job_type = registry.get(type_name)
    _require_lane(job_type, lane_name)
    return lane, job_type


def _require_lane(job_type: JobType, lane: str) -> None:
    if lane not in job_type.lanes:
        keys = " or ".join(f"{each}.{job_type.name}" for each in job_type.lanes)
        raise InvalidJob(f"{job_type.name} is not worked in lane {lane}: use {keys}", at="lane")


def children_of(
    registry: Registry, parent: JobMessage, parent_lane: str, jobs: Sequence[Job]
) -> list[NewJob]:
    """The jobs that a handler wants done next.

    Raises InvalidJob, UnknownJobType or InvalidPayload.
    """
    return [
        _child(registry.get(job.job_type), parent, parent_lane, job, index)
        for index, job in enumerate(jobs)
    ]


def _child(job_type: JobType, parent: JobMessage, parent_lane: str, job: Job, index: int) -> NewJob:
    lane = job.lane or (parent_lane if parent_lane in job_type.lanes else job_type.lanes[0])
    _require_lane(job_type, lane)
    job_type.validate(job.payload)
    moment = now()
    message = _message(
        job_type,
        job.payload,
        job_id=job_id_of(parent.job_id, job_type.name, index),
        priority=parent.priority if job.priority is None else job.priority,
        created_at=moment,
        queued_at=moment,
        source=parent.metadata.source,
        max_attempts=job_type.max_attempts,
        expires_at=parent.metadata.expires_at,
        parent_id=parent.job_id,
        pipeline=None if job.own_pipeline else parent.metadata.pipeline or parent.job_id,
        operation_id=parent.metadata.operation_id,
        traceparent=parent.metadata.traceparent,
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
    """A message that every worker can read, of a payload that is valid. Raises InvalidJob or
    InvalidPayload."""
    try:
        message = JobMessage(
            job_id=job_id,
            job_type=job_type.name,
            priority=priority,
            payload=dict(payload),
            metadata=Metadata(**metadata),
        )
    except ValidationError as error:
        raise InvalidJob(f"{job_type.name}: {describe(error)}") from error
    try:
        size = len(message.encode())
    except ValueError as error:
        raise InvalidPayload(f"payload of {job_type.name}: {error}") from error
    if size > MAX_BODY_BYTES:
        raise InvalidPayload(
            f"the job has {size} bytes, the limit is {MAX_BODY_BYTES}: put the large input into "
            "storage and pass its key"
        )
    return message


def _id_for(request: JobRequest, job_type: str) -> str:
    if request.job_id is not None:
        return request.job_id
    if request.idempotency_key is not None:
        return str(uuid5(_NAMESPACE, f"key/{job_type}/{request.idempotency_key}"))
    return str(uuid4())


class JobPublisher:
    """Records jobs and publishes them. Safe to use from many coroutines at once.

    With `remote` its requests carry payloads from outside, each of them: that of a server.
    """

    def __init__(
        self, registry: Registry, ledger: Ledger, publisher: Publisher, *, remote: bool = False
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._publisher = publisher
        self._remote = remote

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: Settings | None = None) -> AsyncIterator[Self]:
        """A publisher for a program of its own, with the pipeline's job types and those of
        JOBS_MODULES; it connects at the first publish, and everything is closed at the end.

        The settings are those of the environment unless given. Raises ValueError where no broker
        is named or a setting is not valid, RegistryError, LedgerError.
        """
        settings = settings or Settings()
        settings.require_amqp_url()
        registry = Registry.load(dict.fromkeys((*BUILT_IN_MODULES, *settings.modules)))
        async with (
            await Ledger.open(settings.ledger_url, check=True) as ledger,
            Publisher(settings) as publisher,
        ):
            yield cls(registry, ledger, publisher)

    def prepare(self, request: JobRequest) -> NewJob:
        """Check a request and make the job, as `prepare` does; nothing is recorded or sent.

        Raises InvalidJob, UnknownJobType, InvalidPayload.
        """
        return prepare(self._registry, request, remote=self._remote)

    async def publish(self, request: JobRequest) -> Published:
        """Publish one job.

        Raises what `prepare` raises (nothing was sent); IdempotencyConflict; LaneFull, Blocked,
        BrokerAway (PublishError); LedgerUnavailable.
        """
        return await self.publish_one(self.prepare(request))

    async def publish_many(self, requests: Iterable[JobRequest]) -> list[PublishOutcome]:
        """Publish a batch; every request is checked before anything is recorded or sent.

        Outcomes are in the order of the requests. Raises as `publish` does where it is about the
        batch as a whole (an invalid request, the ledger).
        """
        return await self.publish_prepared([self.prepare(each) for each in requests])

    async def publish_one(self, job: NewJob) -> Published:
        """`publish` of a job that `prepare` has made."""
        (outcome,) = await self.publish_prepared([job])
        if not isinstance(outcome, Published):
            raise outcome
        return outcome

    async def publish_prepared(self, jobs: Sequence[NewJob]) -> list[PublishOutcome]:
        """`publish_many` of jobs that `prepare` has made: record → publish → mark → take back."""
        recorded = await self._ledger.record_many(jobs)
        outcomes = _known(jobs, recorded)
        due = [index for index in range(len(jobs)) if index not in outcomes]
        results = await self._publisher.publish_many(
            Outgoing(jobs[index].message, jobs[index].routing_key) for index in due
        )
        sent = dict(zip(due, results, strict=True))
        outcomes |= {index: _outcome(result) for index, result in sent.items()}
        await self._mark(jobs, sent)
        outcomes |= await self._take_back(jobs, recorded, sent)
        return [outcomes[index] for index in range(len(jobs))]

    async def _mark(self, jobs: Sequence[NewJob], sent: Mapping[int, Result]) -> None:
        """Record what the broker has taken, or has moved to the dead letters."""
        for index, result in sent.items():
            if isinstance(result, LaneFull) and result.dead_lettered:
                await self._ledger.mark_overflowed(jobs[index].message.job_id, time.time())
        accepted = [result.job_id for result in sent.values() if isinstance(result, Accepted)]
        if accepted:
            await self._ledger.mark_queued(accepted, time.time())

    async def _take_back(
        self,
        jobs: Sequence[NewJob],
        recorded: Sequence[Recorded | IdempotencyConflict],
        sent: Mapping[int, Result],
    ) -> dict[int, PublishOutcome]:
        """Take back the records of jobs of which the broker kept nothing; the outcomes of those
        that are kept nevertheless, as another request was told of them."""
        nothing_left = [
            index
            for index, result in sent.items()
            if isinstance(result, PublishError) and result.left_nothing
        ]
        made = {index: recorded[index] for index in nothing_left}
        refused = {index: each for index, each in made.items() if isinstance(each, Created)}
        if not refused:
            return {}
        kept = await self._ledger.take_back(list(refused.values()))
        return {
            index: Published(jobs[index].message.job_id, jobs[index].routing_key, state)
            for index, state in zip(refused, kept, strict=True)
            if state is not None
        }


def _known(
    jobs: Sequence[NewJob], recorded: Sequence[Recorded | IdempotencyConflict]
) -> dict[int, PublishOutcome]:
    """The outcomes of jobs that need not be sent now, by their place in the batch."""
    outcomes: dict[int, PublishOutcome] = {}
    for index, (job, record) in enumerate(zip(jobs, recorded, strict=True)):
        if isinstance(record, IdempotencyConflict):
            outcomes[index] = record
        elif isinstance(record, Existing):
            outcomes[index] = Published(
                record.job_id, job.routing_key, record.state, duplicate=True
            )
        elif job.run_at is not None:
            outcomes[index] = Published(record.job_id, job.routing_key, State.SCHEDULED)
    return outcomes


def _outcome(result: Result) -> PublishOutcome:
    if isinstance(result, Accepted):
        return Published(result.job_id, result.routing_key, State.QUEUED)
    return result
