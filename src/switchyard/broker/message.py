"""The message: what travels through `jobs.topic`, and nothing about what it means.

The JSON is that of requirement T8 (docs/requirements.md): `job_id`, `job_type`, `priority`,
`payload`, `metadata`. Fields that this version does not know survive a round trip, so an older
worker never strips what a newer publisher (or one in another language) has added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import uuid4

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from switchyard.broker import patterns
from switchyard.broker.errors import MalformedMessage
from switchyard.broker.times import check_moment, nearest_moment
from switchyard.broker.validation import list_errors

MAX_PRIORITY = 10
MAX_FIRST_STAGE_PRIORITY = MAX_PRIORITY - 1
"""Highest AMQP priority of a job that begins a pipeline: one below MAX_PRIORITY, so that later
stages can go before it."""
DEFAULT_MAX_ATTEMPTS = 3
MAX_SAFE_BRACKETS = 150
"""JSON with at most this many opening brackets is never nested too deep for a reader: some readers
take 200 levels, some 250."""
MAX_DIGITS = 4_300
"""Digits of an integer: Python reads no more by default."""
FIRST_PAYLOAD_VERSION, MAX_PAYLOAD_VERSION = 1, 1_000_000
"""Versions of a job type's payload format; a type that names none has the first."""
MAX_BODY_BYTES = 1024 * 1024
"""Largest body accepted, in bytes. RabbitMQ 4 refuses more than 16 MiB; a job that needs a
large input puts it in storage and carries a reference."""

MAX_NEW_BODY_BYTES = MAX_BODY_BYTES - 4096
"""Largest body of a new job, in bytes. The remaining 4096 are for what is written into it later:
attempts, times, its trace."""

JobId = Annotated[str, Field(pattern=patterns.JOB_ID)]
"""Identifies a job for ever: AMQP `message_id`, ledger key, part of storage paths."""

JobTypeName = Annotated[str, Field(pattern=patterns.NAME)]

MAX_TAGS = 16
"""Tags of one job."""
MAX_TAG_VALUE = 100
"""Characters."""


def _check_tag_count(tags: object) -> object:
    """Refuse too many tags before each of them is read: a body may have a hundred thousand."""
    if isinstance(tags, dict) and len(tags) > MAX_TAGS:
        raise ValueError(f"at most {MAX_TAGS} tags")
    return tags


Tags = Annotated[
    dict[
        Annotated[str, Field(pattern=patterns.TAG_NAME)],
        Annotated[str, Field(min_length=1, max_length=MAX_TAG_VALUE, pattern=patterns.PLAIN)],
    ],
    Field(max_length=MAX_TAGS),
    BeforeValidator(_check_tag_count),
]
"""Labels by which a job can be found: `{"team": "search"}`. Validated alike wherever a job comes
in: API, CLI, messages."""

STORED = "stored"
"""Validation context for stored messages: a time beyond the calendar becomes the nearest one.
Refused, it would make every read that includes the message fail."""


def _moment(value: datetime, info: ValidationInfo) -> datetime:
    return nearest_moment(value) if info.context == STORED else check_moment(value)


Moment = Annotated[AwareDatetime, AfterValidator(_moment)]
"""A time with a zone, that can be shown in every other zone: see `broker.times`."""


def now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)


