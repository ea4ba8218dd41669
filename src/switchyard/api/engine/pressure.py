"""`/backpressure`: how full the lanes are, for those who publish."""

from __future__ import annotations

from switchyard.api.http.problems import responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.lanes import PressureView
from switchyard.api.state import Shared
from switchyard.api.views.system import view_lane
from switchyard.services.engine.access.api_keys import Scope

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
    return PressureView(lanes=[view_lane(lane) for lane in snapshot.lanes])
