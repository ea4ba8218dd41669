"""The overview: what needs attention, and load and throughput of the lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from switchyard.api.dashboard.charts import MINUTES, first_minute, minute_series
from switchyard.api.dashboard.llm import configured_servers, failing_servers
from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages
from switchyard.api.dashboard.pauses import pauses_in_force
from switchyard.api.dashboard.readings import Readings, ReadingsOf
from switchyard.api.dashboard.remedies import actions_of
from switchyard.api.dashboard.sessions import PATH
from switchyard.api.middleware.access import may
from switchyard.api.state import ApiState, Shared
from switchyard.broker.lanes import HOT, LANES
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.monitoring.check import worst_first
from switchyard.services.engine.monitoring.checks.jobs import SCHEDULE_LATE
from switchyard.services.engine.monitoring.checks.lanes import FILLING_PERCENT
from switchyard.services.engine.monitoring.lane_report import LaneReport, LanesReport
from switchyard.services.engine.monitoring.worker_status import alive_and_silent
from switchyard.services.engine.records.results import LaneMinute
from switchyard.services.engine.records.states import State

router = Pages(DashboardView("overview", "Overview", PATH))

MAX_CAUSES = 5


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane as the page shows it."""

    name: str
    ready: int | None
    limit: int | None
    percent: float | None
    """Depth of its fullest queue, in per cent of the queue's limit."""
    oldest: float | None
    """When the job that waits longest entered its queue, in seconds since the epoch."""
    jobs: dict[str, int]
    published: list[float | None]
    """Jobs published in each of the last minutes; None where no scheduler counted."""
    ended: list[float | None]
    dead: list[float | None]

    @property
    def in_hour(self) -> int:
        """Jobs published in the last hour."""
        return round(sum(each or 0 for each in self.published))

    @property
    def out_hour(self) -> int:
        """Jobs ended in the last hour."""
        return round(sum(each or 0 for each in self.ended))


@router.get("")
async def show_overview(request: Request, state: Shared, readings: ReadingsOf) -> DashboardPage:
    """Show the doctor's findings first, then the lanes, workers and dead letters."""
    now = state.ledger.clock.time()
    first = first_minute(now)
    minutes = await state.ledger.lane_history.minutes(first)
    report = await readings.lanes.look()
    retries = await readings.retries.look()
    gauges = await readings.gauges()
    oldest: dict[str, float] = {}
    for (lane, _), at in gauges.oldest.items():
        oldest[lane] = min(oldest.get(lane, at), at)
    groups = await state.ledger.dead_letters.dead_groups(limit=MAX_CAUSES)
    servers = await configured_servers(state)
    failing = failing_servers(servers)
    pauses = await pauses_in_force(state.ledger)
    workers = await _workers(state, gauges.open_jobs, now)
    waiting_firings = await state.ledger.schedules.waiting_firings()
    readings.notice(
        (
            readings.lanes.trouble is None,
            _nearly_full(report),
            frozenset(each.pause_id for each in pauses.values()),
            frozenset((name, each.state.failures) for name, each in failing.items()),
            (workers["alive"], workers["silent"]),
            sum(gauges.dead.values()),
            frozenset(gauges.bulk.items()),
            frozenset(
                name
                for name, each in waiting_firings.items()
                if now - each.noted_at > SCHEDULE_LATE
            ),
        )
    )
    context = {
        "lanes": _lanes(report, minutes, oldest, gauges.open_jobs, first),
        "minutes": [first + 60 * index for index in range(MINUTES)],
        "lanes_trouble": readings.lanes.trouble,
        "pauses": pauses,
        "waits": _waits(minutes, first),
        "retries": retries,
        **_retrying(gauges.open_jobs, retries),
        "model_servers": servers,
        "failing": list(failing.values()),
        "causes": groups,
        "dead": sum(gauges.dead.values()),
        "dead_lanes": _by_lane(gauges.dead),
        **await _findings(request, readings),
        **workers,
    }
    return DashboardPage("overview.html", context, title="Overview")


def _nearly_full(report: LanesReport | None) -> frozenset[tuple[str, bool]]:
    """Return the queues that are nearly full, and whether they are full."""
    queues = [] if report is None else [each for lane in report.lanes for each in lane.queues]
    return frozenset(
        (each.name, (each.percent_full or 0) >= 100)
        for each in queues
        if (each.percent_full or 0) >= FILLING_PERCENT
    )


