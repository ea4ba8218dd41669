"""What the service says of itself, as JSON: its health, its job types, its kinds of problems."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from switchyard.api.models.base import ApiModel


class ComponentView(ApiModel):
    """One thing that the service stands on."""

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
    """A kind of work, and what its payload looks like."""

    job_type: str = Field(examples=["summarize_content"])
    worker: str
    routing_keys: list[str] = Field(examples=[["hot.summarize_content"]])
    timeout: float = Field(description="Seconds that one attempt may take.")
    max_attempts: int
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
