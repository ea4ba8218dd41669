"""Divide a queue among several backfills by their weights.

Each backfill compares its own waiting jobs with its fraction of its watermarks. If it compared the
depth of the whole queue, one with a lower watermark than the others would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.broker.lanes import queue_name
from switchyard.services.engine.backfill.sources import InvalidBackfill, Sources
from switchyard.services.engine.backfill.spec import KIND, parse_spec
from switchyard.services.engine.jobs.registry import Registry, UnknownJobType
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkState

MAX_PEERS = 200
"""Running backfills that are taken into account, at most."""
MAX_COUNTED = 100_000
"""Waiting jobs of one backfill that are counted, at most."""

FindTarget = Callable[[Mapping[str, Any]], tuple[str, float] | None]
"""Returns queue and weight of a backfill from its recorded spec; None where they are unknown."""


@dataclass(frozen=True, slots=True)
class QueueQuota:
    """A backfill's part of a queue that several backfills share."""

    fraction: float
    """Fraction of the queue, more than 0 and less than 1."""
    waiting: int
    """Jobs of this backfill in the queue."""


def make_target_finder(sources: Sources, registry: Registry) -> FindTarget:
    """Return a `FindTarget` for specs that use these sources and job types."""

    def find_target(record: Mapping[str, Any]) -> tuple[str, float] | None:
        try:
            spec = parse_spec(record)
            name = spec.job_type or sources.get(spec.source).job_type
            if name is None:
                return None
            return queue_name(spec.lane, registry.get_publishable(name).worker), spec.weight
        except (InvalidBackfill, UnknownJobType):
            return None  # it is of another version, or needs modules that are not loaded here

    return find_target


async def queue_quota(
    ledger: Ledger,
    operation_id: str,
    *,
    lane: str,
    worker: str,
    weight: float,
    find_target: FindTarget,
) -> QueueQuota | None:
    """Return the backfill's share of the queue; None where it has the queue for itself. Raises
    LedgerError."""
    running = await ledger.bulk.list_bulk(KIND, states=[BulkState.RUNNING], limit=MAX_PEERS)
    queue = queue_name(lane, worker)
    targets = [find_target(each.spec) for each in running.items if each.id != operation_id]
    other_weights = sum(each[1] for each in targets if each is not None and each[0] == queue)
    if not other_weights:
        return None
    waiting = await ledger.bulk_jobs.count_queued_bulk_jobs(
        operation_id, lane, worker, at_most=MAX_COUNTED
    )
    return QueueQuota(weight / (weight + other_weights), waiting)
