"""What goes in and out of the job endpoints, as JSON. Times are ISO 8601 with a time zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from switchyard.api.models.base import EXAMPLE, ApiModel, Moment, RequestModel, is_finite
from switchyard.broker import patterns
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.engine.records.joins import WhenDead
from switchyard.services.engine.records.requests import MAX_DELAY, MAX_NOTIFY_URL
from switchyard.services.engine.records.states import State


class JobToPublish(RequestModel):
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


class AcceptedJob(ApiModel):
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


class AttemptView(ApiModel):
    """An attempt that did not simply succeed."""

    redrive: int
    attempt: int
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime
    outcome: str = Field(examples=["retry"])
    error_type: str | None
    error_message: str | None


class ProgressView(ApiModel):
    """How far a job's last attempt is, as its handler says."""

    fraction: float | None = Field(description="Of its work, 0 to 1; null where it can't say.")
    note: str = Field(examples=["page 12 of 30"])
    reported_at: datetime


class JobStatus(ApiModel):
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


class JoinView(ApiModel):
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


class JobPage(ApiModel):
    """Part of a listing."""

    jobs: list[JobView]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page."
    )


class CancelledJob(ApiModel):
    """Result of a cancellation."""

    job_id: str = Field(examples=[EXAMPLE])
    state: State
    stopping: bool = Field(
        description="True if the job is running and its worker has been told to stop it."
    )


class ReleasedJob(ApiModel):
    """What a job still waits for that was let go on without the dead."""

    job_id: str = Field(examples=[EXAMPLE])
    open: int = Field(description="Jobs that it waits for yet; with 0 it is published at once.")
    dead: int = Field(description="Jobs without which it goes on.")
