"""What goes in and out of `/backfills`, as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from switchyard.api.models.base import ApiModel, JsonObject, Moment, Timestamp
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.broker.lanes import BACKFILL
from switchyard.broker.message import MAX_PRIORITY, Tags
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.records.bulk import (
    MAX_RATE,
    MAX_WAITING,
    MAX_WEIGHT,
    MIN_RATE,
    BulkState,
)
from switchyard.services.engine.records.joins import WhenDead
from switchyard.services.engine.records.requests import MAX_NOTIFY_URL
from switchyard.services.engine.records.states import State

EXAMPLE_ID = "backfill-3fa9c01b22"


RATE = Field(
    default=None,
    ge=MIN_RATE,
    le=MAX_RATE,
    description="Maximum number of jobs published per second; null: no limit.",
)
MAX_OPEN = Field(
    default=None,
    ge=1,
    le=2_000_000_000,
    description="Maximum number of its jobs that are unfinished at the same time; null: no limit.",
)
SHARE = "Relative share of the queue when several backfills use it: 2 gets twice as much as 1."
BUDGET = Field(
    default=None,
    gt=0,
    le=1_000_000_000,
    description="Maximum total cost of its language model calls, in the currency of "
    "JOBS_LLM_PRICES.",
)


class BackfillPlan(RequestModel):
    """Source of a backfill, and the job for each item (docs/backfills.md)."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "source": "arxiv",
                "options": {"query": "cat:cs.DB", "from": "2024-01-01", "to": "2024-12-31"},
                "rate": 20,
                "reason": "the year 2024 was missing",
            }
        },
    )

    source: str = Field(
        pattern=patterns.NAME,
        description="Name of the source: arxiv, github, huggingface, file, documents, or your own.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the source: for arxiv `query`, `from`, `to`, `full_text`; for file "
        "`key` and `format`, as in the answer of `POST /backfills/inputs`; for documents `state`, "
        "`source`, `media_type`, `since`, `until`.",
    )
    job_type: str | None = Field(
        default=None,
        pattern=patterns.NAME,
        description="Job type to publish for each item. Default: the source's own.",
    )
    lane: str = Field(default=BACKFILL.name, pattern=patterns.NAME)
    payload: JsonObject | None = Field(
        default=None,
        description="Template of the payload: `{field}` is replaced by the item's value. "
        "Default: the item itself.",
    )
    priority: int | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    tags: Tags = Field(
        default_factory=dict, description="Tags of each job and its follow-up jobs; at most 16."
    )
    low: int | None = Field(
        default=None,
        ge=0,
        le=MAX_WAITING,
        description="Queue length below which publishing continues. Default: half of `high`.",
    )
    high: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WAITING,
        description="Queue length at which publishing waits. Default: half of the queue's limit.",
    )
    weight: float = Field(default=1.0, ge=1 / MAX_WEIGHT, le=MAX_WEIGHT, description=SHARE)
    until: Moment | None = Field(default=None, description="Publishing stops at this time.")
    then: str | None = Field(
        default=None,
        pattern=patterns.TYPE_OR_KEY,
        description="Job to publish once, after all jobs of the backfill and their follow-up "
        "jobs have ended: a job type, or `<lane>.<job_type>`.",
    )
    then_payload: JsonObject = Field(default_factory=dict, description="Payload of the `then` job.")
    when_dead: WhenDead = Field(
        default="wait",
        description="What the `then` job does if jobs are dead: `wait` until they are "
        "redriven or released, `go_on` (run without them), or `fail`.",
    )
    notify_url: str | None = Field(
        default=None,
        max_length=MAX_NOTIFY_URL,
        pattern=patterns.URL,
        description="Address that gets a signed HTTP POST when the backfill has ended "
        "(docs/notices.md).",
    )
    rate: float | None = RATE
    max_open: int | None = MAX_OPEN
    budget: float | None = BUDGET
    reason: str | None = Field(default=None, max_length=1000, pattern=patterns.PLAIN)


