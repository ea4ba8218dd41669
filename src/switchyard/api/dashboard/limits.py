"""Named limits: their use, waiting jobs, and when there is room again."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages
from switchyard.api.state import Shared

router = Pages(DashboardView("limits", "Limits", "/dashboard/limits"))

MAX_SHOWN = 200


@router.get("")
async def show_limits(
    state: Shared, name: Annotated[str, Query(max_length=200)] = "", waiting: bool = False
) -> DashboardPage:
    """Show the limits that were used in the last hour, those that jobs wait for first."""
    every = await state.ledger.limits.limit_reports()
    reports = [
        each
        for each in every
        if (each.waiting or not waiting) and name.lower() in f"{each.name} {each.key}".lower()
    ]
    reports.sort(key=lambda each: (-each.waiting, each.name, each.key))
    context = {
        "limits": reports[:MAX_SHOWN],
        "number": len(reports),
        "name": name,
        "waiting": waiting,
    }
    return DashboardPage("limits.html", context, title="Limits")
