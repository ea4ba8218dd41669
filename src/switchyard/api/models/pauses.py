"""What goes in and out of `/pauses`, as JSON."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from switchyard.api.models.base import ApiModel, Timestamp
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.services.engine.records.pauses import (
    MAX_PAUSE_SECONDS,
    MAX_REASON_LENGTH,
    MAX_TARGET_LENGTH,
    PauseScope,
)


class PauseRequest(RequestModel):
    """What to pause, why, and for how long."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "scope": "type",
                "target": "summarize_content",
                "reason": "the model's new version is being rolled out",
                "seconds": 7200,
            }
        },
    )

    scope: PauseScope
    target: str = Field(
        min_length=1,
        max_length=MAX_TARGET_LENGTH,
        pattern=patterns.PLAIN,
        description="Name of the lane, job type or source, or `<lane>.<worker kind>` of a queue.",
        examples=["summarize_content"],
    )
    reason: str | None = Field(
        default=None,
        max_length=MAX_REASON_LENGTH,
        pattern=patterns.PLAIN,
        description="Shown with it.",
    )
    seconds: float | None = Field(
        default=None,
        ge=1,
        le=MAX_PAUSE_SECONDS,
        description="The pause ends by itself after so many seconds; null: when somebody ends it.",
    )


class PauseView(ApiModel):
    """A pause."""

    pause_id: str = Field(examples=["pause-0b0f6c1e6a5e"])
    scope: PauseScope
    target: str = Field(description="Name of the lane, job type, source or queue.")
    reason: str | None = Field(description="Why, as it was given.")
    created_by: str = Field(description="Who has paused it.")
    created_at: Timestamp
    ends_at: Timestamp | None = Field(
        description="When it ends by itself; null: when somebody ends it."
    )
    ended_at: Timestamp | None = Field(description="When it ended; null while it is in force.")
    ended_by: str | None = Field(description="Who ended it; null if it ended by itself.")
    held: int | None = Field(
        default=None,
        description="Jobs that it holds, counted among at most 100,000; null where not counted.",
    )


class PauseList(ApiModel):
    """Pauses."""

    pauses: list[PauseView] = Field(description="In force: the oldest first; ended: the latest.")
