"""`/limits`: named limits, what has room in them, and what waits."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from switchyard.api.http.problems import responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.service import LimitList
from switchyard.api.state import Shared
from switchyard.api.views.system import view_limit
from switchyard.services.engine.access.api_keys import Scope

router = Routes(tags=["limits"])


@router.get("/limits", dependencies=[needs(Scope.READ)], responses=responses("ledger-away"))
async def list_limits(
    state: Shared,
    waiting: Annotated[bool, Query(description="Only limits that jobs are waiting for.")] = False,
) -> LimitList:
    """Show named limits: current use, waiting jobs, and when there is room again."""
    found = await state.ledger.limits.limit_reports()
    return LimitList(limits=[view_limit(each) for each in found if each.waiting or not waiting])
