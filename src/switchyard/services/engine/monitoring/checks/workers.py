"""Check scheduler and workers: they are alive, consume their queues, and know the job types that
they get.

Ending a process ends all jobs that it runs, and its number may be another program's by now. So only
`advice` ever advises to end one, and only if nothing else explains the finding, and this host's
system says that the process is still the worker. For another host, it says how to find that out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from switchyard.broker.wording import pluralize
from switchyard.services.common.durations import duration_text
from switchyard.services.common.instance_ids import ProcessState, state_of_process
from switchyard.services.engine.ledger.leases import LEASE_SECONDS, SCHEDULER
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    first_few,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.worker_status import (
    FORGOTTEN_AFTER,
    beat_interval,
    status_of,
)
from switchyard.services.engine.records.results import LoopBlock, WorkerRecord

CONSUMERS_LISTED_AFTER = 20.0
"""Seconds after the start of a worker from which its consumers must be listed: it opens them when
its processes are ready, and the broker's list is some seconds old."""

MIN_DEATHS = 2
"""Deaths, one after another, from which they are reported if the same job type ran each time;
otherwise, one more is needed."""
ONLY_WARNING_AFTER = 900.0
"""Seconds after the last death from which this is only a warning."""


async def scheduler(context: DoctorContext) -> list[Diagnostic]:
    """Check that a scheduler is active."""
    if await context.need_ledger().leases.lease_remaining(SCHEDULER, longest=LEASE_SECONDS):
        return [ok("scheduler", "one is active")]
    detail = "none is active: delayed jobs are not published, and what a crash left is not healed"
    return [failure("scheduler", Finding.SCHEDULER_NONE, detail, "start `jobctl scheduler`")]


async def workers(context: DoctorContext) -> list[Diagnostic]:
    """Check the workers of the last day."""
    alive, silent = await context.workers()
    kinds = ", ".join(sorted({kind for worker in alive for kind in worker.kinds}))
    alive_text = f"{len(alive)} alive ({kinds})" if alive else "none is alive"
    if silent:
        now = context.now()
        names = first_few(
            [
                f"{worker.worker_id} (process {worker.pid} on {worker.host}, for "
                f"{duration_text(now - worker.beat_at)})"
                for worker in silent
            ]
        )
        detail = (
            f"{len(silent)} fell silent within a day, and none took its place: {names}; "
            f"{alive_text}"
        )
        diagnose = warning if alive else failure
        return [diagnose("workers", Finding.WORKERS_SILENT, detail, await advice(context, silent))]
    if not alive:
        return [failure("workers", Finding.WORKERS_NONE, alive_text, "start `jobctl worker all`")]
    return [ok("workers", alive_text)]


async def killed(context: DoctorContext) -> list[Diagnostic]:
    """Check for workers that died, one after another, within a day."""
    ledger, now = context.need_ledger(), context.now()
    killed_by_kind: dict[tuple[str, ...], list[WorkerRecord]] = {}
    for worker in sorted(await ledger.workers.list_workers(), key=lambda each: each.beat_at):
        if worker.kinds and _has_died(context, worker) and now - worker.beat_at < FORGOTTEN_AFTER:
            deaths = killed_by_kind.setdefault(worker.kinds, [])
            # Workers that died together, as with their host, count once.
            if not deaths or worker.started_at > deaths[-1].beat_at:
                deaths.append(worker)
    checks = []
    for kinds, deaths in killed_by_kind.items():
        if len(deaths) < MIN_DEATHS:
            continue
        types_by_worker: dict[str, set[str]] = {each.worker_id: set() for each in deaths}
        for each in await ledger.workers.running_at_deaths(list(types_by_worker)):
            types_by_worker[each.worker_id].add(each.job_type)
        common_types = sorted(set.intersection(*types_by_worker.values()))
        if common_types or len(deaths) > MIN_DEATHS:
            checks.append(_killed_repeatedly(context, kinds, deaths, types_by_worker, common_types))
    return checks


def _has_died(context: DoctorContext, worker: WorkerRecord) -> bool:
    """Tell whether a worker has ended without recording its stop."""
    if worker.stopped_at is not None:
        return False
    state = state_of_process(worker.pid, worker.mark)
    if state is not ProcessState.UNKNOWN:
        return state is ProcessState.GONE
    after = context.settings.takeover_after
    return status_of(worker, takeover_after=after, now=context.now()) == "silent"


