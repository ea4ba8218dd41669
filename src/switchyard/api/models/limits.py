"""What goes out of `/limits`, as JSON."""

from __future__ import annotations

from pydantic import Field

from switchyard.api.models.base import ApiModel


class LimitView(ApiModel):
    """A named limit as it is now; one for each of its keys."""

    name: str = Field(examples=["openai"])
    key: str = Field(description="Of which tenant, account, …; empty where it has no keys.")
    concurrency: int | None = Field(description="Maximum number of running jobs; null: no limit.")
    per_minute: int | None = Field(description="Maximum number of jobs started per minute.")
    tokens_per_minute: int | None
    in_use: int = Field(description="Jobs that run.")
    last_minute: int = Field(description="Jobs that started in the last minute.")
    tokens_last_minute: int
    waiting: int = Field(description="Jobs that wait for room.")
    next_room: float | None = Field(
        description="Seconds until the job that waits longest has room (if none waits: a job of "
        "one token); 0: now; null: when a job ends."
    )


class LimitList(ApiModel):
    """Limits that were used in the last hour, by name and key; 1,000 at most, those used last."""

    limits: list[LimitView]
