"""Whether scheduler and workers are alive, and know the job types that they get."""

from __future__ import annotations

from datetime import timedelta

from switchyard.broker.wording import pluralize
from switchyard.services.common.instance import ProcessState, state_of_process
from switchyard.services.engine.ledger.leases import LEASE_SECONDS, MAX_CLOCK_SKEW, SCHEDULER
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    ok,
    some,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.processes import advice
from switchyard.services.engine.monitoring.worker_status import FORGOTTEN_AFTER, status_of
from switchyard.services.engine.records.results import LoopBlock, WorkerRecord

SHOWN_AFTER = 20.0
"""Seconds after its start at which a worker's consumers are listed for certain: it opens them when
its processes are ready, and the broker's list is some seconds old."""

AGAIN = 2
"""Deaths, one after another, that are no accident where each time the same type ran; where not, it
takes one more."""
OVER_AFTER = 900.0
"""Seconds after the last death from which it is only a warning."""


async def scheduler(system: DoctorContext) -> list[Diagnostic]:
    """One has to be active."""
    if (
        0
        < await system.need_ledger().leases.lease_remaining(SCHEDULER)
        < LEASE_SECONDS + MAX_CLOCK_SKEW
    ):
        return [ok("scheduler", "one is active")]
    detail = "none is active: delayed jobs are not published, and what a crash left is not healed"
    return [failure("scheduler", Finding.SCHEDULER_NONE, detail, "start `jobctl scheduler`")]


async def workers(system: DoctorContext) -> list[Diagnostic]:
    """Those of the last day."""
    alive, silent = await system.workers()
    kinds = ", ".join(sorted({kind for worker in alive for kind in worker.kinds}))
    detail = f"{len(alive)} alive ({kinds})" if alive else "none is alive"
    if silent:
        now = system.now()
        names = some(
            [
                f"{worker.worker_id} (process {worker.pid} on {worker.host}, for "
                f"{timedelta(seconds=round(now - worker.beat_at))})"
                for worker in silent
            ]
        )
        detail += f"; {len(silent)} fell silent within a day, and none took its place: {names}"
        found = warning if alive else failure
        return [found("workers", Finding.WORKERS_SILENT, detail, await advice(system, silent))]
    if not alive:
        return [failure("workers", Finding.WORKERS_NONE, detail, "start `jobctl worker all`")]
    return [ok("workers", detail)]


async def killed(system: DoctorContext) -> list[Diagnostic]:
    """Workers that died without a word, one after another, within a day."""
    ledger, now = system.need_ledger(), system.now()
    gone: dict[tuple[str, ...], list[WorkerRecord]] = {}
    for worker in sorted(await ledger.workers.list_workers(), key=lambda each: each.beat_at):
        if worker.kinds and _died(system, worker) and now - worker.beat_at < FORGOTTEN_AFTER:
            deaths = gone.setdefault(worker.kinds, [])
            # Those that end together, as with their host, are one.
            if not deaths or worker.started_at > deaths[-1].beat_at:
                deaths.append(worker)
    checks = []
    for kinds, deaths in gone.items():
        if len(deaths) < AGAIN:
            continue
        ran: dict[str, set[str]] = {each.worker_id: set() for each in deaths}
        for each in await ledger.workers.running_at_deaths(list(ran)):
            ran[each.worker_id].add(each.job_type)
        always = sorted(set.intersection(*ran.values()))
        if always or len(deaths) > AGAIN:
            checks.append(_killed_again(system, kinds, deaths, ran, always))
    return checks


def _died(system: DoctorContext, worker: WorkerRecord) -> bool:
    """Tell whether it has ended without saying so."""
    if worker.stopped_at is not None:
        return False
    state = state_of_process(worker.pid, worker.mark)
    if state is not ProcessState.UNKNOWN:
        return state is ProcessState.GONE
    after = system.settings.takeover_after
    return status_of(worker, takeover_after=after, now=system.now()) == "silent"


