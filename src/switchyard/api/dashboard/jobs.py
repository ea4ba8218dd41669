"""Jobs: the list with its filters, and the page of one job."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from switchyard.api.dashboard.formats import duration, since
from switchyard.api.dashboard.pages import (
    DashboardPage,
    DashboardView,
    PageHead,
    Pages,
    allows,
    done,
)
from switchyard.api.dashboard.readings import ReadingsOf
from switchyard.api.dashboard.sessions import PATH
from switchyard.api.engine import events
from switchyard.api.engine.job_publishing import prepare_job, publish_job
from switchyard.api.engine.jobs import JobIdInPath, PlainText, cancel_job
from switchyard.api.http.problems import Problem
from switchyard.api.http.routing import Cursor
from switchyard.api.middleware.access import source_of
from switchyard.api.state import Shared
from switchyard.api.views.pauses import pause_of, view_pause
from switchyard.broker import patterns
from switchyard.broker.lanes import LANES
from switchyard.broker.message import MAX_TAGS
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.ledger.job_reads import EXAMINED_JOBS, JobReads
from switchyard.services.engine.ledger.short_ids import IdTable
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.requests import DeadLetterFilter, JobFilter, parse_tag
from switchyard.services.engine.records.results import JobRecord, JobSummary
from switchyard.services.engine.records.states import FINISHED, DeadLetterState, State

JOBS_PATH = f"{PATH}/jobs"
router = Pages(DashboardView("jobs", "Jobs", JOBS_PATH))

RARE_FIELDS = ("tag", "slower", "operation", "error")
"""Fields of the filter that are folded away while they are empty."""
PAGE_SIZE = 50
MAX_SHOWN = 100_000
"""Characters of a payload or result on a page."""
MAX_COUNTED = 1_000
"""Jobs that fit a filter and are counted by their states, the newest."""
MAX_RUN = 200
"""Jobs of a run, which is a pipeline, in its waterfall."""
PERIODS = {"1h": 3600.0, "24h": 86_400.0, "7d": 7 * 86_400.0}
"""Seconds by the name of a period."""
LaneChoice = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True, slots=True)
class RunRow:
    """A job of a run in its waterfall; positions and widths are percents of the run's time."""

    job: JobSummary
    wait_x: float
    wait_width: float
    run_x: float
    run_width: float


@dataclass(frozen=True, slots=True)
class AskedJobs:
    """The filters of the page: the form's fields, and the ledger's filter for them."""

    fields: dict[str, str]
    """Values by the names of the form's fields; empty where nothing was entered."""
    job_filter: JobFilter

    @property
    def query(self) -> str:
        """The same as a query, for a link."""
        return urlencode({name: value for name, value in self.fields.items() if value})


async def _read_filters(
    state: Shared,
    job_state: Annotated[str, Query(alias="state", max_length=20)] = "",
    lane: LaneChoice = "",
    job_type: Annotated[str, Query(alias="type", max_length=200)] = "",
    source: PlainText = None,
    period: Annotated[str, Query(max_length=10)] = "",
    slower: Annotated[str, Query(max_length=20)] = "",
    error: PlainText = None,
    operation: PlainText = None,
    tags: Annotated[str | None, Query(alias="tag", max_length=500, pattern=patterns.PLAIN)] = None,
) -> AskedJobs:
    """Read the filters. Raises Problem."""
    now = state.ledger.clock.time()
    try:
        job_filter = JobFilter(
            state=State(job_state) if job_state in set(State) else None,
            lane=lane if lane in {each.name for each in LANES} else None,
            job_type=job_type.strip() or None,
            source=(source or "").strip() or None,
            since=now - PERIODS[period] if period in PERIODS else None,
            slower_than=parse_seconds(slower) if slower.strip() else None,
            error=(error or "").strip() or None,
            operation_id=(operation or "").strip() or None,
            tags=dict(parse_tag(each) for each in (tags or "").split()[:MAX_TAGS]),
        )
    except ValueError as wrong:
        raise Problem("invalid", str(wrong)) from wrong
    fields = {
        "state": job_state,
        "lane": lane,
        "type": job_type,
        "source": source or "",
        "period": period,
        "slower": slower,
        "error": error or "",
        "operation": operation or "",
        "tag": tags or "",
    }
    return AskedJobs(fields, job_filter)


Asked = Annotated[AskedJobs, Depends(_read_filters)]