def _retrying(
    open_jobs: Mapping[tuple[str, str], int], retries: Mapping[float, int] | None
) -> dict[str, int]:
    """Return how many jobs wait for their next attempt, and how many messages in the retry queues
    are of other jobs: without room in a limit, gone on before the delay was over, or ended."""
    retrying = sum(n for (_, job_state), n in open_jobs.items() if job_state == State.RETRYING)
    messages = sum(retries.values()) if retries is not None else 0
    return {"retrying": retrying, "other_messages": max(0, messages - retrying)}


def _by_lane(dead: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Count the dead letters of each lane; they are given by lane and reason."""
    numbers: Counter[str] = Counter()
    for (lane, _), number in dead.items():
        numbers[lane or "no lane"] += number
    return dict(numbers)


async def _findings(request: Request, readings: Readings) -> dict[str, Any]:
    """Return the doctor's findings. They name hosts and files, so the template shows their text
    only to those with the scope `admin` (`may_see_findings`)."""
    answers = await readings.doctor.look()
    # New ones first: who looks for what has just begun knows the others.
    diagnostics = worst_first(answers or (), readings.new_at)
    return {
        "findings": diagnostics,
        "new_at": [readings.new_at(each) for each in diagnostics],
        "actions": [actions_of(each.remedy) for each in diagnostics],
        "checked": None if answers is None else len(answers),
        "checked_at": readings.doctor.read_at,
        "may_see_findings": may(request, Scope.ADMIN),
    }


async def _workers(
    state: ApiState, open_jobs: Mapping[tuple[str, str], int], now: float
) -> dict[str, Any]:
    alive, silent = alive_and_silent(
        await state.ledger.workers.list_workers(),
        takeover_after=state.settings.takeover_after,
        now=now,
    )
    running = sum(n for (_, job_state), n in open_jobs.items() if job_state == State.RUNNING)
    kinds: Counter[str] = Counter()
    for each in alive:
        for kind in each.kinds:
            kinds[kind] += each.concurrency
    return {
        "alive": len(alive),
        "silent": len(silent),
        "slots": sum(each.concurrency for each in alive),
        "running": running,
        "kinds": sorted(kinds.items()),
    }


def _lanes(
    report: LanesReport | None,
    minutes: Sequence[LaneMinute],
    oldest: dict[str, float],
    open_jobs: Mapping[tuple[str, str], int],
    first: float,
) -> list[LaneRow]:
    by_name = {each.name: each for each in report.lanes} if report is not None else {}
    return [
        _lane(
            lane.name,
            by_name.get(lane.name),
            [each for each in minutes if each.lane == lane.name],
            oldest.get(lane.name),
            {job_state: n for (name, job_state), n in open_jobs.items() if name == lane.name},
            first,
        )
        for lane in LANES
    ]


def _lane(
    name: str,
    report: LaneReport | None,
    minutes: Sequence[LaneMinute],
    oldest: float | None,
    jobs: dict[str, int],
    first: float,
) -> LaneRow:
    queues = [] if report is None else list(report.queues)
    limited = [each for each in queues if each.limit]
    fullest = max(limited, key=lambda each: each.percent_full or 0.0, default=None)
    return LaneRow(
        name=name,
        ready=None if report is None else sum(each.ready for each in queues),
        limit=None if fullest is None else fullest.limit,
        percent=None if fullest is None else fullest.percent_full,
        oldest=oldest,
        jobs=jobs,
        published=minute_series(minutes, first, lambda each: each.published),
        ended=minute_series(minutes, first, lambda each: each.ended),
        dead=minute_series(minutes, first, lambda each: each.dead),
    )


def _waits(minutes: Sequence[LaneMinute], first: float) -> dict[str, Any]:
    """Return how long hot jobs waited: in the latest minute that had any, in the worst, and in
    each."""
    hot = [each for each in minutes if each.lane == HOT.name and each.wait_p99 is not None]
    latest = hot[-1] if hot else None
    return {
        "p50": None if latest is None else latest.wait_p50,
        "p99": None if latest is None else latest.wait_p99,
        "at": None if latest is None else latest.at,
        "worst": max((each.wait_p99 or 0.0 for each in hot), default=None),
        "p50s": minute_series(hot, first, lambda each: each.wait_p50),
        "p99s": minute_series(hot, first, lambda each: each.wait_p99),
    }