class Metadata(BaseModel):
    """Data of a job beside its payload, which the system itself reads."""

    model_config = ConfigDict(extra="allow", frozen=True)

    created_at: Moment = Field(default_factory=now)
    """When the job was first made, by the clock of whoever made it; kept by every retry and
    redrive."""
    source: str = "unknown"
    """Who requested the job: arxiv, github, huggingface, user, or the job type of the parent."""
    attempts: int = Field(default=0, ge=0, le=1_000_000)
    """Attempts that were used up before this delivery."""
    max_attempts: int = Field(default=DEFAULT_MAX_ATTEMPTS, ge=1, le=1000)
    redrives: int = Field(default=0, ge=0, le=1_000_000)
    """How often the job was sent back from the dead letters. `(redrives, attempts)` orders
    the copies of one job: the ledger ignores a copy that is older than what it has seen."""
    queued_at: Moment | None = None
    """When this copy entered its lane, by the ledger's clock; set again by retry and redrive. Ages
    are counted from it; without it the broker alone ends a job that waits too long."""
    expires_at: Moment | None = None
    """Not started after this time: the job is dead-lettered as `expired`."""
    not_before: Moment | None = None
    """The job does not begin before this time; a delivery that comes earlier is put off again. Set
    for a Retry-After longer than the longest retry level."""
    sent_on: int = Field(default=0, ge=0, le=1_000_000)
    """A count: how often a worker that did not know the job's type has passed it on."""
    parent_id: JobId | None = None
    payload_version: int = Field(default=FIRST_PAYLOAD_VERSION, ge=1, le=MAX_PAYLOAD_VERSION)
    """Version of the job type's payload format. A message without it has the first."""
    pipeline: JobId | None = None
    """Identifies the run of a pipeline that the job belongs to (the first job's id)."""
    is_later_stage: bool = False
    """Whether the stage just before it was a job of another type for the same kind of worker. Then
    it is delivered before jobs that are the first for that kind of worker in their pipeline, so
    that documents are finished one after the other."""
    operation_id: JobId | None = None
    """The backfill or rerun that the job, or the job that it follows from, was published by."""
    rerun_of: JobId | None = None
    """The job, ended, that this one does again."""
    tags: Tags = Field(default_factory=dict)
    """Kept by retries and redrives, and by all that follows from the job."""
    reply_to: str | None = None
    traceparent: str | None = None


def may_be_unreadable(text: bytes) -> bool:
    """Tell whether JSON may have more levels or longer numbers than every reader takes. Quick and
    pessimistic: where True, decode it to find out."""
    if len(text) <= MAX_SAFE_BRACKETS:
        return False
    if text.count(b"{") + text.count(b"[") > MAX_SAFE_BRACKETS:
        return True
    if len(text) < MAX_DIGITS:
        return False
    half = MAX_DIGITS // 2
    # A run of MAX_DIGITS digits covers at least one whole part of half that length.
    return any(text[at : at + half].isdigit() for at in range(0, len(text) - half + 1, half))


class JobMessage(BaseModel):
    """One job on the wire. Immutable: a retry or redrive is a copy with other metadata."""

    # Record and send the same: without `constants`, NaN in a payload would be sent as null.
    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")

    job_id: JobId = Field(default_factory=lambda: str(uuid4()))
    job_type: JobTypeName
    priority: int = Field(default=0, ge=0, le=MAX_PRIORITY)
    """0 (least urgent) to 10, within the lane; it never moves a job to another lane."""
    payload: dict[str, Any]
    metadata: Metadata = Field(default_factory=Metadata)

    def encode(self) -> bytes:
        """Return the JSON body, UTF-8. Unset fields are written as null: leaving them out would
        also drop nulls that another publisher has set in fields of its own."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, body: bytes) -> JobMessage:
        """Read a body.

        Raises MalformedMessage when it is over-large, is not JSON, or does not fit the schema.
        """
        if len(body) > MAX_BODY_BYTES:
            raise MalformedMessage(f"the body has {len(body)} bytes, the limit is {MAX_BODY_BYTES}")
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise MalformedMessage(describe(error)) from error

    def with_metadata(self, **changes: Any) -> JobMessage:
        """Return a copy whose metadata has `changes`."""
        return self.model_copy(update={"metadata": self.metadata.model_copy(update=changes)})

    @property
    def delivery_priority(self) -> int:
        """The AMQP priority, 0 to MAX_PRIORITY: `priority`, and one more for a later stage."""
        if self.metadata.is_later_stage:
            return self.priority + (self.priority < MAX_PRIORITY)
        return MAX_FIRST_STAGE_PRIORITY if self.priority == MAX_PRIORITY else self.priority

    @property
    def generation(self) -> tuple[int, int]:
        """`(redrives, attempts)`: orders the copies of one job."""
        return (self.metadata.redrives, self.metadata.attempts)


def describe(
    error: ValidationError,
    place: Callable[[Sequence[str | int]], Sequence[str | int]] = lambda steps: steps,
) -> str:
    """Return a validation error in one line, without the offending values (they may be private).
    `place` maps pydantic's `loc` to the path that the reader knows."""
    errors, parts = list_errors(error), []
    for item in errors[:5]:
        where = ".".join(str(step) for step in place(item["loc"]) if step != "[key]")
        complaint = patterns.describe_field_error(item)
        parts.append(f"{where}: {complaint}" if where else complaint)
    more = len(errors) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
