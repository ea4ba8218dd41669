"""What goes out of `/backpressure` and of `/admin/lanes`, `…/workers` and `…/index`, as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from switchyard.api.models.base import ApiModel, Timestamp
from switchyard.services.engine.records.states import Pressure


class QueueView(ApiModel):
    """One queue of a lane."""

    queue: str = Field(examples=["hot.llm"])
    pressure: Pressure
    ready: int | None = Field(description="Waiting jobs; null if the queue does not exist.")
    put_off: int = Field(
        description="Jobs that wait outside the queue for room in a named limit, or for model "
        "servers that are all paused; they count towards the pressure."
    )
    limit: int | None = Field(
        description="Waiting jobs at which the queue is `full`: more are refused; null: no limit."
    )
    consumers: int


class QueueDetails(QueueView):
    """One queue of a lane, with what only the management API knows; `jobctl lanes` prints it."""

    unacked: int | None = Field(description="Jobs held by workers; null where not known.")
    ttl_seconds: float | None = Field(description="Age at which a waiting job expires.")
    oldest_seconds: float | None = Field(description="Age of the first waiting job.")


class LaneView(ApiModel):
    """A lane with its queues; it is as full as the fullest of them."""

    lane: str = Field(examples=["hot"])
    pressure: Pressure
    queues: list[QueueView]


class PressureView(ApiModel):
    """All lanes, most urgent first."""

    lanes: list[LaneView]


class LaneDetails(ApiModel):
    """A lane, its queues, and its jobs by state."""

    lane: str
    pressure: Pressure
    queues: list[QueueView]
    jobs: dict[str, int] = Field(examples=[{"queued": 3, "running": 2}])


class LaneReportView(LaneDetails):
    """A lane, or the dead letters, as `jobctl lanes` prints it."""

    priority: int | None = Field(description="Default priority of its jobs.")
    queues: list[QueueDetails]  # type: ignore[assignment] # each is a QueueView


class LaneList(ApiModel):
    lanes: list[LaneDetails]


class WorkerView(ApiModel):
    """A worker process."""

    worker_id: str
    status: str = Field(
        description="alive, silent (no heartbeat: dead, or without the ledger) or stopped."
    )
    kinds: list[str]
    lanes: list[str]
    host: str
    pid: int
    concurrency: int
    started_at: Timestamp | None
    beat_at: Timestamp | None
    stopped_at: Timestamp | None
    stopping_at: Timestamp | None = Field(
        description="Since when it takes no more jobs, and waits for those that it runs."
    )
    memory_bytes: int | None = Field(
        description="Memory at its last heartbeat, with that of the processes in which it runs "
        "jobs; null where it is not known."
    )
    unknown_types: list[str] = Field(
        description="Job types that it does not know, but gets jobs of; it passes these jobs on."
    )


class WorkerList(ApiModel):
    workers: list[WorkerView]


class GenerationView(ApiModel):
    """A table of chunks whose vectors were all made by one embedder."""

    role: Literal["active", "building", "retired"] = Field(
        description="`active`: used by searches; `building`: replaces the active one when "
        "complete; `retired`: replaced, removed by `compact_storage`."
    )
    table: str
    embedder: str
    dimensions: int
    chunks: int | None = Field(description="Number of chunks; null for a retired table.")


class IndexView(ApiModel):
    """The index of chunks."""

    where: str = Field(description="Its address, without credentials.")
    wanted: str = Field(
        description="The embedder of the settings; `rebuild_index` makes an index with it."
    )
    generations: list[GenerationView]