def parse_seconds(text: str) -> float:
    """Read a number of seconds. Raises ValueError."""
    try:
        seconds = float(text.strip().removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise ValueError(f"{text!r} is no number of seconds: write 5 or 0.5")
    return seconds


@router.get("")
async def list_jobs(
    request: Request,
    state: Shared,
    asked: Asked,
    job_id: Annotated[str, Query(alias="id", max_length=100)] = "",
    cursor: Cursor = None,
    everything: bool = False,
) -> Response:
    """List jobs, newest first; all filters must match. An id, or its beginning, finds one. Where no
    index finds those that match, one page examines at most EXAMINED_JOBS, of the chosen state if
    there is one; with `everything`, all."""
    job_filter, reads = asked.job_filter, state.ledger.job_reads
    is_bounded = job_filter.is_scan and not everything
    examined_since = None
    if wanted_id := job_id.strip():
        full_id = await state.ledger.short_ids.full_id(IdTable.JOBS, wanted_id)
        if await reads.get(full_id) is not None:
            return RedirectResponse(f"{JOBS_PATH}/{quote(full_id, safe='')}", 303)
        jobs: Sequence[JobSummary] = ()
        older = None
    else:
        page = await reads.list_jobs(
            job_filter,
            limit=PAGE_SIZE,
            cursor=cursor,
            examined=EXAMINED_JOBS if is_bounded else None,
        )
        jobs, older, examined_since = page.items, page.next_cursor, page.examined_since
    # Whether `jobs` are all that match the filter without a state among those examined.
    is_all = (
        cursor is None
        and (older is None or (examined_since is not None and len(jobs) < PAGE_SIZE))
        and job_filter.state is None
        and not wanted_id
    )
    counts: Mapping[State, int] = {}
    counted_newest = counted_among = None
    if examined_since is None or cursor is None:
        counted, counted_since = replace(job_filter, state=None), examined_since
        if is_bounded and not is_all:
            counted_since = await reads.find_examined_since(counted, EXAMINED_JOBS)
        if is_bounded and counted_since is not None:
            counted, counted_among = replace(counted, since=counted_since), EXAMINED_JOBS
        counts, counted_newest = await _count_by_state(reads, counted, jobs if is_all else None)
    query = {key: value for key, value in request.query_params.items() if key != "cursor" and value}
    context = {
        "jobs": jobs,
        "states": list(State),
        "lanes": [each.name for each in LANES],
        "types": sorted(each.name for each in state.registry),
        "periods": list(PERIODS),
        "asked": asked.fields | {"id": job_id},
        "rare": any(asked.fields[each] for each in RARE_FIELDS),
        "act_on": None if asked.job_filter.is_empty else f"{JOBS_PATH}/act?{asked.query}",
        "counts": counts,
        "counted_newest": counted_newest,
        "counted_among": counted_among,
        "read": EXAMINED_JOBS,
        "read_until": examined_since if len(jobs) < PAGE_SIZE else None,
        "read_all": _make_address(query | {"everything": "true"}),
        "without_state": urlencode({k: v for k, v in query.items() if k not in ("state", "id")}),
        "newer": _make_address(query) if cursor else None,
        "older": _make_address(query | {"cursor": older}) if older else None,
        **TIMES,
    }
    return DashboardPage("jobs.html", context, title="Jobs")


@router.get("/{job_id}")
async def show_job(
    request: Request, job_id: JobIdInPath, state: Shared, readings: ReadingsOf
) -> DashboardPage:
    """Show everything that is known of a job, and the jobs of its run."""
    reads = state.ledger.job_reads
    # First, so that changes during the reads below are noticed.
    head = (await reads.run_versions([job_id])).get(job_id)
    record = await reads.require(job_id)
    record = replace(record, payload=state.registry.hide_secrets(record.job_type, record.payload))
    run = await reads.pipeline(record.pipeline or job_id)
    letters = DeadLetterFilter(ids=frozenset({job_id}))
    dead = await state.ledger.dead_letters.list_dead(letters, limit=1)
    letter = next(iter(dead.items), None)
    pause = await pause_of(state.ledger, record)
    context = {
        "job": record,
        "pause": None if pause is None else view_pause(pause),
        "traceback": None if letter is None else letter.traceback,
        "letter": letter if letter and letter.state == DeadLetterState.WAITING else None,
        "payload": pretty(record.payload),
        "result": None if record.result is None else pretty(record.result),
        "acts": await state.ledger.job_actions.of_job(job_id),
        "metadata": pretty(record.envelope.get("metadata", {})),
        "run": run[:MAX_RUN],
        "waterfall": waterfall,
        "more_of_run": max(0, len(run) - MAX_RUN),
        "is_open": record.state not in FINISHED,
        "commands": commands(record, str(request.base_url)),
        "usual": await readings.usual_run_times.of(record.job_type),
        **TIMES,
    }
    return DashboardPage(
        "job.html",
        context,
        title=f"{record.job_type} {record.id[:8]}",
        # Whether a waiting job is paused is decided elsewhere.
        head=PageHead(partial(readings.run_versions.of, job_id), head, covers_all=not record.waits),
    )


@router.get("/{job_id}/events")
async def follow_job(job_id: JobIdInPath, state: Shared, request: Request) -> Response:
    """Stream the events of a job until it ends: the API's stream, for whoever is signed in."""
    return await events.follow_job(job_id, state, request)


@router.post("/{job_id}/cancel", dependencies=[allows(Scope.PUBLISH)])
async def cancel(job_id: JobIdInPath, state: Shared) -> Response:
    """Cancel a job."""
    cancelled = await cancel_job(state, job_id)
    notice = "Its worker was told to stop." if cancelled.stopping else "Cancelled: it will not run."
    return done(f"{JOBS_PATH}/{job_id}", notice)


@router.post("/{job_id}/copy", dependencies=[allows(Scope.PUBLISH)])
async def publish_again(job_id: JobIdInPath, request: Request, state: Shared) -> Response:
    """Publish a job of the same type, with the same payload."""
    record = await state.ledger.job_reads.require(job_id)
    broker = state.require_broker()
    job_request = JobRequest(
        record.routing_key,
        record.payload,
        priority=record.priority,
        source=source_of(request, None),
    )
    accepted = await publish_job(
        broker, await prepare_job(broker, job_request, by_routing_key=True)
    )
    return done(f"{JOBS_PATH}/{accepted.job_id}", f"Published again, as a copy of {record.id[:8]}.")


def run_time(job: JobSummary, now: float) -> float | None:
    """Return the seconds of a job's last attempt so far."""
    if job.started_at is None:
        return None
    end = job.finished_at if job.finished_at is not None else now
    return max(0.0, end - job.started_at) if job.state is not State.QUEUED else None


def wait_time(job: JobSummary, now: float) -> float | None:
    """Return the seconds from when a job entered its queue until it was begun, or until now."""
    begin = job.queued_at or job.created_at
    if job.started_at is not None:
        return max(0.0, job.started_at - begin)
    return None if job.state in FINISHED else max(0.0, now - begin)


def ran(job: JobSummary, now: float) -> str:
    """Write `run_time`; the page's script counts on while the job runs."""
    seconds = run_time(job, now)
    if seconds is None or job.finished_at is not None:
        return duration(seconds)
    return since(job.started_at, now)


def waited(job: JobSummary, now: float) -> str:
    """Write `wait_time`; the page's script counts on while the job waits."""
    seconds = wait_time(job, now)
    if seconds is None or job.started_at is not None:
        return duration(seconds)
    return since(job.queued_at or job.created_at, now)


TIMES = {"ran": ran, "waited": waited, "run_time": run_time, "wait_time": wait_time}
"""For templates that show jobs."""


def waterfall(run: Sequence[JobSummary], now: float) -> list[RunRow]:
    """Lay out the jobs of a run over its time, in the order in which they were made."""
    if len(run) < 2:
        return []
    begin = min(each.created_at for each in run)
    end = max(each.finished_at or (now if each.state not in FINISHED else begin) for each in run)
    scale = 100 / max(0.001, end - begin)

    def place(at: float) -> float:
        return round(min(100.0, max(0.0, (at - begin) * scale)), 2)

    rows = []
    for job in sorted(run, key=lambda each: each.created_at):
        stop = job.finished_at or (now if job.state not in FINISHED else job.created_at)
        start = job.started_at if job.started_at is not None else stop
        rows.append(
            RunRow(
                job,
                wait_x=place(job.created_at),
                wait_width=max(0.0, place(start) - place(job.created_at)),
                run_x=place(start),
                run_width=max(0.4, place(stop) - place(start)) if job.started_at else 0.0,
            )
        )
    return rows


def pretty(value: Any) -> str:
    """Write JSON for people, cut where it is very long."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    text = text.encode("utf-8", "replace").decode()
    left = len(text) - MAX_SHOWN
    return text if left <= 0 else f"{text[:MAX_SHOWN]}\n… and {left:,} characters more"


def commands(job: JobRecord, base_url: str) -> dict[str, str]:
    """Return commands that publish the same job elsewhere, and one that shows it, by captions.
    `base_url` is where this API was asked."""
    payload = json.dumps(job.payload, ensure_ascii=True)
    body = json.dumps({"routing_key": job.routing_key, "payload": job.payload}, ensure_ascii=True)
    return {
        "jobctl": f"jobctl publish {job.routing_key} --payload {shlex.quote(payload)}",
        "curl": f"curl {shlex.quote(f'{base_url}jobs')} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(body)}",
        "Python": "from switchyard import BlockingPublisher, JobMessage\n\n"
        "with BlockingPublisher() as publisher:\n"
        f"    message = JobMessage(job_type={job.job_type!r}, payload={job.payload!r})\n"
        f"    publisher.publish(message, {job.routing_key!r})",
        "show it": f"jobctl jobs show {job.id}",
    }


async def _count_by_state(
    reads: JobReads, job_filter: JobFilter, found: Sequence[JobSummary] | None
) -> tuple[Mapping[State, int], int | None]:
    """Return the jobs that match a filter without a state, by their states, and the number of
    newest jobs to which the count was limited (None: all were counted). With no filter but a lane,
    only jobs that have not ended are counted. `found` are all matching jobs, if the caller has
    them."""
    if replace(job_filter, lane=None).is_empty:
        return await reads.count_open_by_state(job_filter.lane), None
    if found is not None:  # to look for more would go through all jobs once again
        return Counter(each.state for each in found), None
    counts = await reads.count_newest_by_state(job_filter, newest=MAX_COUNTED)
    return counts, MAX_COUNTED if sum(counts.values()) >= MAX_COUNTED else None


def _make_address(query: Mapping[str, Any]) -> str:
    return f"{JOBS_PATH}?{urlencode(query)}"
