"""Language models: the load of each server, why one is paused, and what the answers cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Form, Request
from starlette.responses import Response

from switchyard.api.dashboard.charts import MINUTES, first_minute, minute_series
from switchyard.api.dashboard.formats import clock
from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages, allows, done
from switchyard.api.dashboard.readings import ReadingsOf
from switchyard.api.http.problems import Problem
from switchyard.api.state import ApiState, Shared, state_of
from switchyard.api.views.llm import view_model_server
from switchyard.broker.lanes import LANES, queue_name
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.monitoring.lane_report import LanesReport
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.llm.gate import all_servers, calls_allowed
from switchyard.services.llm.ledger import LlmLedger

if TYPE_CHECKING:
    from switchyard.services.llm.ledger.llm_spend import LlmSpendRepository
    from switchyard.services.llm.records.llm_servers import LlmServerReport

DAYS = 30
"""Length of the chart of costs."""
NOT_READY_AFTER_FAILURES = 2
"""Failed calls in a row after which the pages show that a model server is not ready. The doctor
reports it after more failures, which take minutes where each is a time-out."""
PAUSES_FOR = 24 * 3600.0
"""Seconds for which pauses are shown after their end."""


def _has_servers(request: Request) -> bool:
    return bool(state_of(request).settings.model_servers)


router = Pages(DashboardView("llm", "LLM", "/dashboard/llm", is_shown=_has_servers))


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """The last hour of a server, by minute; None for minutes without a record."""

    allowed: list[float | None]
    in_flight: list[float | None]

    @property
    def top(self) -> float:
        """The largest of all values."""
        return max((each for each in (*self.allowed, *self.in_flight) if each), default=1.0)

    def texts(self, times: Sequence[float]) -> list[str]:
        """Describe each minute in words."""
        descriptions = []
        for at, allowed, calls in zip(times, self.allowed, self.in_flight, strict=True):
            known = allowed is not None and calls is not None
            descriptions.append(
                f"{clock(at)} UTC: {calls:g} of {allowed:g} calls" if known else "not recorded"
            )
        return descriptions


@router.get("")
async def show_llm(state: Shared, readings: ReadingsOf) -> DashboardPage:
    """Show servers with their last hour, the requests that wait, costs, budgets and batches."""
    settings, repositories = state.settings, LlmLedger(state.ledger)
    now = state.ledger.clock.time()
    today = datetime.fromtimestamp(now, UTC).date()
    call_limits = {each.name: settings.max_calls(each) for each in settings.model_servers}
    servers = all_servers(await repositories.slots.llm_servers(), settings)
    counts = await repositories.batches.llm_batch_counts()
    begin = first_minute(now)
    minutes = await repositories.history.minutes(begin)
    history = {}
    for name in {each.server for each in minutes}:
        own = [each for each in minutes if each.server == name]
        history[name] = ServerHistory(
            allowed=minute_series(own, begin, lambda each: each.calls_allowed),
            in_flight=minute_series(own, begin, lambda each: each.in_flight),
        )
    context = {
        "servers": [view_model_server(each, calls_allowed(each, call_limits)) for each in servers],
        "history": history,
        "failing": failing_servers(servers),
        "minute_times": [begin + 60 * index for index in range(MINUTES)],
        "pauses": await repositories.history.pauses(now - PAUSES_FOR),
        "waiting": _waiting_requests(await readings.lanes.look()),
        "waiting_trouble": readings.lanes.trouble,
        "outside_queues": await repositories.slots.waiting_outside_queues(LLM_WORKER),
        **await read_costs(repositories.spending, today),
        "budgets": [
            *await repositories.spending.llm_budgets(per_day=settings.llm_budget_per_day),
            *await repositories.spending.short_api_key_budgets(),
        ],
        "batches": await repositories.batches.llm_batches(),
        "batched": sorted(counts.items()),
        "currency": settings.prices.currency,
    }
    return DashboardPage("llm.html", context, title="Language models")


async def configured_servers(state: ApiState) -> list[LlmServerReport]:
    """Return the model servers of the settings as they are now."""
    names = {each.name for each in state.settings.model_servers}
    called = await LlmLedger(state.ledger).slots.llm_servers() if names else []
    return [each for each in all_servers(called, state.settings) if each.name in names]


def failing_servers(servers: Iterable[LlmServerReport]) -> dict[str, LlmServerReport]:
    """Return the servers that are paused or fail, by name."""
    return {
        each.name: each
        for each in servers
        if each.paused_for or each.state.failures >= NOT_READY_AFTER_FAILURES
    }


async def read_costs(spending: LlmSpendRepository, today: date) -> dict[str, Any]:
    """Return the costs of the last DAYS days and of the month, as the page shows them."""
    first = today - timedelta(days=DAYS - 1)
    month_begin = today.replace(day=1)
    rows = await spending.llm_spend(
        "day", since=min(first, month_begin).isoformat(), until=None, limit=DAYS + 2
    )
    by_day = {each.name: each for each in rows}
    days = [(first + timedelta(days=index)).isoformat() for index in range(DAYS)]
    charted = [by_day[day] for day in days if day in by_day]
    spent = sum(each.cost for each in rows if (each.name or "") >= month_begin.isoformat())
    next_month = (month_begin + timedelta(days=31)).replace(day=1)
    return {
        "days": days,
        "costs": [by_day[day].cost if day in by_day else 0.0 for day in days],
        "today": by_day.get(today.isoformat()),
        "month": spent,
        "month_forecast": spent / today.day * (next_month - month_begin).days,
        "saved": sum(each.saved for each in charted),
        "saved_calls": sum(each.saved_calls for each in charted),
        "models": await spending.llm_spend("model", since=first.isoformat(), until=None, limit=10),
    }


def _waiting_requests(report: LanesReport | None) -> dict[str, int] | None:
    """Return how many requests wait in each lane; None where the broker is unreachable."""
    if report is None:
        return None
    queues = {each.name: each.ready for lane in report.lanes for each in lane.queues}
    names = {lane.name: queue_name(lane.name, LLM_WORKER) for lane in LANES}
    return {lane: queues[name] for lane, name in names.items() if name in queues}


@router.post("/resume", dependencies=[allows(Scope.ADMIN)])
async def resume(state: Shared, server: Annotated[str, Form(max_length=200)]) -> Response:
    """End the pause of a server."""
    ended = await LlmLedger(state.ledger).slots.end_llm_pause(server)
    if ended is None:
        raise Problem("not-found", f"no request was ever sent to a model server named {server!r}")
    return done(router.view.path, f"The pause of {server} is over: {ended.jobs} jobs go on.")
