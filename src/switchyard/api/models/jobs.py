"""What goes in and out of the job endpoints, as JSON. Times are ISO 8601 with a time zone."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from switchyard.api.models.base import (
    EXAMPLE_JOB_ID,
    ApiModel,
    JsonObject,
    Moment,
    Timestamp,
)
from switchyard.api.models.pauses import PauseView
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.broker.message import MAX_PRIORITY, Tags
from switchyard.services.engine.records.job_actions import JobAction
from switchyard.services.engine.records.joins import WhenDead
from switchyard.services.engine.records.requests import MAX_DELAY, MAX_NOTIFY_URL
from switchyard.services.engine.records.states import Pressure, State


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
    payload: JsonObject = Field(
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
    tags: Tags = Field(
        default_factory=dict,
        description="Names and values to find the job by; its follow-up jobs have them, too. At "
        "most 16.",
        examples=[{"team": "search"}],
    )
    notify_url: str | None = Field(
        default=None,
        max_length=MAX_NOTIFY_URL,
        pattern=patterns.URL,
        description="Address that gets a signed HTTP POST when the job and its follow-up jobs "
        "have ended (docs/notices.md).",
    )

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.delay and self.run_at is not None:
            raise ValueError("give either delay or run_at")
        return self


class AcceptedJob(ApiModel):
    """The job is recorded and will be run."""

    job_id: str = Field(examples=[EXAMPLE_JOB_ID])
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
    pressure: Pressure | None = Field(
        default=None, description="How full the job's queue is; null where that is not known."
    )


class PipelineJob(ApiModel):
    """Another job of the same pipeline."""

    job_id: str = Field(examples=[EXAMPLE_JOB_ID])
    job_type: str
    state: State


class EndedJob(AcceptedJob):
    """A published job at its end: what `jobctl publish --wait` prints."""

    result: dict[str, Any] | None
    reason: str | None = Field(description="Why the job died, or was returned.")
    error_type: str | None
    error_message: str | None
    pipeline_jobs: list[PipelineJob] | None = Field(
        description="Its follow-up jobs; null where they were not waited for."
    )


class AttemptView(ApiModel):
    """An attempt that failed or was interrupted."""

    redrive: int
    attempt: int
    worker_id: str | None
    started_at: Timestamp | None
    finished_at: Timestamp
    outcome: str = Field(examples=["retry"])
    error_type: str | None
    error_message: str | None


class ProgressView(ApiModel):
    """Progress of a job's last attempt, as its handler reports it."""

    fraction: float | None = Field(
        description="Fraction of its work that is done, 0 to 1; null if the handler reports none."
    )
    note: str = Field(examples=["page 12 of 30"])
    reported_at: Timestamp


class ObservedChange(ApiModel):
    """A change of a job that is watched: a new state, or progress."""

    seen_at: Timestamp
    job_id: str
    state: State | None = Field(default=None, description="The new state; null for progress.")
    progress: ProgressView | None = None


class JobStatus(ApiModel):
    """State of a job."""

    job_id: str = Field(examples=[EXAMPLE_JOB_ID])
    job_type: str
    state: State
    attempts: int = Field(description="Attempts used up.")
    max_attempts: int
    reason: str | None = Field(description="Why the job died, waits or was returned.")
    error_type: str | None
    error_message: str | None
    created_at: Timestamp
    queued_at: Timestamp | None
    started_at: Timestamp | None
    finished_at: Timestamp | None
    run_at: Timestamp | None
    expires_at: Timestamp | None
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
    tags: dict[str, str] = Field(description="Names and values to find the job by.")
    parent_id: str | None
    join_id: str | None = Field(description="Id of the job that waits for this one.")
    pipeline: str | None
    operation_id: str | None = Field(description="The backfill or rerun that published it.")
    redrives: int
    crashes: int
    cancel_asked_at: Timestamp | None = Field(
        description="When cancellation of the running job was requested. It will not run again."
    )
    worker_id: str | None = Field(description="Id of the worker that runs it, or ran it last.")
    updated_at: Timestamp


class JoinView(ApiModel):
    """Progress of a job's wait for other jobs."""

    when_dead: WhenDead = Field(description="What the job does if some of them are dead.")
    total: int
    open: int = Field(description="Those that have not ended.")
    dead: int
    cancelled: int
    held: bool = Field(description="True if more jobs may be added, for example by a backfill.")
    fulfilled_at: Timestamp | None = Field(description="When all of them had ended.")


class RoomWait(ApiModel):
    """The named limit that a job waits for."""

    name: str = Field(description="Name of the limit.", examples=["openai"])
    key: str = Field(
        description="Tenant, account, … that it is counted for; empty if the limit has no keys."
    )
    since: Timestamp = Field(description="When it was first put off.")
    times: int = Field(description="How often the job was put off.")
    back_at: Timestamp = Field(description="When it comes back to its queue at the latest.")


class JobActionNote(ApiModel):
    """What a bulk action did to a job."""

    operation_id: str = Field(description="The bulk action.")
    action: JobAction = Field(description="What it did.")
    acted_at: Timestamp = Field(description="When.")
    new_job_id: str | None = Field(description="Of a rerun: the job that does it again.")
    before: dict[str, Any] | None = Field(description="Of a move: its lane and priority before.")


class JobDetails(JobView, JobProgress):
    """Everything that is known of a job."""

    payload: dict[str, Any]
    metadata: dict[str, Any] = Field(description="The metadata of its message.")
    result: dict[str, Any] | None = Field(
        description="Result of the job, including results in the file storage up to 8 MiB."
    )
    join: JoinView | None = Field(
        description="For a job that waits, or has waited, for other jobs."
    )
    timeline: list[AttemptView] = Field(description="Oldest first.")
    checkpoint_at: Timestamp | None = Field(
        description="When an attempt last stored a checkpoint for the next one."
    )
    rerun_of: str | None = Field(description="The job that it does again.")
    actions: list[JobActionNote] = Field(
        description="What bulk actions did to it: cancelled, rerun or moved; the latest first."
    )
    trace_id: str | None = Field(description="Id of its trace, from `traceparent`.")
    waits_for_room: RoomWait | None = Field(
        description="The named limit in which it waits for room; null where it waits in none."
    )
    pause: PauseView | None = Field(
        description="The pause that keeps it from beginning; null where none does."
    )
    pipeline_jobs: list[PipelineJob] = Field(
        description="The other jobs of its pipeline, oldest first; 1,000 at most."
    )


class JobPage(ApiModel):
    """Part of a listing. It can have fewer jobs than `limit`, or none, although more follow."""

    jobs: list[JobView]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page."
    )
    examined_since: Timestamp | None = Field(
        None,
        description="Where no index finds the jobs that match, a page examines the next 20,000: "
        "those made since then. Otherwise null.",
    )


class CancelledJob(ApiModel):
    """Result of a cancellation."""

    job_id: str = Field(examples=[EXAMPLE_JOB_ID])
    state: State
    stopping: bool = Field(
        description="True if the job is running and its worker has been told to stop it."
    )


class ReleasedJob(ApiModel):
    """A job that no longer waits for the dead jobs among those that it waits for."""

    job_id: str = Field(examples=[EXAMPLE_JOB_ID])
    open: int = Field(description="Jobs that it still waits for; with 0 it is published at once.")
    dead: int = Field(description="Dead jobs that it no longer waits for.")
