"""What the service reports about itself, as JSON: health, job types, kinds of problems, limits,
keys and the space that it takes; and its answers to webhooks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from switchyard.api.models.base import ApiModel, Timestamp


class ComponentView(ApiModel):
    """A dependency of the service."""

    state: Literal["ok", "away", "full", "blocked"] = Field(
        description="`full`: its disk has no room; `blocked`: a memory or disk alarm of the broker."
    )
    latency_ms: float = Field(description="Milliseconds until it answered, or until the timeout.")


class Readiness(ApiModel):
    """Whether the service can take work: all of its components but `events` are needed."""

    status: Literal["ok", "away"]
    components: dict[str, ComponentView] = Field(
        description="broker and events (where there is a broker), ledger and storage. While "
        "events are away, `/events` is silent, and everything else works."
    )


class Liveness(ApiModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class JobTypeView(ApiModel):
    """A job type, with the schema of its payload."""

    job_type: str = Field(examples=["summarize_content"])
    worker: str
    routing_keys: list[str] = Field(examples=[["hot.summarize_content"]])
    timeout: float = Field(description="Seconds that one attempt may take.")
    max_attempts: int
    version: int = Field(description="Version of its payload: 1 unless the type names another.")
    payload: dict[str, Any] = Field(description="JSON Schema of the payload.")


class JobTypes(ApiModel):
    """Every job type."""

    job_types: list[JobTypeView]


class ProblemKind(ApiModel):
    """A kind of problem."""

    type: str
    status: int
    title: str


class ProblemKinds(ApiModel):
    """Every kind of problem; docs/api.md explains them."""

    problems: list[ProblemKind]


class LimitView(ApiModel):
    """A named limit as it is now; one for each of its keys."""

    name: str = Field(examples=["openai"])
    key: str = Field(description="Tenant, account, … that is counted; empty if it has no keys.")
    concurrency: int | None = Field(description="Maximum number of running jobs; null: no limit.")
    per_minute: int | None = Field(description="Maximum number of jobs started per minute.")
    tokens_per_minute: int | None
    in_use: int = Field(description="Jobs that run.")
    last_minute: int = Field(description="Jobs that started in the last minute.")
    tokens_last_minute: int
    waiting: int = Field(description="Jobs that wait for room.")
    next_room: float | None = Field(
        description="Seconds until there is room for the job that is next in line, or for a job of "
        "one token if none waits. 0: there is room now; null: not before a job ends."
    )


class LimitList(ApiModel):
    """Limits that were used in the last hour, by name and key; 1,000 at most, those used last."""

    limits: list[LimitView]


class KeyLimitsView(ApiModel):
    """What a key may use; null: no limit."""

    models: list[str] = Field(description="Patterns of the models that it may name; empty: all.")
    max_priority: int | None = Field(description="Highest priority of its requests.")
    requests_per_minute: int | None = Field(description="Requests a minute.")
    tokens_per_minute: int | None = Field(description="Tokens a minute.")
    budget_per_day: float | None = Field(description="What its requests may cost a day.")
    budget_per_month: float | None = Field(description="What its requests may cost a month.")


class KeyView(ApiModel):
    """A key of the HTTP API, as `jobctl keys` prints it."""

    id: str = Field(description="Names the key in logs and commands.")
    name: str = Field(description="The user or program that uses it.")
    scopes: list[str]
    created_at: Timestamp
    last_used_at: Timestamp | None = Field(description="To about a minute.")
    revoked_at: Timestamp | None
    limits: KeyLimitsView | None = Field(
        default=None,
        description="Limits in the OpenAI-compatible API; a key that has them works nowhere else.",
    )


class DeliveryView(ApiModel):
    """Result of a webhook delivery."""

    job_id: str | None = Field(default=None, description="The job that it asked for.")
    duplicate: bool = Field(default=False, description="True if it was known: nothing was done.")
    ignored: str | None = Field(default=None, description="Why nothing was done.")


class TableUsageView(ApiModel):
    """A table of the ledger."""

    name: str = Field(examples=["jobs"])
    rows: int = Field(description="Number of rows; on PostgreSQL its estimate.")
    bytes: int | None = Field(description="With its indexes; null where the database does not say.")
    since: Timestamp | None = Field(description="When its oldest row was made, where known.")
    rows_of_last_day: int | None = Field(description="Rows of the last 24 hours, where known.")


class LedgerUsageView(ApiModel):
    """The ledger."""

    bytes: int = Field(description="Size of its file, or of the database on the server.")
    free_bytes: int = Field(description="Free space in the file, used before it grows.")
    tables: list[TableUsageView] = Field(description="The largest first.")


class FilesUsageView(ApiModel):
    """Stored files of one kind."""

    kind: str = Field(description="The first part of their keys.", examples=["intermediate"])
    files: int = Field(description="How many.")
    bytes: int = Field(description="Their sizes together.")
    since: Timestamp | None = Field(description="When the oldest was written.")
    bytes_of_last_day: int = Field(description="Of those that were written in the last 24 hours.")


class QueueUsageView(ApiModel):
    """A queue of the broker."""

    name: str = Field(examples=["hot.ingest"])
    messages: int = Field(description="Ready, and delivered but not acknowledged.")
    bytes: int = Field(description="Of the messages' bodies.")


class UsageView(ApiModel):
    """How much space each part of the system takes."""

    ledger: LedgerUsageView | None = Field(description="The database of jobs.")
    files: list[FilesUsageView] | None = Field(description="The largest kind first.")
    index_bytes: int | None = Field(description="The search index.")
    queues: list[QueueUsageView] | None = Field(description="The largest first.")
    missing: dict[str, str] = Field(description="Why a part is null, by its name.")