def _killed_again(
    system: DoctorContext,
    kinds: tuple[str, ...],
    deaths: list[WorkerRecord],
    ran: dict[str, set[str]],
    always: list[str],
) -> Diagnostic:
    lasted = deaths[-1].beat_at - deaths[0].beat_at
    minutes = pluralize(max(1, round(lasted / 60)), "minute")
    others = sorted(set.union(*ran.values()))
    if always:
        what = f"always while {some(always)} ran"
    elif others:
        what = f"while these ran, none of them each time: {some(others)}"
    else:
        what = "while no job ran"
    detail = (
        f"workers of {', '.join(kinds)} were killed {pluralize(len(deaths), 'time')} in {minutes}, "
        f"{what}; the last one {timedelta(seconds=round(system.now() - deaths[-1].beat_at))} ago"
    )
    hosts = ", ".join(sorted({each.host for each in deaths}))
    remedy = (
        f"why: on {hosts} `dmesg -T | grep -iE 'out of memory|killed process'`, or the events of "
        "the orchestrator (OOMKilled, a liveness probe); for want of memory a lower --concurrency, "
        "or a higher limit"
    )
    if always:
        remedy += (
            f"; `jobctl jobs list --type {always[0]}` shows its jobs; with "
            'isolation="process" and `memory_limit_mb` in its @job it harms nobody else'
        )
    is_over = system.now() - deaths[-1].beat_at > OVER_AFTER
    return (warning if is_over else failure)("workers", Finding.WORKERS_KILLED, detail, remedy)


async def blocked(system: DoctorContext) -> list[Diagnostic]:
    """Event loops that a job has blocked within a day, or does now."""
    now = system.now()
    found = await system.need_ledger().workers.loop_blocks(now - FORGOTTEN_AFTER)
    if not found:
        return []
    by_type: dict[str, list[LoopBlock]] = {}
    for block in found:
        by_type.setdefault(block.job_type or "", []).append(block)
    told = some([_blocked_by(name, blocks, now) for name, blocks in by_type.items()])
    named = next((each for each in found if each.job_id is not None), None)
    remedy = (
        "meanwhile it sends no heartbeat and starts no hot job: give what computes or waits there "
        'to `ctx.compute` or a thread, or its @job isolation="process": docs/python.md'
    )
    if named is not None:
        remedy += f"; the longest: `jobctl jobs show {named.job_id}`"
    return [warning("event loops", Finding.LOOP_BLOCKED, told, remedy)]


def _blocked_by(job_type: str, blocks: list[LoopBlock], now: float) -> str:
    longest = blocks[0]
    what = f"{job_type} (job {longest.job_id})" if job_type else "no known job"
    return (
        f"the event loop of {longest.worker_id} was blocked for {longest.seconds:.1f} s"
        f"{'' if longest.ended else ' and more'} by {what} at {longest.place}, "
        f"{timedelta(seconds=round(now - longest.began_at))} ago"
        + (f"; {pluralize(len(blocks), 'time')} within a day" if len(blocks) > 1 else "")
    )


async def consuming(system: DoctorContext) -> list[Diagnostic]:
    """Workers that could take jobs, and have no consumer on the broker."""
    alive, _ = await system.workers()
    busy = await system.running_by_worker()
    tags = {str(each["consumer_tag"]) for each in await system.need_management().consumers()}
    lost = [
        worker
        for worker in alive
        if system.now() - worker.started_at > SHOWN_AFTER
        and busy[worker.worker_id] < worker.concurrency
        and not any(tag.startswith(f"{worker.worker_id}.") for tag in tags)
    ]
    if not lost:
        return []
    detail = "alive, with free slots, and without a consumer on the broker: " + some(
        [f"{each.worker_id} (process {each.pid} on {each.host})" for each in lost]
    )
    remedy = f"it mends itself within 20 s; where this stays: {await advice(system, lost)}"
    return [warning("consumers", Finding.CONSUMER_LOST, detail, remedy)]


async def lacking(system: DoctorContext) -> list[Diagnostic]:
    """Workers that got jobs of types that they do not know."""
    found = await system.need_ledger().workers.lacking()
    if not found:
        return []
    told = some(
        [
            f"{each.worker_id} does not know {each.job_type} "
            f"({pluralize(each.jobs, 'job')} sent on)"
            for each in found
        ]
    )
    remedy = "start those workers with the modules of these types: JOBS_MODULES, or --include"
    return [failure("job types", Finding.TYPES_LACKING, told, remedy)]
