"""Decide by its last heartbeat whether a worker counts as alive in reports, metrics and checks.

When a job of a silent worker is taken over is decided in `runtime.claims`, which counts heartbeats
and compares no clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from switchyard.services.engine.records.results import WorkerRecord

BEATS_PER_TAKEOVER = 4
"""Heartbeats of a busy worker in the time after which its jobs are taken over."""
IDLE_BEAT_INTERVAL = 3.0
"""Seconds between heartbeats of a worker without a job that could be taken over."""
SILENT_AFTER = 2.0
"""Time without a heartbeat after which a worker counts as silent, as a multiple of the takeover
time, or of the interval between heartbeats if that is longer."""
FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which a silent worker is no longer reported."""


def beat_interval(takeover_after: float, *, idle: bool) -> float:
    """Return the seconds between two heartbeats of a worker; `idle`: it has no job."""
    busy = takeover_after / BEATS_PER_TAKEOVER
    return max(busy, IDLE_BEAT_INTERVAL) if idle else busy


def status_of(worker: WorkerRecord, *, takeover_after: float, now: float) -> str:
    """Return `alive`, `silent` or `stopped`. Times are seconds, by the ledger's clock."""
    if worker.stopped_at is not None:
        return "stopped"
    longest = max(takeover_after, beat_interval(takeover_after, idle=True))
    return "silent" if now - worker.beat_at > SILENT_AFTER * longest else "alive"


def is_current(worker: WorkerRecord, now: float) -> bool:
    """Tell whether a worker belongs in a report on the present: not stopped, and not silent for
    more than a day."""
    return worker.stopped_at is None and now - worker.beat_at < FORGOTTEN_AFTER


def is_stopping(worker: WorkerRecord) -> bool:
    """Tell whether a worker takes no more jobs, and waits for those that it runs."""
    return worker.stopping_at is not None and worker.stopped_at is None


def is_replaced(worker: WorkerRecord, others: Iterable[WorkerRecord]) -> bool:
    """Tell whether later workers have served all its kinds, even if they have ended by now. Then
    its own process is long gone, and another may have its number."""
    later = [each for each in others if each.started_at > worker.beat_at]
    return set(worker.kinds) <= {kind for each in later for kind in each.kinds}


def alive_and_silent(
    workers: Sequence[WorkerRecord], *, takeover_after: float, now: float
) -> tuple[list[WorkerRecord], list[WorkerRecord]]:
    """Return the live workers, and those that fell silent within a day and were not replaced by
    later ones. A process that only calls language models serves no queue, and is left out."""
    by_status: dict[str, list[WorkerRecord]] = {"alive": [], "silent": [], "stopped": []}
    for worker in workers:
        if worker.kinds:
            by_status[status_of(worker, takeover_after=takeover_after, now=now)].append(worker)
    silent = [
        worker
        for worker in by_status["silent"]
        if is_current(worker, now) and not is_replaced(worker, workers)
    ]
    return by_status["alive"], silent
