"""Workers, the jobs that they run now, and the sources of the jobs in the lanes."""

from __future__ import annotations

from collections import defaultdict

from switchyard.api.dashboard.pages import DashboardPage, DashboardView, Pages
from switchyard.api.dashboard.pauses import pauses_in_force
from switchyard.api.state import Shared
from switchyard.api.views.system import view_workers
from switchyard.broker.lanes import LANES
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.monitoring.worker_status import is_current
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.results import JobSummary
from switchyard.services.engine.records.states import State

router = Pages(DashboardView("workers", "Workers", "/dashboard/workers", scope=Scope.ADMIN))

MAX_RUNNING = 200
"""Running jobs that are listed, latest start first."""
SHOWN_JOBS = 5
"""Jobs of a worker that are shown at once; the others unfold."""
SOURCES_SAMPLE = 2_000
"""Jobs of a lane whose sources are counted, at most."""
MAX_SOURCES = 8


@router.get("")
async def show_workers(state: Shared, everything: bool = False) -> DashboardPage:
    """Show the workers that are current, or all that the ledger knows."""
    now = state.ledger.clock.time()
    workers = await state.ledger.workers.list_workers()
    shown = [each for each in workers if everything or is_current(each, now)]
    running: defaultdict[str | None, list[JobSummary]] = defaultdict(list)
    page = await state.ledger.job_reads.list_jobs(JobFilter(state=State.RUNNING), limit=MAX_RUNNING)
    for job in page.items:
        running[job.worker_id].append(job)
    sources = {}
    for lane in LANES:
        counted = await state.ledger.gauges.open_by_source(lane.name, sample=SOURCES_SAMPLE)
        sources[lane.name] = sorted(counted.items(), key=lambda each: -each[1])[:MAX_SOURCES]
    context = {
        "workers": view_workers(
            shown,
            await state.ledger.workers.find_unknown_types(),
            takeover_after=state.settings.takeover_after,
            now=now,
        ),
        "running": running,
        "numbers": await state.ledger.job_reads.running_by_worker(),
        "shown_jobs": SHOWN_JOBS,
        "sources": sources,
        "sample": SOURCES_SAMPLE,
        "everything": everything,
        "pauses": await pauses_in_force(state.ledger),
        "types": sorted(each.name for each in state.registry),
        "hidden": len(workers) - len(shown),
    }
    return DashboardPage("workers.html", context, title="Workers")
