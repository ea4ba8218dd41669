"""What goes in and out of the job endpoints, as JSON. Times are ISO 8601 with a time zone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from switchyard.broker import message, moments, patterns
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.records.joins import JoinRecord, WhenDead
from switchyard.services.records.progress import ProgressRecord
from switchyard.services.records.requests import MAX_DELAY, MAX_NOTIFY_URL
from switchyard.services.records.results import AttemptRecord, JobRecord, JobSummary, Page
from switchyard.services.records.states import State


def _iso_8601(value: object) -> object:
    """Times are text with a date and a time: a bare number, which could mean anything, is not."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}", value):
        raise ValueError("write it as in 2026-01-05T09:00:00Z")
    return value


Moment = Annotated[message.Moment, BeforeValidator(_iso_8601)]
"""A moment in ISO 8601, with a time zone."""

EXAMPLE = "0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11"


class JobToPublish(BaseModel):
    """A job: a routing key, or a lane and a job type, and the payload."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "routing_key": "hot.summarize_content",
                "payload": {"text": "A long article.", "max_words": 80},
                "priority": 7,
            }
        },
    )

    routing_key: str | None = Field(
        default=None, pattern=patterns.ROUTING_KEY, description="`<lane>.<job_type>`."
    )
    lane: str | None = Field(default=None, pattern=patterns.NAME, description="hot, vlm_ocr, …")
    job_type: str | None = Field(default=None, pattern=patterns.NAME, description="See `/schemas`.")
    payload: dict[str, Any] = Field(
        default_factory=dict,
        description="Payload of the job; its JSON Schema is at `/schemas/{type}`.",
    )
    priority: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PRIORITY,
        description="Priority within the lane; a higher number runs first. Default: the lane's.",
    )
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    delay: float = Field(
        default=0,
        ge=0,
        le=MAX_DELAY,
        description="Seconds before the job is published to its lane.",
    )
    run_at: Moment | None = Field(
        default=None,
        description="Time at which the job is published to its lane, instead of `delay`.",
    )
    expires_at: Moment | None = Field(
        default=None,
        description="If the job has not started by this time, it becomes a dead letter "
        "(`expired`).",
    )
    source: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        pattern=patterns.PLAIN,
        description="Name of the client, for fairness and cost reports. Default: `api`, or with an "
        "API key `api:` and the key's id.",
    )
    notify_url: str | None = Field(
        default=None,
        max_length=MAX_NOTIFY_URL,
        pattern=patterns.URL,
        description="Address that gets a signed HTTP POST when the job and its follow-up jobs "
        "have ended (docs/notices.md).",
    )

    @field_validator("payload")
    @classmethod
    def _is_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not is_finite(value):
            raise ValueError("NaN and Infinity are not JSON")
        return value

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.delay and self.run_at is not None:
            raise ValueError("give either delay or run_at")
        return self


class AcceptedJob(BaseModel):
    """The job is recorded and will be run."""

    job_id: str = Field(examples=[EXAMPLE])
    routing_key: str = Field(examples=["hot.summarize_content"])
    state: State = Field(
        description="`queued`: in its lane. `scheduled`: it waits for its time. `pending`: "
        "recorded, but not confirmed by the broker in time; the scheduler "
        "publishes it. Other states: those of an earlier job with the same "
        "idempotency key."
    )
    duplicate: bool = Field(
        default=False,
        description="True if the idempotency key was already used: this is the earlier job.",
    )


class AttemptView(BaseModel):
    """An attempt that did not simply succeed."""

    redrive: int
    attempt: int
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime
    outcome: str = Field(examples=["retry"])
    error_type: str | None
    error_message: str | None


class ProgressView(BaseModel):
    """How far a job's last attempt is, as its handler says."""

    fraction: float | None = Field(description="Of its work, 0 to 1; null where it can't say.")
    note: str = Field(examples=["page 12 of 30"])
    reported_at: datetime


class JobStatus(BaseModel):
    """How things stand with a job."""

    job_id: str = Field(examples=[EXAMPLE])
    job_type: str
    state: State
    attempts: int = Field(description="Attempts used up.")
    max_attempts: int
    reason: str | None = Field(description="Why the job died, waits or was returned.")
    error_type: str | None
    error_message: str | None
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    run_at: datetime | None
    expires_at: datetime | None
    progress: ProgressView | None = Field(description="null if its handler reports none.")


class JobProgress(JobStatus):
    """State and progress of a job."""

    current_stage: str | None = Field(
        default=None,
        description="For a job on references: the current stage, or the stage that failed.",
    )
    completed_stages: list[str] = Field(
        default=[], description="Completed stages; their output is stored and reused."
    )