def _killed_repeatedly(
    context: DoctorContext,
    kinds: tuple[str, ...],
    deaths: list[WorkerRecord],
    types_by_worker: dict[str, set[str]],
    common_types: list[str],
) -> Diagnostic:
    span = deaths[-1].beat_at - deaths[0].beat_at
    minutes = pluralize(max(1, round(span / 60)), "minute")
    others = sorted(set.union(*types_by_worker.values()))
    if common_types:
        what = f"always while {first_few(common_types)} ran"
    elif others:
        what = f"while these ran, none of them each time: {first_few(others)}"
    else:
        what = "while no job ran"
    detail = (
        f"workers of {', '.join(kinds)} were killed {pluralize(len(deaths), 'time')} in {minutes}, "
        f"{what}; the last one {duration_text(context.now() - deaths[-1].beat_at)} ago"
    )
    hosts = ", ".join(sorted({each.host for each in deaths}))
    remedy = (
        f"why: on {hosts} `dmesg -T | grep -iE 'out of memory|killed process'`, or the events of "
        "the orchestrator (OOMKilled, a liveness probe); for want of memory a lower --concurrency, "
        "or a higher limit"
    )
    if common_types:
        remedy += (
            f"; `jobctl jobs list --type {common_types[0]}` shows its jobs; with "
            'isolation="process" and `memory_limit_mb` in its @job it harms nobody else'
        )
    is_over = context.now() - deaths[-1].beat_at > ONLY_WARNING_AFTER
    return (warning if is_over else failure)("workers", Finding.WORKERS_KILLED, detail, remedy)


async def blocked(context: DoctorContext) -> list[Diagnostic]:
    """Check for event loops that were blocked within a day, or are blocked now."""
    now = context.now()
    recent_blocks = await context.need_ledger().workers.loop_blocks(now - FORGOTTEN_AFTER)
    if not recent_blocks:
        return []
    by_type: dict[str, list[LoopBlock]] = {}
    for block in recent_blocks:
        by_type.setdefault(block.job_type or "", []).append(block)
    examples = first_few([_describe_blocks(name, blocks, now) for name, blocks in by_type.items()])
    longest_of_a_job = next((each for each in recent_blocks if each.job_id is not None), None)
    if longest_of_a_job is None:
        remedy = (
            "nothing, if it stays rare: where no job ran, mostly the machine had no time for the "
            "process (`uptime`), or its disk was slow; otherwise what is named there computes or "
            "waits in the event loop"
        )
    else:
        remedy = (
            "a worker with a blocked loop sends no heartbeat and starts no hot job: move what "
            "computes or waits there into `ctx.compute` or a thread, or give its @job "
            'isolation="process": docs/python.md; '
            f"the longest: `jobctl jobs show {longest_of_a_job.job_id}`"
        )
    return [warning("event loops", Finding.LOOP_BLOCKED, examples, remedy)]


def _describe_blocks(job_type: str, blocks: list[LoopBlock], now: float) -> str:
    longest = blocks[0]
    what = f"by {job_type} (job {longest.job_id})" if job_type else "while no job ran there,"
    return (
        f"the event loop of {longest.worker_id} was blocked for {duration_text(longest.seconds)}"
        f"{'' if longest.ended else ' and more'} {what} at {longest.place}, "
        f"{duration_text(now - longest.began_at)} ago"
        + (f"; {pluralize(len(blocks), 'time')} within a day" if len(blocks) > 1 else "")
    )


async def consuming(context: DoctorContext) -> list[Diagnostic]:
    """Check for workers with free slots that have no consumer on the broker."""
    alive, _ = await context.workers()
    busy = await context.running_by_worker()
    tags = {str(each["consumer_tag"]) for each in await context.need_management().consumers()}
    lost = [
        worker
        for worker in alive
        if context.now() - worker.started_at > CONSUMERS_LISTED_AFTER
        and busy[worker.worker_id] < worker.concurrency
        # Of one that has just ended, `workers` and `killed` tell more.
        and state_of_process(worker.pid, worker.mark) is not ProcessState.GONE
        and not any(tag.startswith(f"{worker.worker_id}.") for tag in tags)
    ]
    if not lost:
        return []
    detail = "alive, with free slots, and without a consumer on the broker: " + first_few(
        [f"{each.worker_id} (process {each.pid} on {each.host})" for each in lost]
    )
    remedy = f"it mends itself within 20 s; where this stays: {await advice(context, lost)}"
    return [warning("consumers", Finding.CONSUMER_LOST, detail, remedy)]


