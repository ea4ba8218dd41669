"""`/backpressure`: how full the lanes are, for those who publish."""

from __future__ import annotations

from switchyard.api.http.problems import responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.lanes import LaneView, PressureView, QueueView
from switchyard.api.state import Shared
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.monitoring.lane_pressure import LaneDepth, QueueDepth

router = Routes(tags=["lanes"])


@router.get(
    "/backpressure",
    dependencies=[needs(Scope.PUBLISH, Scope.READ)],
    responses=responses("broker-away", "no-broker"),
)
async def backpressure(state: Shared) -> PressureView:
    """Show how full each lane is; the data is at most a second old.

    `ok`: publish. `slow`: publish less. `full`: jobs are refused.
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
        put_off=queue.put_off,
        limit=queue.limit,
        consumers=queue.consumers,
    )
