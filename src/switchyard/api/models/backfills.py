"""What goes in and out of `/backfills`, as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from switchyard.api.models import jobs as models
from switchyard.broker.lanes import BACKFILL
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.backfill.formats import FileFormat
from switchyard.services.records import BulkState, State, WhenDead
from switchyard.services.records.bulk import LEAST_RATE, MOST_RATE, MOST_WAITING
from switchyard.services.records.requests import MAX_NOTIFY_URL

BACKFILL_ID = r"^[a-z]{1,32}-[0-9a-f]{4,32}$"
EXAMPLE_ID = "backfill-3fa9c01b22"


BUDGET = Field(
    default=None,
    gt=0,
    le=1_000_000_000,
    description="What its calls of language models may cost, in the currency of the prices' file.",
)


class BackfillPlan(BaseModel):
    """What is gone through, and what becomes of each item; docs/backfills.md explains it."""

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
        pattern=models.NAME, description="arxiv, github, huggingface, file, documents, or your own."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="The source's: for arxiv `query`, `from`, `to`, `full_text`; for file `key` "
        "and `format`, as `POST /backfills/inputs` answers; for documents `state`, `source`, "
        "`media_type`, `since`, `until`.",
    )
    job_type: str | None = Field(
        default=None, pattern=models.NAME, description="The source's own where not given."
    )
    lane: str = Field(default=BACKFILL.name, pattern=models.NAME)
    payload: dict[str, Any] | None = Field(
        default=None,
        description="Template of the payloads: `{field}` becomes the item's value. The item itself "
        "where not given.",
    )
    priority: int | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    low: int | None = Field(
        default=None, ge=0, le=MOST_WAITING, description="Jobs in a queue at which it goes on."
    )
    high: int | None = Field(
        default=None, ge=1, le=MOST_WAITING, description="Jobs in a queue at which it waits."
    )
    weight: float = Field(
        default=1.0,
        ge=0.001,
        le=1000,
        description="Its part of the room in a queue that several backfills share, against theirs.",
    )
    until: models.Moment | None = Field(
        default=None, description="Nothing is published after this time."
    )
    then: str | None = Field(
        default=None,
        pattern=r"^([a-z][a-z0-9_]{0,63}\.)?[a-z][a-z0-9_]{0,63}$",
        description="A job that follows when all its jobs, and all that followed from them, have "
        "ended: a job type, or `<lane>.<job_type>`.",
    )
    then_payload: dict[str, Any] = Field(default_factory=dict, description="Of that job.")
    when_dead: WhenDead = Field(
        default="wait", description="What becomes of that job when some are dead."
    )
    notify_url: str | None = Field(
        default=None,
        max_length=MAX_NOTIFY_URL,
        pattern="^https?://",
        description="Is told, signed, when the backfill has ended.",
    )
    rate: float | None = Field(
        default=None, ge=LEAST_RATE, le=MOST_RATE, description="Jobs a second at most."
    )
    max_open: int | None = Field(
        default=None, ge=1, le=2_000_000_000, description="Unfinished jobs of it at most."
    )
    budget: float | None = BUDGET
    reason: str | None = Field(default=None, max_length=1000, pattern=models.PLAIN)


class BackfillLimits(BaseModel):
    """Limits to change; those that are left out stay. null takes a limit away."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"rate": 5, "max_open": None}}
    )

    rate: float | None = Field(
        default=None, ge=LEAST_RATE, le=MOST_RATE, description="Jobs a second at most."
    )
    max_open: int | None = Field(default=None, ge=1, le=2_000_000_000)
    budget: float | None = BUDGET


class Cancellation(BaseModel):
    """How a backfill is cancelled."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"jobs": True}})

    jobs: bool = Field(default=False, description="Also its jobs that have not begun.")


class CancelledBackfill(BaseModel):
    """A backfill that was cancelled."""

    id: str = Field(examples=[EXAMPLE_ID])
    state: BulkState
    cancelled_jobs: int


class BackfillInput(BaseModel):
    """A file that was stored: the options of a backfill from the source `file`."""

    key: str = Field(examples=["backfills/0b0f6c1e6a5e4a0e.jsonl"])
    format: FileFormat
    name: str | None


class JobPreview(BaseModel):
    """A job that a backfill would publish."""

    routing_key: str
    priority: int
    payload: dict[str, Any]


class CostPreview(BaseModel):
    """The most that a backfill's calls of language models are likely to come to."""

    jobs: int | None = Field(description="All of it; null: the rest is for one job.")
    input_tokens: int
    output_tokens: int
    cost: float | None = Field(description="null where the model has no price.")
    currency: str = Field(examples=["USD"])
    assumption: str = Field(description="What the guess takes for granted.")


class BackfillPreview(BaseModel):
    """What a backfill would do."""

    title: str
    total: int | None = Field(description="Items in all; null where the source does not know.")
    jobs: list[JobPreview] = Field(description="The first jobs.")
    unusable: list[str] = Field(description="Why some of the first items would be skipped.")
    cost: CostPreview | None = Field(
        description="Of its calls of language models; null where its jobs make none themselves."
    )


class DeathCause(BaseModel):
    """Jobs of a backfill that died of one cause."""

    count: int
    job_type: str
    reason: str | None
    error_type: str | None
    sample_id: str
    sample_message: str | None


class BackfillView(BaseModel):
    """A backfill: how it was started, how far it is, and what came of it."""

    id: str = Field(examples=[EXAMPLE_ID])
    title: str
    state: BulkState
    note: str | None = Field(description="What it waits for, or what went wrong.")
    reason: str | None
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    rate: float | None = Field(description="Jobs a second at most.")
    max_open: int | None
    budget: float | None = Field(description="What its calls of language models may cost.")
    plan: dict[str, Any] = Field(description="As it was asked for.")
    total: int | None = Field(description="Items in all; null where the source does not know.")
    read: int
    published: int
    skipped: int
    repeated: int = Field(
        description="Items whose key another one had before; known once all is published."
    )
    exhausted: bool = Field(description="All is published that will be.")
    notes: list[str] = Field(description="Why items were skipped; the first 50.")
    jobs: dict[State, int] = Field(description="Its jobs by state.")
    followers: dict[State, int] = Field(description="What followed from them, by state.")
    jobs_per_second: float | None = Field(description="Finished ones, in the last minute.")
    seconds_to_go: tuple[float, float] | None = Field(description="The best and the worst guess.")
    seconds: float | None = Field(description="From its start to its end, or to now.")
    dead: list[DeathCause] = Field(description="Dead jobs by cause, followers included.")
    then_id: str | None = Field(description="The job that follows its end.")


class BackfillPage(BaseModel):
    """A page of the backfills, newest first."""

    backfills: list[BackfillView]
    next_cursor: str | None