class BackfillLimits(RequestModel):
    """Limits to change; omitted ones stay as they are. null removes a limit, but not the weight."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"rate": 5, "max_open": None}}
    )

    rate: float | None = RATE
    max_open: int | None = MAX_OPEN
    budget: float | None = BUDGET
    weight: float = Field(default=1.0, ge=1 / MAX_WEIGHT, le=MAX_WEIGHT, description=SHARE)


class Cancellation(RequestModel):
    """How a backfill is cancelled."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"jobs": True}})

    jobs: bool = Field(
        default=False, description="Also cancel its published jobs that have not started."
    )


class CancelledBackfill(ApiModel):
    """A backfill that was cancelled."""

    id: str = Field(examples=[EXAMPLE_ID])
    state: BulkState
    cancelled_jobs: int


class BackfillInput(ApiModel):
    """A stored file. A backfill of the source `file` takes `key` and `format` as its options."""

    key: str = Field(examples=["backfills/0b0f6c1e6a5e4a0e.jsonl"])
    format: FileFormat
    name: str | None


class JobPreview(ApiModel):
    """A job that a backfill would publish."""

    routing_key: str
    priority: int
    payload: dict[str, Any]


class CostPreview(ApiModel):
    """Estimated upper bound of what a backfill's calls of language models cost."""

    jobs: int | None = Field(description="Number of jobs; null if the estimate is for one job.")
    input_tokens: int
    output_tokens: int
    cost: float | None = Field(description="null if the model has no price.")
    currency: str = Field(examples=["USD"])
    assumption: str = Field(description="Assumptions of the estimate.")


class BackfillPreview(ApiModel):
    """What a backfill would do."""

    title: str
    total: int | None = Field(
        description="Total number of items; null if the source does not know it."
    )
    jobs: list[JobPreview] = Field(description="The first jobs.")
    unusable: list[str] = Field(description="Why some of the first items would be skipped.")
    cost: CostPreview | None = Field(
        description="Estimated cost of its language model calls; null if its jobs make none."
    )


class DeathCause(ApiModel):
    """Jobs of a backfill that died of one cause."""

    count: int
    job_type: str
    reason: str | None
    error_type: str | None
    sample_id: str
    sample_message: str | None


class BackfillView(ApiModel):
    """A backfill: its plan, progress and results."""

    id: str = Field(examples=[EXAMPLE_ID])
    title: str
    state: BulkState
    note: str | None = Field(description="What it is waiting for, or the error.")
    reason: str | None
    created_by: str
    created_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None
    rate: float | None = Field(
        description="Maximum number of jobs published per second; null: no limit."
    )
    max_open: int | None
    budget: float | None = Field(description="Maximum total cost of its language model calls.")
    plan: dict[str, Any] = Field(
        description="The plan as it was submitted, with its weight as it is now."
    )
    total: int | None = Field(
        description="Total number of items; null if the source does not know it."
    )
    read: int
    published: int
    skipped: int
    repeated: int = Field(
        description="Items with the same key as an earlier item; known after publishing has ended."
    )
    exhausted: bool = Field(description="True if all items have been published.")
    notes: list[str] = Field(description="Why items were skipped; the first 50.")
    jobs: dict[State, int] = Field(description="Its jobs by state.")
    followers: dict[State, int] = Field(description="Their follow-up jobs by state.")
    jobs_per_second: float | None = Field(
        description="Finished jobs per second within the last minute."
    )
    seconds_to_go: tuple[float, float] | None = Field(description="Lower and upper estimate.")
    seconds: float | None = Field(description="Seconds from its start to its end, or until now.")
    dead: list[DeathCause] = Field(description="Dead jobs by cause, followers included.")
    then_id: str | None = Field(description="Id of the `then` job.")


class BackfillPage(ApiModel):
    """A page of the backfills, newest first."""

    backfills: list[BackfillView]
    next_cursor: str | None
