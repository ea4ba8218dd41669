"""What goes in and out of `/admin/dead/groups` and `/admin/dead/redrives`, as JSON."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from switchyard.api.models.base import ApiModel, JsonObject, Timestamp
from switchyard.api.models.jobs import AttemptView
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.records.bulk import MAX_RATE, MIN_RATE, BulkState

EXAMPLE_ID = "redrive-3fa9c01b22"


class DeadLetterView(ApiModel):
    """A dead letter, as in the index."""

    id: str
    job_id: str | None
    job_type: str | None
    lane: str | None
    routing_key: str | None
    worker: str | None
    reason: str = Field(examples=["exhausted"])
    error_type: str | None
    error_message: str | None
    attempts: int
    redrives: int
    copies: int = Field(description="Number of letters with this id since it last started to wait.")
    group: str | None = Field(description="Id of the group of letters with the same cause.")
    state: str = Field(description="waiting, redriven, purged or dropped.")
    first_at: Timestamp | None
    dead_at: Timestamp | None
    updated_at: Timestamp | None


class LetterEditView(ApiModel):
    """A change of a dead letter that was redriven."""

    redrive: str = Field(description="Id of the redrive that sent it.")
    redrives: int = Field(description="Redrives of the job before this one.")
    routing_key: str
    edited_by: str = Field(description="Who changed it.")
    edited_at: Timestamp = Field(description="When it was changed.")
    undone_at: Timestamp | None = Field(description="When the change was undone.")
    original: Any = Field(description="The message before, as JSON; null if it was not JSON.")
    edited: Any = Field(description="The message after, as JSON.")


class DeadLetterDetails(DeadLetterView):
    """A dead letter with all that it carries."""

    traceback: str | None
    headers: dict[str, Any]
    body: str = Field(description="Body as on the broker; bytes that are not UTF-8 are replaced.")
    timeline: list[AttemptView] = Field(description="Attempts of its job, oldest first.")
    edits: list[LetterEditView] = Field(description="Changes by redrives, oldest first.")


class DeadLetterPage(ApiModel):
    """Part of a listing."""

    dead_letters: list[DeadLetterView]
    next_cursor: str | None


class DeadGroupView(ApiModel):
    """Dead letters of one cause."""

    group: str = Field(examples=["ab12cd34ef"])
    count: int
    first_at: Timestamp | None
    last_at: Timestamp | None
    trend: list[int] = Field(description="Deaths in each of the last 24 hours, latest last.")
    job_type: str | None
    reason: str = Field(examples=["exhausted"])
    error_type: str | None
    message: str | None = Field(
        description="With placeholders for numbers, ids, paths, times, addresses, quoted text."
    )
    location: str | None = Field(description="Function of the job's code that raised the error.")
    sample_id: str = Field(description="Id of the latest dead letter.")
    sample_message: str | None


class DeadGroupList(ApiModel):
    groups: list[DeadGroupView]


class LetterChange(ApiModel):
    """What a redrive changes in each letter; checked against the job type of the letter."""

    model_config = ConfigDict(extra="forbid")

    payload: JsonObject | None = Field(default=None, description="Replaces the old payload.")
    merge: JsonObject | None = Field(
        default=None, description="A JSON merge patch (RFC 7396) for the payload."
    )
    priority: int | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    to: str | None = Field(
        default=None, pattern=patterns.ROUTING_KEY, description="New routing key."
    )

    def to_change(self) -> Change:
        return Change(**self.model_dump())


class NewRedrive(RequestModel):
    """A redrive to be started; docs/redrive.md explains it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "filter": {"group": "ab12cd34ef"},
                "canary": 5,
                "rate": 50,
                "halt_on": 0.2,
                "reason": "the server is back",
            }
        },
    )

    filter: LetterFilter = Field(default_factory=LetterFilter)
    all: bool = Field(
        default=False, description="All dead letters. Required if there is no filter."
    )
    change: LetterChange = Field(default_factory=LetterChange)
    limit: int | None = Field(
        default=None, ge=1, le=2_000_000_000, description="Maximum number of letters, oldest first."
    )
    canary: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Send this many first, and the others only after all of these have succeeded.",
    )
    rate: float | None = Field(
        default=None,
        ge=MIN_RATE,
        le=MAX_RATE,
        description="Maximum number of letters sent per second; null: no limit.",
    )
    halt_on: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Fraction (0 to 1) of finished jobs that may fail again before the "
        "redrive halts.",
    )
    from_ledger: bool = Field(
        default=False, description="Use the ledger's copy of letters that the broker no longer has."
    )
    reason: str | None = Field(default=None, max_length=1000, pattern=patterns.PLAIN)
    dry_run: bool = Field(
        default=False, description="Change nothing; return what would be sent where."
    )

    @model_validator(mode="after")
    def _check_filter_or_all(self) -> Self:
        if self.filter.is_empty != self.all:
            raise ValueError("give a filter, or all: true, and not both")
        return self


class RedriveRate(RequestModel):
    """A new rate; null removes the limit."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"rate": 20}})

    rate: float | None = Field(
        ge=MIN_RATE,
        le=MAX_RATE,
        description="Maximum number of letters sent per second; null: no limit.",
    )


class RedriveDifference(ApiModel):
    """Difference that a change would make to a letter."""

    letter_id: str
    lines: list[str] = Field(description="Before and after, as a unified diff; none: no change.")


class RedrivePlan(ApiModel):
    """What a redrive would do."""

    matched: int
    redriven: int = Field(description="Letters that would be sent.")
    dropped: int = Field(description="Letters whose jobs no longer need a redrive.")
    invalid: int = Field(description="Letters that would be invalid with the change.")
    missing: int = Field(default=0, description="Ids of the filter that no letter has.")
    routes: dict[str, int] = Field(
        description="Letters by routing key.", examples=[{"hot.summarize_content": 12}]
    )
    notes: list[str] = Field(description="One line per letter; the first 100.")
    differences: list[RedriveDifference] = Field(
        default_factory=list, description="With a change: the first five letters."
    )


class LetterOperationView(ApiModel):
    """An operation on many dead letters: who started it and why, and its state."""

    id: str = Field(examples=[EXAMPLE_ID])
    title: str
    state: BulkState
    note: str | None = Field(description="What it is waiting for, or the error.")
    reason: str | None
    created_by: str
    created_at: Timestamp | None
    started_at: Timestamp | None
    finished_at: Timestamp | None
    spec: dict[str, Any]


class PurgeView(LetterOperationView):
    """A purge: who started it and why, progress and results."""

    total: int | None = Field(description="Letters in `jobs.dead` when it started.")
    scanned: int
    purged: int


class PurgePlan(ApiModel):
    """What a purge would do."""

    total: int | None = Field(description="Letters in `jobs.dead`.")
    scanned: int
    purged: int = Field(description="Letters that would be purged.")


class RedriveView(LetterOperationView):
    """A redrive: who started it and why, progress and results."""

    rate: float | None
    total: int | None = Field(description="Letters that matched when it started.")
    redriven: int
    dropped: int
    invalid: int
    succeeded: int
    failed: int = Field(description="Letters whose jobs died again.")
    undone: int
    unfinished: int
    notes: list[str]


class RedrivePage(ApiModel):
    """Part of a listing."""

    redrives: list[RedriveView]
    next_cursor: str | None
