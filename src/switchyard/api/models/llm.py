"""What goes in and out of the endpoint for questions to language models, as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from switchyard.api.models.jobs import EXAMPLE, PLAIN
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.records.spending import SpentBy

LONGEST_WAIT = 60.0
"""Seconds that one HTTP request may wait; a client that wants longer asks for the job's end."""


class QuestionToModel(BaseModel):
    """A question to a language model."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "type": "classify",
                "payload": {"text": "The tide is high.", "labels": ["sea", "mountains"]},
                "wait": 30,
            }
        },
    )

    type: Literal[
        "chat_completion", "extract_facts", "extract_field_group", "extract_entities", "classify"
    ] = Field(default="chat_completion", description="What is asked: see `/schemas/{type}`.")
    payload: dict[str, Any] = Field(description="What the type asks for: see `/schemas/{type}`.")
    lane: Literal["hot", "backfill"] = "hot"
    priority: int | None = Field(
        default=None, ge=0, le=MAX_PRIORITY, description="Urgency within the lane."
    )
    expires_in: float | None = Field(
        default=None,
        gt=0,
        le=7 * 24 * 3600,
        description="Seconds after which it is not to be answered any more: `timeout`.",
    )
    wait: float = Field(
        default=0, ge=0, le=LONGEST_WAIT, description="Seconds to wait here for the answer."
    )
    source: str = Field(
        default="api", min_length=1, max_length=100, pattern=PLAIN, description="Who asks."
    )


class AnswerOfModel(BaseModel):
    """How a question stands."""

    job_id: str = Field(examples=[EXAMPLE])
    status: str = Field(
        description="`waiting`, `completed`, `timeout` (it expired unanswered), `failed`, "
        "`cancelled`.",
        examples=["completed"],
    )
    result: dict[str, Any] | None = Field(
        default=None, description="`text`, `value` where there is a schema, `model`, `usage`, …"
    )
    error: str | None = None


class Spending(BaseModel):
    """What calls that have one thing in common came to."""

    name: str | None = Field(description="The day, model, …; null for calls that have none.")
    calls: int
    saved_calls: int = Field(description="Answered from what is kept: they cost nothing.")
    unsure_calls: int = Field(description="Broken off: they count by their estimate.")
    unpriced_calls: int = Field(description="Of models without a price: not in `cost`.")
    input_tokens: int
    cached_tokens: int = Field(description="Of the input, those that the server had cached.")
    output_tokens: int
    cost: float
    reserved: float = Field(description="Set aside for calls under way.")
    saved: float = Field(description="What the saved calls would have cost.")


class Budget(BaseModel):
    """A budget as it is now."""

    of: str = Field(examples=["day:2026-11-22"], description="`day:…`, or `backfill:…`.")
    limit: float
    spent: float
    set_aside: float = Field(description="For calls under way.")
    left: float
    too_little_left: bool = Field(description="For its last call: jobs wait.")


class SpendReport(BaseModel):
    """What was spent, and what may be."""

    by: SpentBy
    currency: str = Field(examples=["USD"])
    rows: list[Spending]
    budgets: list[Budget] = Field(description="Of today, and of backfills that are not over.")
