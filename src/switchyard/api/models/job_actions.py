"""What goes in and out of `/jobs/actions`, as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from switchyard.api.models.base import ApiModel, Moment, Timestamp
from switchyard.api.models.dead import LetterChange
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.broker.message import MAX_PRIORITY, Tags
from switchyard.services.engine.records.bulk import MAX_RATE, MIN_RATE, BulkState
from switchyard.services.engine.records.job_actions import JobAction
from switchyard.services.engine.records.requests import (
    MAX_PAYLOAD_PATH,
    JobFilter,
    PayloadField,
)
from switchyard.services.engine.records.states import State

EXAMPLE_ACTION = "rerun-3fa9c01b22"
_Name = Annotated[str | None, Field(pattern=patterns.NAME)]
_Plain = Annotated[str | None, Field(min_length=1, max_length=200, pattern=patterns.PLAIN)]
_JobId = Annotated[str | None, Field(pattern=patterns.JOB_ID)]
_OperationId = Annotated[str | None, Field(pattern=patterns.BACKFILL_ID)]


class JobFilterBody(RequestModel):
    """Which jobs: those that fit every field that is given. The same as the query of `GET /jobs`,
    and `ids`."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[str, Field(pattern=patterns.JOB_ID)]] = Field(
        default_factory=list, max_length=10_000
    )
    state: State | None = None
    lane: _Name = None
    job_type: _Name = None
    worker: _Name = None
    source: _Plain = None
    parent_id: _JobId = None
    pipeline: _JobId = Field(default=None, description="A run's first job: all jobs of that run.")
    operation_id: _OperationId = Field(
        default=None, description="New jobs that this backfill or rerun has published."
    )
    acted_by: _OperationId = Field(
        default=None, description="Jobs that this bulk action has changed, or rerun as new jobs."
    )
    since: Moment | None = Field(default=None, description="Created at or after this time.")
    until: Moment | None = Field(default=None, description="Created before this time.")
    finished_since: Moment | None = Field(default=None, description="Ended at or after this time.")
    finished_until: Moment | None = Field(default=None, description="Ended before this time.")
    slower_than: float | None = Field(
        default=None,
        ge=0,
        le=1e9,
        description="Only jobs whose last attempt took more than this many seconds.",
    )
    error: _Plain = Field(
        default=None, description="Text in the error's type, its message or the reason."
    )
    payload: str | None = Field(
        default=None,
        max_length=MAX_PAYLOAD_PATH + 200,
        pattern=patterns.PLAIN,
        description="PATH=VALUE: jobs whose payload has that value there, as text.",
        examples=["document.id=42"],
    )

    tags: Tags = Field(default_factory=dict, description="Only jobs with all of these tags.")

    @model_validator(mode="after")
    def _check_payload_path(self) -> Self:
        if self.payload is not None:
            PayloadField.parse(self.payload)
        return self

    def to_filter(self) -> JobFilter:
        """Return the filter of the ledger for these fields."""
        values = self.model_dump(exclude_none=True)
        moments = ("since", "until", "finished_since", "finished_until")
        values |= {name: values[name].timestamp() for name in moments if name in values}
        return JobFilter.from_json(values)


class NewJobAction(RequestModel):
    """A bulk action: jobs to cancel, to rerun, or to move."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "action": "rerun",
                "filter": {"source": "api:0b0f6c1e", "slower_than": 5},
                "reason": "the model was slow",
                "dry_run": True,
            }
        },
    )

    action: JobAction = Field(description="What to do.")
    filter: JobFilterBody = Field(default_factory=JobFilterBody, description="Which jobs.")
    change: LetterChange = Field(
        default_factory=LetterChange, description="For `rerun`: what the new jobs have instead."
    )
    lane: _Name = Field(default=None, description="For `move`: the new lane.")
    priority: int | None = Field(
        default=None, ge=0, le=MAX_PRIORITY, description="For `move`: the new priority."
    )
    limit: int | None = Field(
        default=None, ge=1, le=2_000_000_000, description="Maximum number of jobs, oldest first."
    )
    rate: float | None = Field(
        default=None, ge=MIN_RATE, le=MAX_RATE, description="Jobs a second; null: no limit."
    )
    canary: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="For `rerun`: publish this many first, and the others only after all of these "
        "have succeeded.",
    )
    halt_on: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="For `rerun`: halt if more than this fraction (0 to 1) of the new jobs that "
        "have ended are dead.",
    )
    reason: str | None = Field(default=None, max_length=1000, pattern=patterns.PLAIN)
    dry_run: bool = Field(
        default=False, description="Change nothing; return how many jobs fit, and some of them."
    )


class JobActionRate(RequestModel):
    """A new rate; null removes the limit."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"rate": 20}})

    rate: float | None = Field(
        ge=MIN_RATE, le=MAX_RATE, description="Jobs a second; null: no limit."
    )


class JobActionExample(ApiModel):
    """A job that an action would change."""

    job_id: str
    routing_key: str
    state: State
    source: str
    created_at: Timestamp


class JobActionPlan(ApiModel):
    """What a bulk action would do."""

    matched: int = Field(description="Jobs that fit and can be changed; a million at most.")
    examples: list[JobActionExample] = Field(description="The oldest.")


class JobActionView(ApiModel):
    """A bulk action: who started it and why, progress and results."""

    id: str = Field(examples=[EXAMPLE_ACTION])
    action: JobAction = Field(description="What is done.")
    title: str
    state: BulkState
    note: str | None = Field(description="What it is waiting for, or the error.")
    reason: str | None
    created_by: str
    created_at: Timestamp | None
    started_at: Timestamp | None
    finished_at: Timestamp | None
    rate: float | None
    total: int | None = Field(description="Jobs that matched when it began.")
    done: int = Field(description="Jobs that were cancelled (or told to stop), rerun, or moved.")
    stopping: int = Field(
        description="Of the cancelled jobs: those that ran and were told to stop."
    )
    skipped: int = Field(description="Jobs left as they are; the notes say why.")
    succeeded: int = Field(description="New jobs that have succeeded.")
    failed: int = Field(description="New jobs that have died.")
    unfinished: int = Field(description="New jobs that have not ended.")
    notes: list[str]
    spec: dict[str, Any]


class JobActionPage(ApiModel):
    """Part of a listing."""

    actions: list[JobActionView] = Field(description="Newest first.")
    next_cursor: str | None
