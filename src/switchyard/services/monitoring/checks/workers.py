"""Whether scheduler and workers are alive, and know the job types that they get."""

from __future__ import annotations

from datetime import timedelta

from switchyard.broker.wording import counted
from switchyard.services.ledger.leases import AHEAD, LEASE, SCHEDULER
from switchyard.services.monitoring.check import Check, Finding, some, warning, well, wrong
from switchyard.services.monitoring.checks.examined import Examined, restart_of

SHOWN_AFTER = 20.0
"""Seconds after its start at which a worker's consumers are listed for certain: it opens them when
its processes are ready, and the broker's list is some seconds old."""


async def scheduler(system: Examined) -> list[Check]:
    """One has to be active."""
    if 0 < await system.need_ledger().lease_remaining(SCHEDULER) < LEASE + AHEAD:
        return [well("scheduler", "one is active")]
    detail = "none is active: delayed jobs are not published, and what a crash left is not healed"
    return [wrong("scheduler", Finding.SCHEDULER_NONE, detail, "start `jobctl scheduler`")]


async def workers(system: Examined) -> list[Check]:
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
        found = warning if alive else wrong
        return [found("workers", Finding.WORKERS_SILENT, detail, restart_of(silent))]
    if not alive:
        return [wrong("workers", Finding.WORKERS_NONE, detail, "start `jobctl worker all`")]
    return [well("workers", detail)]


async def consuming(system: Examined) -> list[Check]:
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
    remedy = f"it mends itself within 20 s; where this stays: {restart_of(lost)}"
    return [warning("consumers", Finding.CONSUMER_LOST, detail, remedy)]


async def lacking(system: Examined) -> list[Check]:
    """Workers that got jobs of types that they do not know."""
    found = await system.need_ledger().lacking()
    if not found:
        return []
    told = some(
        [
            f"{each.worker_id} does not know {each.job_type} ({counted(each.jobs, 'job')} sent on)"
            for each in found
        ]
    )
    remedy = "start those workers with the modules of these types: JOBS_MODULES, or --include"
    return [wrong("job types", Finding.TYPES_LACKING, told, remedy)]
