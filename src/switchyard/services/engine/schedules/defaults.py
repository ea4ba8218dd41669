"""What is published at night without anybody having asked for it. An entry is one line; those whose
job types a system does not have are left out."""

from __future__ import annotations

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.schedules.entry import ScheduleEntry

DEFAULTS = (
    ScheduleEntry(
        name="compute-similarity", cron="0 1 * * *", job="maintenance.compute_similarity"
    ),
    ScheduleEntry(name="recompute-graph", cron="30 2 * * *", job="maintenance.recompute_graph"),
    ScheduleEntry(name="compact-storage", cron="30 3 * * *", job="maintenance.compact_storage"),
    ScheduleEntry(name="cleanup-expired", cron="0 4 * * *", job="maintenance.cleanup_expired"),
)


def defaults(registry: Registry) -> list[ScheduleEntry]:
    """Return those of which this process knows the job types."""
    return [each for each in DEFAULTS if each.job.partition(".")[2] in registry]
