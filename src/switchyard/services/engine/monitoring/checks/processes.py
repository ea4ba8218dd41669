"""What may be done about the process of a worker: the one place that advises to end one.

To end a process ends all that it runs, and its number may be another program's by now. So that is
advised only where nothing else explains what is seen, and where this host's system says that the
process is still the worker; else how to find that out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from switchyard.services.common.instance import ProcessState, state_of_process
from switchyard.services.engine.monitoring.check import Finding, some
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.worker_status import BEATS_PER_TAKEOVER
from switchyard.services.engine.records.results import LoopBlock, WorkerRecord

MAX_LISTED = 3
"""Processes that are named with what to do about them."""
LATE = 1.5
"""Times its interval for which a heartbeat is waited for."""
SHORTEST_LOOK, LONGEST_LOOK = 2.0, 4.0
"""Seconds within which that is."""
CAUSES = {
    Finding.DISK_FULL: "the full disk",
    Finding.LEDGER_AWAY: "the ledger",
    Finding.LEDGER_REFUSES: "the ledger",
    Finding.LEDGER_CROWDED: "the ledger",
    Finding.LEDGER_LOCKED: "the ledger",
    Finding.LEDGER_READ_ONLY: "the ledger",
    Finding.LEDGER_TABLES: "the ledger",
    Finding.SYSTEM_OTHER: "that ledger and broker are not of one time or system",
    Finding.BROKER_AWAY: "the broker",
    Finding.BROKER_REFUSES: "the broker",
    Finding.ALARM_DISK: "the broker's alarm",
    Finding.ALARM_MEMORY: "the broker's alarm",
    Finding.TOPOLOGY_MISSING: "what is missing on the broker",
    Finding.STORAGE_AWAY: "the storage",
}
"""What stops healthy workers, or makes them look as if they had stopped."""


async def advice(
    system: DoctorContext, workers: Sequence[WorkerRecord], *, start: bool = True
) -> str:
    """Return what to do about workers that seem not to work; with `start`, also how to start
    others. Takes as long as a heartbeat may, to see whether they send one. Raises LedgerError."""
    causes = list(dict.fromkeys(CAUSES[each] for each in CAUSES if each in system.found))
    if causes:
        return (
            f"first mend what is told above of {' and '.join(causes)}: workers wait for that and "
            "go on by themselves; end none of them, and look again with `jobctl doctor`"
        )
    named = workers[:MAX_LISTED]
    states = {each.worker_id: state_of_process(each.pid, each.mark) for each in named}
    here = [each for each in named if states[each.worker_id] is ProcessState.RUNS]
    beating = await _beating(system, here)
    told = [
        await _of_running(system, each, is_beating=each.worker_id in beating)
        if each in here
        else await _of_another(system, each, states[each.worker_id])
        for each in named
    ]
    if start:
        kinds = " ".join(sorted({kind for worker in workers for kind in worker.kinds}))
        told.append(f"where none is left, start `jobctl worker {kinds or 'all'}`")
    return "; ".join(told) or "its worker is not known any more"


async def _of_running(system: DoctorContext, worker: WorkerRecord, *, is_beating: bool) -> str:
    """Return what to do about a process of this host."""
    name, runs = _name(worker), await _runs(system, worker)
    if is_beating:
        return (
            f"{name} lives and sends heartbeats: see its log; {runs}; `kill {worker.pid}` stops it "
            "in order, and what it runs is ended or goes back to its queue"
        )
    block = await _lasting(system, worker)
    if block is not None:
        job = f"{block.job_type} {block.job_id}" if block.job_id else "what is no job"
        runs = f"its event loop is blocked by {job} at {block.place}; {runs}"
    return (
        f"{name} lives and sends no heartbeat: {runs}; its log says whether it will go on; if not, "
        f"`kill -9 {worker.pid}`: other workers run that again"
    )


async def _of_another(system: DoctorContext, worker: WorkerRecord, state: ProcessState) -> str:
    """Return what to do about one that does not run, or elsewhere."""
    name = _name(worker)
    if state is ProcessState.GONE:
        return f"{name} has ended: there is nothing to end"
    if state is ProcessState.STOPPED:
        return (
            f"{name} was stopped by a signal, as by a debugger, Ctrl-Z or SIGSTOP: SIGCONT lets it "
            f"go on; {await _runs(system, worker)}; if it is not to, `kill -9 {worker.pid}`: other "
            "workers run that again"
        )
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(worker.started_at))
    return (
        f"`jobctl doctor` there knows whether {name} is still the worker; without it `ps -o "
        f"pid,lstart,args -p {worker.pid}` has to show a worker that was started just before "
        f"{started}; its log says what it does"
    )


def _name(worker: WorkerRecord) -> str:
    return f"process {worker.pid} on {worker.host}"


async def _beating(system: DoctorContext, workers: Sequence[WorkerRecord]) -> set[str]:
    """Return those that send a heartbeat while this waits for one."""
    if not workers:
        return set()
    ledger = system.need_ledger()
    before = {each.worker_id: await ledger.workers.worker_beat(each.worker_id) for each in workers}
    interval = system.settings.takeover_after / BEATS_PER_TAKEOVER
    deadline = time.monotonic() + min(max(LATE * interval, SHORTEST_LOOK), LONGEST_LOOK)
    beating: set[str] = set()
    while len(beating) < len(before) and time.monotonic() < deadline:
        await asyncio.sleep(interval / 10)
        for worker_id, beat in before.items():
            if await ledger.workers.worker_beat(worker_id) != beat:
                beating.add(worker_id)
    return beating


async def _runs(system: DoctorContext, worker: WorkerRecord) -> str:
    """Return what it runs, as far as the ledger knows."""
    jobs = [f"{job.job_type} {job.id}" for job in await system.running_in(worker.worker_id)]
    return f"it runs {some(jobs)}" if jobs else "it runs no job"


async def _lasting(system: DoctorContext, worker: WorkerRecord) -> LoopBlock | None:
    """Return what blocks its loop now, as far as it was noted."""
    found = await system.need_ledger().workers.loop_blocks(worker.started_at)
    lasting = (each for each in found if each.worker_id == worker.worker_id and not each.ended)
    return next(lasting, None)
