"""What goes in and out of `/schedules`, as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from switchyard.api.models.base import ApiModel, JsonObject, Timestamp
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.broker.message import MAX_PAYLOAD_VERSION, MAX_PRIORITY, Tags
from switchyard.services.engine.records.schedules import FiringOutcome


class NewSchedule(RequestModel):
    """A job, and the times at which it is published."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "name": "papers-of-the-day",
                "cron": "30 6 * * 1-5",
                "timezone": "Europe/Berlin",
                "job": "hot.ingest_arxiv",
                "payload": {"query": "cat:cs.DB"},
            }
        },
    )

    name: str = Field(pattern=patterns.DASHED_NAME)
    cron: str = Field(
        min_length=1,
        max_length=200,
        description="Minute, hour, day of the month, month, day of the week.",
    )
    timezone: str = Field(
        default="UTC",
        pattern=patterns.TIME_ZONE,
        description="IANA name, for example Europe/Berlin.",
    )
    job: str = Field(
        pattern=patterns.ROUTING_KEY,
        description="Routing key: `<lane>.<job_type>`.",
    )
    payload: JsonObject = Field(default_factory=dict)
    priority: int | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    tags: Tags = Field(
        default_factory=dict, description="Tags of its jobs and their follow-up jobs; at most 16."
    )
    payload_version: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PAYLOAD_VERSION,
        description="Version of the payload. Default: the job type's present one.",
    )
    jitter: float = Field(
        default=0,
        ge=0,
        le=3600,
        description="Each due time is delayed by a random time of at most this many seconds.",
    )
    grace: float = Field(
        default=3600,
        ge=0,
        le=86400,
        description="A missed due time is fired up to this many seconds later.",
    )


class FiringView(ApiModel):
    """Result of a due time."""

    due_at: Timestamp
    outcome: FiringOutcome = Field(
        description="`due`: its job is being published; `fired`; `missed`: no scheduler ran "
        "within the grace time; `refused`: its job could not be published within "
        "the grace time."
    )
    job_id: str | None
    noted_at: Timestamp
    times: int = Field(
        description="Number of consecutive missed due times that this entry stands for."
    )
    note: str | None


class ScheduleView(ApiModel):
    """A schedule."""

    name: str
    cron: str
    timezone: str
    job: str
    payload: dict[str, Any]
    priority: int | None
    max_attempts: int | None
    tags: dict[str, str] = Field(description="Tags of its jobs and their follow-up jobs.")
    payload_version: int | None = Field(
        description="Version of the payload; null where it is always the present one."
    )
    jitter: float
    grace: float
    origin: str = Field(description="`file`, `default`, or `added`.")
    created_by: str
    created_at: Timestamp
    paused_at: Timestamp | None
    next_at: Timestamp = Field(
        description="Next due time; for a paused schedule, the one that it had."
    )
    last: FiringView | None = Field(default=None, description="Result of the latest due time.")


class ScheduleList(ApiModel):
    """All schedules, by name."""

    schedules: list[ScheduleView]


class ScheduleHistory(ApiModel):
    """Results of a schedule's due times."""

    firings: list[FiringView] = Field(description="The latest first; 500 are kept.")
