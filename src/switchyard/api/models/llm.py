"""What goes in and out of the endpoint for questions to language models, as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from switchyard.api.models.base import EXAMPLE_JOB_ID, ApiModel, JsonObject, Timestamp
from switchyard.api.models.request_model import RequestModel
from switchyard.broker import patterns
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.llm.records.llm_spend import SpentBy

MAX_WAIT = 60.0
"""Seconds that one HTTP request may wait; a client that wants longer asks for the job's end."""


class QuestionToModel(RequestModel):
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
    ] = Field(
        default="chat_completion", description="Job type of the request: see `/schemas/{type}`."
    )
    payload: JsonObject = Field(description="Payload; its JSON Schema is at `/schemas/{type}`.")
    lane: Literal["hot", "backfill"] = "hot"
    priority: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PRIORITY,
        description="Priority within the lane; a higher number runs first. Default: 5; in the lane "
        "backfill 1.",
    )
    expires_in: float | None = Field(
        default=None,
        gt=0,
        le=7 * 24 * 3600,
        description="Seconds after which an unanswered request is cancelled (`timeout`).",
    )
    wait: float = Field(
        default=0,
        ge=0,
        le=MAX_WAIT,
        description="Seconds that this HTTP request waits for the answer.",
    )
    source: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        pattern=patterns.PLAIN,
        description="Name of the client, for fairness and cost reports. Default: `api`, or with an "
        "API key `api:` and the key's id.",
    )


class AnswerOfModel(ApiModel):
    """The answer to a request to a language model, or the state of one without an answer."""

    job_id: str = Field(examples=[EXAMPLE_JOB_ID])
    status: str = Field(
        description="`waiting`, `completed`, `timeout` (it expired unanswered), `failed`, "
        "`cancelled`.",
        examples=["completed"],
    )
    result: dict[str, Any] | None = Field(
        default=None, description="`text`, `value` (if a schema was given), `model`, `usage`, …"
    )
    error: str | None = None
    raw_answers: list[str] | None = Field(
        default=None,
        description="The two answers, where the model was asked twice and neither matches the "
        "schema.",
    )


class Spending(ApiModel):
    """Sums over the model calls of one day, model, job type or the like."""

    name: str | None = Field(description="The day, model, …; null for calls that have none.")
    calls: int
    saved_calls: int = Field(description="Calls answered from stored answers, at no cost.")
    unsure_calls: int = Field(description="Aborted calls; counted by their estimate.")
    unpriced_calls: int = Field(description="Calls of models without a price; not in `cost`.")
    input_tokens: int
    cached_tokens: int = Field(description="Input tokens that the server had cached.")
    output_tokens: int
    cost: float
    reserved: float = Field(description="Reserved for calls in progress.")
    saved: float = Field(description="Cost that the saved calls would have had.")


class Budget(ApiModel):
    """A budget as it is now."""

    of: str = Field(examples=["day:2026-11-22"], description="`day:…`, or `backfill:…`.")
    limit: float
    spent: float
    set_aside: float = Field(description="Reserved for calls in progress.")
    left: float
    too_little_left: bool = Field(
        description="True if there is not enough left for the next call, so that jobs wait."
    )


class ModelServerView(ApiModel):
    """A model server as it is now."""

    name: str
    in_flight: int = Field(description="Calls in progress from all processes together.")
    limit: int = Field(description="Present maximum of calls at the same time.")
    paused_for: float = Field(description="Seconds; 0: it is not paused.")
    pause_reason: str | None
    on_trial: bool = Field(description="True: one call at a time until one succeeds.")
    failures: int = Field(description="Consecutive failures.")


class EndedPause(ApiModel):
    """A pause of a model server that somebody has ended."""

    server: str
    paused_for: float = Field(description="Seconds that were left; 0: it was not paused.")
    jobs: int = Field(description="Waiting jobs that are published again.")


class TimeLimit(ApiModel):
    """How long a request may take."""

    job_type: str
    attempt: float = Field(description="Seconds that an attempt may take.")
    call: float = Field(description="Seconds that each of its calls may take.")


class BatchView(ApiModel):
    """Requests that are sent to a provider together."""

    id: str
    provider: str
    state: str
    remote_id: str | None = Field(description="The provider's own id.")
    questions: int
    created_at: Timestamp
    note: str | None = Field(description="What the provider says of it, or the error.")


class BatchedQuestions(ApiModel):
    """Requests that wait for a batch, or are in one."""

    server: str
    state: str
    questions: int


class ModelStatus(ApiModel):
    """Model servers, time limits, budgets and batches: what `jobctl llm status` prints."""

    servers: list[ModelServerView]
    time_limits: list[TimeLimit]
    budgets: list[Budget]
    currency: str
    batches: list[BatchView]
    batched_questions: list[BatchedQuestions]


class SpendReport(ApiModel):
    """Costs and budgets."""

    by: SpentBy
    currency: str = Field(examples=["USD"])
    rows: list[Spending]
    budgets: list[Budget] = Field(description="Of today, and of backfills that are not over.")
