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

from switchyard.broker import message, moments
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.records import (
    AttemptRecord,
    JobRecord,
    JobSummary,
    JoinRecord,
    Page,
    State,
    WhenDead,
)
from switchyard.services.records.progress import ProgressRecord
from switchyard.services.records.requests import MAX_DELAY, MAX_NOTIFY_URL

JOB_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
ROUTING_KEY = r"^[a-z][a-z0-9_]{0,63}\.[a-z][a-z0-9_]{0,63}$"
NAME = r"^[a-z][a-z0-9_]{0,63}$"
PLAIN = r"^[^\x00-\x1f\x7f]*$"
CURSOR = r"^[A-Za-z0-9_=-]+$"


def _iso_8601(value: object) -> object:
    """Times are text with a date and a time: a bare number, which could mean anything, is not."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}", value):
        raise ValueError("write it as in 2026-01-05T09:00:00Z")
    return value


Moment = Annotated[message.Moment, BeforeValidator(_iso_8601)]
"""A moment in ISO 8601, with a time zone."""

EXAMPLE = "0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11"


class JobToPublish(BaseModel):
    """A job to be done: a routing key, or a lane and a job type, and the payload."""

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
        default=None, pattern=ROUTING_KEY, description="`<lane>.<job_type>`."
    )
    lane: str | None = Field(default=None, pattern=NAME, description="hot, vlm_ocr, …")
    job_type: str | None = Field(default=None, pattern=NAME, description="See `/schemas`.")
    payload: dict[str, Any] = Field(
        default_factory=dict, description="What the job type asks for: see `/schemas/{type}`."
    )
    priority: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PRIORITY,
        description="Urgency within the lane; the lane's own where it is not given.",
    )
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    delay: float = Field(
        default=0, ge=0, le=MAX_DELAY, description="Seconds to wait before it enters its lane."
    )
    run_at: Moment | None = Field(
        default=None, description="When it enters its lane, instead of `delay`."
    )
    expires_at: Moment | None = Field(
        default=None, description="Not started after this time: it is dead then, as `expired`."
    )
    source: str = Field(
        default="api", min_length=1, max_length=100, pattern=PLAIN, description="Who asks."
    )
    notify_url: str | None = Field(
        default=None,
        max_length=MAX_NOTIFY_URL,
        pattern="^https?://",
        description="Is told, signed, when the job and all that follows from it has ended.",
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
        "recorded; the broker has not confirmed it in time and it is published again soon. "
        "Others: the state of a job that was there before."
    )
    duplicate: bool = Field(
        default=False, description="The idempotency key was known: this is the earlier job."
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
    reason: str | None = Field(description="Why it died, waits or was given back.")
    error_type: str | None
    error_message: str | None
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    run_at: datetime | None
    expires_at: datetime | None
    progress: ProgressView | None = Field(description="null where its handler says nothing.")


class JobProgress(JobStatus):
    """How things stand with a job, and how far it is where it has stages of its own."""

    current_stage: str | None = Field(
        default=None, description="Of a job on references: the stage under way, or that failed."
    )
    completed_stages: list[str] = Field(
        default=[], description="Those behind it: their output is kept, and used again."
    )


class JobView(JobStatus):
    """A job without payload and result."""

    lane: str
    routing_key: str
    worker: str = Field(description="The kind of worker that takes it.")
    priority: int
    source: str
    parent_id: str | None
    join_id: str | None = Field(description="The job that waits for this one.")
    pipeline: str | None
    redrives: int
    crashes: int
    cancel_asked_at: datetime | None = Field(
        description="When somebody asked for it to be cancelled while it ran: it never runs again."
    )
    worker_id: str | None = Field(description="Who runs it, or ran it last.")
    updated_at: datetime


class JoinView(BaseModel):
    """How far the waiting for other jobs is."""

    when_dead: WhenDead = Field(description="What becomes of the job when some are dead.")
    total: int
    open: int = Field(description="Those that have not ended.")
    dead: int
    cancelled: int
    held: bool = Field(description="More may come, as from a backfill.")
    fulfilled_at: datetime | None = Field(description="When the waiting was over.")


class JobDetails(JobView, JobProgress):
    """Everything that is known of a job."""

    payload: dict[str, Any]
    result: dict[str, Any] | None = Field(
        description="Also what lies in storage under the job's id, up to 8 MiB."
    )
    join: JoinView | None = Field(description="Of a job that waits for others, or has.")
    timeline: list[AttemptView] = Field(description="Oldest first.")
    checkpoint_at: datetime | None = Field(
        description="When an attempt has kept where it was, for the next one."
    )
    trace_id: str | None = Field(description="The trace that it is of, by its `traceparent`.")


class JobPage(BaseModel):
    """Part of a listing."""

    jobs: list[JobView]
    next_cursor: str | None = Field(description="Give it as `cursor` for the following page.")


class CancelledJob(BaseModel):
    """What became of a job that was called off."""

    job_id: str = Field(examples=[EXAMPLE])
    state: State
    stopping: bool = Field(description="It runs, and its worker has been told to stop it.")


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