class JobView(JobStatus):
    """A job without payload and result."""

    lane: str
    routing_key: str
    worker: str = Field(description="Worker kind that runs it.")
    priority: int
    source: str
    parent_id: str | None
    join_id: str | None = Field(description="Id of the job that waits for this one.")
    pipeline: str | None
    redrives: int
    crashes: int
    cancel_asked_at: datetime | None = Field(
        description="When cancellation of the running job was requested. It will not run again."
    )
    worker_id: str | None = Field(description="Id of the worker that runs it, or ran it last.")
    updated_at: datetime


class JoinView(BaseModel):
    """How far the waiting for other jobs is."""

    when_dead: WhenDead = Field(description="What the job does if some of them are dead.")
    total: int
    open: int = Field(description="Those that have not ended.")
    dead: int
    cancelled: int
    held: bool = Field(description="True if more jobs may be added, for example by a backfill.")
    fulfilled_at: datetime | None = Field(description="When all of them had ended.")


class JobDetails(JobView, JobProgress):
    """Everything that is known of a job."""

    payload: dict[str, Any]
    result: dict[str, Any] | None = Field(
        description="Result of the job, including results in the file storage up to 8 MiB."
    )
    join: JoinView | None = Field(
        description="For a job that waits, or has waited, for other jobs."
    )
    timeline: list[AttemptView] = Field(description="Oldest first.")
    checkpoint_at: datetime | None = Field(
        description="When an attempt last stored a checkpoint for the next one."
    )
    trace_id: str | None = Field(description="Id of its trace, from `traceparent`.")


class JobPage(BaseModel):
    """Part of a listing."""

    jobs: list[JobView]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page."
    )


class CancelledJob(BaseModel):
    """Result of a cancellation."""

    job_id: str = Field(examples=[EXAMPLE])
    state: State
    stopping: bool = Field(
        description="True if the job is running and its worker has been told to stop it."
    )


class ReleasedJob(BaseModel):
    """What a job still waits for that was let go on without the dead."""

    job_id: str = Field(examples=[EXAMPLE])
    open: int = Field(description="Jobs that it waits for yet; with 0 it is published at once.")
    dead: int = Field(description="Jobs without which it goes on.")


def moment(seconds: float | None) -> datetime | None:
    """Seconds since the epoch as a time; None stays None."""
    return None if seconds is None else moments.shown(seconds)


def fields_of(record: JobSummary) -> dict[str, Any]:
    """A record's values under the names that they have here."""
    names = JobView.model_fields.keys() - {"job_id", "progress"}
    return {"job_id": record.id, "progress": _progress(record.progress)} | {
        name: moment(getattr(record, name)) if name.endswith("_at") else getattr(record, name)
        for name in names
    }


def status_view(record: JobSummary) -> JobStatus:
    return JobStatus(**{k: v for k, v in fields_of(record).items() if k in JobStatus.model_fields})


def progress_view(record: JobSummary, stages: Mapping[str, Any]) -> JobProgress:
    """`stages` are `current_stage` and `completed_stages`, where there are any."""
    return JobProgress(**status_view(record).model_dump(), **stages)


def page_view(page: Page[JobSummary]) -> JobPage:
    jobs = [JobView(**fields_of(record)) for record in page.items]
    return JobPage(jobs=jobs, next_cursor=page.next_cursor)


def details_view(
    record: JobRecord,
    stages: Mapping[str, Any],
    output: Mapping[str, Any] | None,
    join: JoinRecord | None,
) -> JobDetails:
    """`stages` as in `progress_view`; `output` is what the job keeps in storage."""
    return JobDetails(
        **fields_of(record),
        **stages,
        payload=record.payload,
        result=record.result if output is None else {**(record.result or {}), **output},
        join=None if join is None else _join(join),
        timeline=[_attempt(each) for each in record.timeline],
        checkpoint_at=moment(record.checkpoint_at),
        trace_id=record.trace_id,
    )


def _progress(said: ProgressRecord | None) -> ProgressView | None:
    if said is None:
        return None
    return ProgressView(
        fraction=said.fraction, note=said.note, reported_at=moments.shown(said.reported_at)
    )


def _join(record: JoinRecord) -> JoinView:
    return JoinView(
        when_dead=record.when_dead,
        total=record.total,
        open=record.open,
        dead=record.dead,
        cancelled=record.cancelled,
        held=record.held,
        fulfilled_at=moment(record.fulfilled_at),
    )


def _attempt(record: AttemptRecord) -> AttemptView:
    return AttemptView(
        redrive=record.redrive,
        attempt=record.attempt,
        worker_id=record.worker_id,
        started_at=moment(record.started_at),
        finished_at=moments.shown(record.finished_at),
        outcome=record.outcome,
        error_type=record.error_type,
        error_message=record.error_message,
    )


def is_finite(value: Any) -> bool:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            return False
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return True
