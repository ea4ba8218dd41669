"""Language models: the load of each server, why one is paused, and what the answers cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Form, Request
from starlette.responses import Response

from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages, allows, done
from switchyard.api.http.problems import Problem
from switchyard.api.state import Shared, state_of
from switchyard.api.views.llm import view_model_server
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.llm.gate import all_servers, calls_allowed
from switchyard.services.llm.ledger import LlmLedger

DAYS = 30
"""Length of the chart of costs."""


def _has_servers(request: Request) -> bool:
    return bool(state_of(request).settings.model_servers)


router = Pages(DashboardView("llm", "LLM", "/dashboard/llm", is_shown=_has_servers))


@router.get("")
async def show_llm(state: Shared) -> DashboardPage:
    """Show servers, costs, budgets and batches."""
    settings, repositories = state.settings, LlmLedger(state.ledger)
    today = datetime.fromtimestamp(state.ledger.clock.time(), UTC).date()
    first = today - timedelta(days=DAYS - 1)
    rows = await repositories.spending.llm_spend(
        "day", since=first.isoformat(), until=None, limit=DAYS + 1
    )
    by_day = {each.name: each for each in rows}
    days = [(first + timedelta(days=index)).isoformat() for index in range(DAYS)]
    month = [each for each in rows if (each.name or "").startswith(today.isoformat()[:7])]
    spent = sum(each.cost for each in month)
    next_month = (today.replace(day=28) + timedelta(days=4)).replace(day=1)
    month_days = (next_month - timedelta(days=1)).day
    call_limits = {each.name: settings.most_calls(each) for each in settings.model_servers}
    servers = all_servers(await repositories.slots.llm_servers(), settings)
    counts = await repositories.batches.llm_batch_counts()
    context = {
        "servers": [view_model_server(each, calls_allowed(each, call_limits)) for each in servers],
        "days": days,
        "costs": [by_day[day].cost if day in by_day else 0.0 for day in days],
        "today": by_day.get(today.isoformat()),
        "month": spent,
        "month_end": spent / today.day * month_days,
        "saved": sum(each.saved for each in rows),
        "saved_calls": sum(each.saved_calls for each in rows),
        "models": await repositories.spending.llm_spend(
            "model", since=first.isoformat(), until=None, limit=10
        ),
        "budgets": await repositories.spending.llm_budgets(per_day=settings.llm_budget_per_day),
        "batches": await repositories.batches.llm_batches(),
        "batched": sorted(counts.items()),
        "currency": settings.prices.currency,
    }
    return DashboardPage("llm.html", context, title="Language models")


@router.post("/resume", dependencies=[allows(Scope.ADMIN)])
async def resume(state: Shared, server: Annotated[str, Form(max_length=200)]) -> Response:
    """End the pause of a server."""
    ended = await LlmLedger(state.ledger).slots.end_llm_pause(server)
    if ended is None:
        raise Problem("not-found", f"no model server {server!r} was called")
    return done(router.view.path, f"The pause of {server} is over: {ended.jobs} jobs go on.")
