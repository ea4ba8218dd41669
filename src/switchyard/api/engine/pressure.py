"""`/backpressure`, `/limits`, `/usage` and `/metrics`: how full lanes and named limits are, how
much space each part of the system takes, and metrics for Prometheus."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from switchyard.api.http.problems import responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.lanes import PressureView
from switchyard.api.models.service import LimitList, UsageView
from switchyard.api.state import Shared
from switchyard.api.views.system import view_lane, view_limit
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.monitoring.metrics import CONTENT_TYPE
from switchyard.services.engine.monitoring.usage import measure_usage

router = Routes()

USAGE_TIMEOUT = 10.0
"""Seconds for each part of a system's usage."""

TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get(
    "/backpressure",
    tags=["lanes"],
    dependencies=[needs(Scope.PUBLISH, Scope.READ)],
    responses=responses("broker-away", "no-broker"),
)
async def backpressure(state: Shared) -> PressureView:
    """Show how full each lane is; the data is at most a second old.

    `ok`: publish. `slow`: publish less. `full`: jobs are refused.
    """
    snapshot = await state.require_broker().pressure.snapshot()
    return PressureView(lanes=[view_lane(lane) for lane in snapshot.lanes])


@router.get(
    "/limits",
    tags=["limits"],
    dependencies=[needs(Scope.READ)],
    responses=responses("ledger-away"),
)
async def list_limits(
    state: Shared,
    waiting: Annotated[bool, Query(description="Only limits that jobs are waiting for.")] = False,
) -> LimitList:
    """Show named limits: current use, waiting jobs, and when there is room again."""
    reports = await state.ledger.limits.limit_reports()
    return LimitList(limits=[view_limit(each) for each in reports if each.waiting or not waiting])


@router.get("/usage", tags=["health"], dependencies=[needs(Scope.ADMIN)], responses=responses())
async def usage(state: Shared) -> UsageView:
    """Show how much space is used: the ledger by table, files by kind, the index, queues.

    It reads all of them. A part that takes more than 10 s, or is away, is null.
    """
    system_usage = await measure_usage(state.settings, state.ledger, timeout=USAGE_TIMEOUT)
    return UsageView.model_validate(system_usage)


@router.get(
    "/metrics",
    tags=["health"],
    dependencies=[needs(Scope.READ)],
    responses=TEXT,
    response_class=Response,
)
async def metrics(state: Shared) -> Response:
    """Show the metrics in Prometheus' text format (docs/metrics.md)."""
    return Response(await state.scrape(), media_type=CONTENT_TYPE)