async def unknown_types(context: DoctorContext) -> list[Diagnostic]:
    """Check for job types of waiting jobs that workers do not know: either workers that have sent
    such jobs on, or all live workers."""
    ledger = context.need_ledger()
    reports = await ledger.workers.find_unknown_types()
    sent_on = {each.job_type for each in reports}
    alive, _ = await context.workers()
    unworked = {
        job_type: (kind, count)
        for (job_type, kind), count in (await ledger.gauges.waiting_types()).items()
        if job_type not in sent_on
        and any(kind in each.kinds for each in alive)  # else its whole queue is not worked
        and not any(each.runs(kind, job_type) for each in alive)
    }
    if not (sent_on or unworked):
        return []
    modules = {
        each.name: each.module
        for each in await ledger.job_types.list_job_types(sent_on | set(unworked))
    }
    checks = []
    if reports:
        examples = first_few(
            [
                f"{each.worker_id} does not know {each.job_type} "
                f"({pluralize(each.jobs, 'job')} sent on)"
                for each in reports
            ]
        )
        remedy = f"start those workers with {_modules_of(sent_on, modules)}"
        checks.append(failure("job types", Finding.TYPES_LACKING, examples, remedy))
    if unworked:
        examples = first_few(
            [
                f"{pluralize(count, 'job waits', 'jobs wait')} of {job_type}, which no worker of "
                f"{kind} that lives can run"
                for job_type, (kind, count) in sorted(unworked.items())
            ]
        )
        kinds = " ".join(sorted({kind for kind, _ in unworked.values()}))
        remedy = f"start `jobctl worker {kinds}` with {_modules_of(unworked, modules)}"
        checks.append(failure("job types", Finding.TYPES_UNWORKED, examples, remedy))
    return checks


async def outdated_types(context: DoctorContext) -> list[Diagnostic]:
    """Check for workers that got newer payloads than they know, and have sent these jobs on."""
    reports = await context.need_ledger().workers.find_outdated_types()
    if not reports:
        return []
    examples = first_few(
        [
            f"{each.worker_id} knows an older version of {each.job_type} than "
            f"{pluralize(each.jobs, 'job')} that it has sent on"
            for each in reports
        ]
    )
    remedy = (
        "end these workers and start those of the newer release; the error in `jobctl jobs show` "
        "has both versions: docs/payloads.md#what-happens-in-a-deploy"
    )
    return [warning("payload versions", Finding.VERSIONS_LACKING, examples, remedy)]


def _modules_of(names: Iterable[str], modules: Mapping[str, str]) -> str:
    """Return the advice which modules a worker must load for these types; `modules` has the
    registered ones by type."""
    needed = first_few(sorted({modules[name] for name in names if name in modules}))
    return (
        f"the modules of these types: JOBS_MODULES, or --include{f' ({needed})' if needed else ''}"
    )


MAX_ADVISED = 3
"""Processes that a diagnostic names with a remedy, at most."""
HEARTBEAT_FACTOR = 1.5
"""Time to wait for a heartbeat, as a multiple of the interval between two."""
MIN_HEARTBEAT_WAIT, MAX_HEARTBEAT_WAIT = 2.0, 4.0
"""Seconds of this wait, at least and at most."""
HEARTBEAT_POLL_INTERVAL = 0.1
"""Seconds between polls for a heartbeat."""
CAUSES = {
    Finding.DISK_FULL: "the full disk",
    Finding.LEDGER_AWAY: "the ledger",
    Finding.LEDGER_REFUSES: "the ledger",
    Finding.LEDGER_CROWDED: "the ledger",
    Finding.LEDGER_LOCKED: "the ledger",
    Finding.LEDGER_READ_ONLY: "the ledger",
    Finding.LEDGER_TABLES: "the ledger",
    Finding.SYSTEM_OTHER: "that ledger and broker don't belong together",
    Finding.BROKER_AWAY: "the broker",
    Finding.BROKER_REFUSES: "the broker",
    Finding.ALARM_DISK: "the broker's alarm",
    Finding.ALARM_MEMORY: "the broker's alarm",
    Finding.TOPOLOGY_MISSING: "what is missing on the broker",
    Finding.STORAGE_AWAY: "the storage",
}
"""Findings that stop healthy workers or make them look stopped, with their names in advice."""


async def advice(
    context: DoctorContext, workers: Sequence[WorkerRecord], *, start: bool = True
) -> str:
    """Return the advice for workers that seem not to work; with `start`, also how to start others.
    Waits up to MAX_HEARTBEAT_WAIT seconds to see whether they send a heartbeat. Raises
    LedgerError."""
    if causes := advise_on_causes(context):
        return causes
    named = workers[:MAX_ADVISED]
    states = {each.worker_id: state_of_process(each.pid, each.mark) for each in named}
    running_here = [each for each in named if states[each.worker_id] is ProcessState.RUNS]
    beating = await _wait_for_heartbeats(context, running_here)
    parts = [
        await _advise_on_running(context, each, is_beating=each.worker_id in beating)
        if each in running_here
        else await _advise_on_other(context, each, states[each.worker_id])
        for each in named
    ]
    if start:
        kinds = " ".join(sorted({kind for worker in workers for kind in worker.kinds}))
        parts.append(f"where none is left, start `jobctl worker {kinds or 'all'}`")
    return "; ".join(parts) or "its worker is not known any more"


