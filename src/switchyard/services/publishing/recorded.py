"""Jobs that the ledger has: recorded by whoever they follow from, published by whoever finds them
due."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from switchyard.broker.errors import LaneFull
from switchyard.broker.publish.outcome import Accepted, outcome_name
from switchyard.broker.publish.publisher import Publisher
from switchyard.services import tracing
from switchyard.services.ledger import Ledger, to_message
from switchyard.services.publishing.routing import Routed, publish_routed
from switchyard.services.records import IdempotencyConflict, JobRecord, NewJob, Recorded


async def record_following(
    ledger: Ledger, jobs: Sequence[NewJob]
) -> Sequence[Recorded | IdempotencyConflict]:
    """Record what follows from a job, in order. Raises RowRejected, LedgerUnavailable."""
    if any(job.joins is not None for job in jobs):
        return await ledger.record_joined(jobs)
    return await ledger.record_many(jobs)


async def publish_recorded(
    publisher: Publisher, ledger: Ledger, records: Sequence[JobRecord]
) -> tuple[list[str], int]:
    """Publish recorded jobs, and note it: those that the broker took, and how many it refused,
    which keep their state. Raises LedgerUnavailable."""
    log = structlog.get_logger("publishing")
    entered = ledger.clock.now()
    results = await publish_routed(
        publisher,
        [
            Routed.of(record, to_message(record).with_metadata(queued_at=entered))
            for record in records
        ],
    )
    accepted: list[str] = []
    for record, result in zip(records, results, strict=True):
        tracing.record(
            f"outbox {record.routing_key}",
            began=entered.timestamp(),
            parent=record.envelope["metadata"].get("traceparent"),
            messaging__system="rabbitmq",
            switchyard__job__id=record.id,
            switchyard__outcome=outcome_name(result),
        )
        if isinstance(result, Accepted):
            accepted.append(record.id)
            continue
        log.warning("not published", job_id=record.id, error=str(result))
        if isinstance(result, LaneFull) and result.dead_lettered:
            await ledger.mark_overflowed(record.id, ledger.clock.time())
    if accepted:
        await ledger.mark_queued(accepted, ledger.clock.time())
    return accepted, len(records) - len(accepted)
