"""Several backfills into one queue: each has a part of its room, by its weight.

Each keeps as many jobs waiting as its part of its own watermarks, whatever the others do: none
waits until the others leave the queue below its mark, as one with a lower mark would for ever.
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

PEERS = 200
"""Running backfills that are looked at."""
MAX_COUNTED = 100_000

Target = Callable[[Mapping[str, Any]], tuple[str, float] | None]
"""The queue and the weight of a backfill's record; None where it can't be told."""


@dataclass(frozen=True, slots=True)
class QueueQuota:
    """A backfill's part of a queue that several backfills share."""

    part: float
    """More than 0, less than 1."""
    waiting: int
    """Jobs of this backfill in the queue."""


def target_of(sources: Sources, registry: Registry) -> Target:
    """Tell how a scheduler that knows these tells a backfill's queue."""

    def target(record: Mapping[str, Any]) -> tuple[str, float] | None:
        try:
            spec = parse_spec(record)
            name = spec.job_type or sources.get(spec.source).job_type
            if name is None:
                return None
            return queue_name(spec.lane, registry.described(name).worker), spec.weight
        except (InvalidBackfill, UnknownJobType):
            return None  # of another version, or of modules that are not here

    return target


async def queue_quota(
    ledger: Ledger, operation_id: str, *, lane: str, worker: str, weight: float, target: Target
) -> QueueQuota | None:
    """Return the backfill's share of the queue; None where it has the queue for itself. Raises
    LedgerError."""
    running = await ledger.bulk.list_bulk(KIND, states=[BulkState.RUNNING], limit=PEERS)
    queue = queue_name(lane, worker)
    targets = [target(each.spec) for each in running.items if each.id != operation_id]
    others = sum(each[1] for each in targets if each is not None and each[0] == queue)
    if not others:
        return None
    waiting = await ledger.bulk_jobs.count_queued_bulk_jobs(
        operation_id, lane, worker, at_most=MAX_COUNTED
    )
    return QueueQuota(weight / (weight + others), waiting)