def advise_on_held_jobs(context: DoctorContext, kinds: str) -> str:
    """Return the advice for jobs that wait for workers of which `workers` reports that they are
    silent."""
    return advise_on_causes(context) or (
        f"start `jobctl worker {kinds}`: it takes the jobs that wait; those that a silent process "
        f"holds come back when it goes on or ends, as `{Finding.WORKERS_SILENT}` advises"
    )


def advise_on_causes(context: DoctorContext) -> str | None:
    """Return the advice where something else stops the workers."""
    causes = list(dict.fromkeys(CAUSES[each] for each in CAUSES if each in context.found))
    if not causes:
        return None
    return (
        f"first mend what is reported above of {' and '.join(causes)}: workers wait for that "
        "and go on by themselves; end none of them, and look again with `jobctl doctor`"
    )


async def _advise_on_running(
    context: DoctorContext, worker: WorkerRecord, *, is_beating: bool
) -> str:
    """Return the advice for a worker whose process runs on this host."""
    name, work = _describe(worker), await _describe_jobs(context, worker)
    if is_beating:
        return (
            f"{name} lives and sends heartbeats: see its log; {work}; `kill {worker.pid}` stops it "
            "in order, and what it runs is ended or goes back to its queue"
        )
    block = await _current_block(context, worker)
    if block is not None:
        job = f"{block.job_type} {block.job_id}" if block.job_id else "what is no job"
        others = "" if work == f"it runs {job}" else f"; {work}"
        work = f"its event loop is blocked by {job} at {block.place}{others}"
    return (
        f"{name} lives and sends no heartbeat: {work}; its log says whether it will go on; if not, "
        f"`kill -9 {worker.pid}`: other workers run that again"
    )


async def _advise_on_other(
    context: DoctorContext, worker: WorkerRecord, state: ProcessState
) -> str:
    """Return the advice for a worker whose process has ended or was stopped, or is on another
    host."""
    name = _describe(worker)
    if state is ProcessState.GONE:
        return f"{name} has ended: there is nothing to end"
    if state is ProcessState.STOPPED:
        return (
            f"{name} was stopped by a signal, as by a debugger, Ctrl-Z or SIGSTOP: `kill -CONT "
            f"{worker.pid}` lets it go on; {await _describe_jobs(context, worker)}; if it is not "
            f"to go on, `kill -9 {worker.pid}`: other workers run its jobs again"
        )
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(worker.started_at))
    return (
        f"`jobctl doctor` there knows whether {name} is still the worker; without it `ps -o "
        f"pid,lstart,args -p {worker.pid}` has to show a worker that was started just before "
        f"{started}; its log says what it does"
    )


def _describe(worker: WorkerRecord) -> str:
    return f"process {worker.pid} on {worker.host}"


async def _wait_for_heartbeats(context: DoctorContext, workers: Sequence[WorkerRecord]) -> set[str]:
    """Wait for heartbeats of these workers; return the ids of those that send one."""
    if not workers:
        return set()
    ledger = context.need_ledger()
    before = {each.worker_id: await ledger.workers.worker_beat(each.worker_id) for each in workers}
    interval = beat_interval(context.settings.takeover_after, idle=True)
    deadline = time.monotonic() + min(
        max(HEARTBEAT_FACTOR * interval, MIN_HEARTBEAT_WAIT), MAX_HEARTBEAT_WAIT
    )
    beating: set[str] = set()
    while len(beating) < len(before) and time.monotonic() < deadline:
        await asyncio.sleep(HEARTBEAT_POLL_INTERVAL)
        for worker_id, beat in before.items():
            if await ledger.workers.worker_beat(worker_id) != beat:
                beating.add(worker_id)
    return beating


async def _describe_jobs(context: DoctorContext, worker: WorkerRecord) -> str:
    """Return a text that names the jobs of a worker, according to the ledger."""
    jobs = [f"{job.job_type} {job.id}" for job in await context.running_in(worker.worker_id)]
    return f"it runs {first_few(jobs)}" if jobs else "it runs no job"


async def _current_block(context: DoctorContext, worker: WorkerRecord) -> LoopBlock | None:
    """Return the recorded block that its event loop is in now; None where there is none."""
    blocks = await context.need_ledger().workers.loop_blocks(worker.started_at)
    current = (each for each in blocks if each.worker_id == worker.worker_id and not each.ended)
    return next(current, None)
