"""Whether a worker lives, as far as its last beat tells: the one place that decides it."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.services.engine.records.results import WorkerRecord

BEATS_PER_TAKEOVER = 4
"""Signs of life that a worker gives in the time after which silence means death."""
IDLE_BEAT_INTERVAL = 3.0
"""Seconds between signs of life of a worker that has no job, which nobody could take over."""
SILENT_AFTER = 2.0
"""Times the takeover time, or the longest time between two beats, without a beat: after that, a
worker counts as silent."""
FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which a silent worker is no news any more."""


def beat_interval(takeover_after: float, *, idle: bool) -> float:
    """Return the seconds between two signs of life, of a worker that has a job or has none."""
    busy = takeover_after / BEATS_PER_TAKEOVER
    return max(busy, IDLE_BEAT_INTERVAL) if idle else busy


def status_of(worker: WorkerRecord, *, takeover_after: float, now: float) -> str:
    """`alive`, `silent` or `stopped`, as far as two clocks agree. Times in seconds."""
    if worker.stopped_at is not None:
        return "stopped"
    longest = max(takeover_after, beat_interval(takeover_after, idle=True))
    return "silent" if now - worker.beat_at > SILENT_AFTER * longest else "alive"


def is_current(worker: WorkerRecord, now: float) -> bool:
    """Tell whether somebody who looks at the system now wants to see it. Time in seconds."""
    return worker.stopped_at is None and now - worker.beat_at < FORGOTTEN_AFTER


def is_stopping(worker: WorkerRecord) -> bool:
    """Tell whether it takes no more jobs, and waits for those that it runs."""
    return worker.stopping_at is not None and worker.stopped_at is None


def is_replaced(worker: WorkerRecord, others: Iterable[WorkerRecord]) -> bool:
    """Tell whether later ones have taken on all its kinds, even if they have ended by now: its
    process is long gone, and its number may be another's."""
    later = [each for each in others if each.started_at > worker.beat_at]
    return set(worker.kinds) <= {kind for each in later for kind in each.kinds}
