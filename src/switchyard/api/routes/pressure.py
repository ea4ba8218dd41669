"""`/backpressure`: how full the lanes are, for those who publish."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from switchyard.api.entry.access import needs
from switchyard.api.http.problems import responses
from switchyard.api.state import State
from switchyard.services.access.api_keys import Scope
from switchyard.services.monitoring.lane_pressure import (
    LaneDepth,
    Pressure,
    QueueDepth,
)

router = APIRouter(tags=["lanes"])


class QueueView(BaseModel):
    """One queue of a lane."""

    queue: str = Field(examples=["hot.llm"])
    pressure: Pressure
    ready: int | None = Field(description="Jobs that wait; null where there is no such queue.")
    limit: int = Field(description="Jobs that may wait before it is full.")
    consumers: int


class LaneView(BaseModel):
    """A lane is as full as the fullest of its queues."""

    lane: str = Field(examples=["hot"])
    pressure: Pressure
    queues: list[QueueView]


class PressureView(BaseModel):
    """All lanes, most urgent first."""

    lanes: list[LaneView]


@router.get(
    "/backpressure",
    dependencies=[needs(Scope.PUBLISH, Scope.READ)],
    responses=responses("broker-away", "no-broker"),
)
async def backpressure(state: State) -> PressureView:
    """Show how full each lane is, at most a second old.

    `ok`: publish. `slow`: half full, publish less. `full`: what is published is refused.
    """
    snapshot = await state.require_broker().pressure.snapshot()
    return PressureView(lanes=[lane_view(lane) for lane in snapshot.lanes])


def lane_view(lane: LaneDepth) -> LaneView:
    return LaneView(
        lane=lane.name,
        pressure=lane.pressure,
        queues=[queue_view(queue) for queue in lane.queues],
    )


def queue_view(queue: QueueDepth) -> QueueView:
    return QueueView(
        queue=queue.name,
        pressure=queue.pressure,
        ready=queue.ready,
        limit=queue.limit,
        consumers=queue.consumers,
    )
