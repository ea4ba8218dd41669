"""Publish jobs that the ledger has recorded and the broker has not confirmed: the outbox.

Also here: record jobs that follow from another, for the outbox, and make the letters of jobs that
the broker never takes. Each queue must exist: `jobs.topic` confirms a job without a queue as well,
and passes it on to the dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.errors import LaneFull, NeverTaken
from switchyard.broker.lanes import queue_name
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Accepted, Outgoing, outcome_name
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common import tracing
from switchyard.services.engine.ledger import Ledger, to_message
from switchyard.services.engine.records.errors import IdempotencyConflict
from switchyard.services.engine.records.requests import DeadLetterRecord, NewJob
from switchyard.services.engine.records.results import JobRecord, Recorded
from switchyard.services.engine.records.states import State

LOG_REPEAT_INTERVAL = 60.0
"""Seconds after which the reason of refused jobs is logged again, while that lasts."""
MAX_LISTED = 5
"""Jobs that one log line names, at most."""


@dataclass(slots=True)
class RefusalLog:
    """Logs refused jobs: a line for each reason and not for each job, and not with every try. An
    alarm of the broker's disk may last for hours, and the log is on a disk, too."""

    logged_at: dict[str, float] = field(default_factory=dict)
    """When each reason was last logged, in seconds on the monotonic clock."""

    def report(self, refused: dict[str, list[str]], now: float) -> None:
        """Log the jobs that were refused, by reason."""
        log = structlog.get_logger("publishing")
        self.logged_at = {
            why: at for why, at in self.logged_at.items() if now - at < LOG_REPEAT_INTERVAL
        }
        for why, job_ids in refused.items():
            if why not in self.logged_at:
                self.logged_at[why] = now
                log.warning(
                    "jobs not published", jobs=len(job_ids), job_ids=job_ids[:MAX_LISTED], error=why
                )


async def record_following(
    ledger: Ledger, jobs: Sequence[NewJob]
) -> Sequence[Recorded | IdempotencyConflict]:
    """Record the jobs that follow from a job, in order. Raises RowRejected, LedgerUnavailable."""
    if any(job.joins is not None for job in jobs):
        return await ledger.joins.record_joined(jobs)
    return await ledger.jobs.record_many(jobs)


def refused_letter(
    job: Destination, message: JobMessage, error: NeverTaken, died_at: datetime
) -> DeadLetterRecord:
    """Make the dead letter of a job that the broker never takes, for the ledger's index alone: the
    broker would refuse the letter as well. It has the whole message, so that
    `jobctl dead redrive ID --from-ledger` sends it once the broker takes it."""
    info = DeadLetterInfo(
        Reason.REFUSED,
        job.routing_key,
        queue=queue_name(job.lane, job.worker),
        error_type=type(error).__name__,
        message=str(error),
        attempts=message.metadata.attempts,
        dead_at=died_at.isoformat(),
    )
    return ledger_only_letter(info, message, message.encode(), job)


def ledger_only_letter(
    info: DeadLetterInfo, message: JobMessage, body: bytes, job: Destination
) -> DeadLetterRecord:
    """Make the index's record of a dead letter that is in the ledger alone."""
    return DeadLetterRecord(
        id=message.job_id,
        job_id=message.job_id,
        reason=str(info.reason),
        dead_at=datetime.fromisoformat(info.dead_at).timestamp(),
        body=body,
        headers=info.headers(),
        job_type=message.job_type,
        lane=job.lane,
        routing_key=info.routing_key,
        worker=job.worker,
        error_type=info.error_type,
        error_message=info.message,
        traceback=info.traceback or None,
        redrives=message.metadata.redrives,
        attempts=message.metadata.attempts,
    )


async def publish_recorded(
    publisher: Publisher,
    ledger: Ledger,
    records: Sequence[JobRecord],
    refusals: RefusalLog | None = None,
) -> tuple[list[str], int]:
    """Publish recorded jobs; return those that the broker accepted, and how many it refused.
    Refused jobs keep their state, except those that the broker never takes, which are dead.
    `refusals` are the log of a caller that tries again and again. Raises LedgerUnavailable."""
    entered = ledger.clock.now()
    messages = [to_message(record).with_metadata(queued_at=entered) for record in records]
    results = await publisher.publish_many(
        [routed(record, message) for record, message in zip(records, messages, strict=True)]
    )
    accepted: list[str] = []
    refused: dict[str, list[str]] = {}
    never_taken: list[DeadLetterRecord] = []
    for record, message, result in zip(records, messages, results, strict=True):
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
        refused.setdefault(str(result), []).append(record.id)
        if isinstance(result, LaneFull) and result.dead_lettered:
            await ledger.jobs.mark_overflowed(record.id, ledger.clock.time())
        elif isinstance(result, NeverTaken) and record.state is not State.RUNNING:
            never_taken.append(refused_letter(record, message, result, ledger.clock.now()))
    await ledger.dead_letters.index_dead(never_taken)
    (refusals or RefusalLog()).report(refused, time.monotonic())
    if accepted:
        await ledger.jobs.mark_queued(accepted, ledger.clock.time())
    return accepted, len(records) - len(accepted)


async def without_paused(ledger: Ledger, records: Sequence[JobRecord]) -> list[JobRecord]:
    """Leave out jobs that a pause holds, and mark them `paused`. Raises LedgerUnavailable."""
    waiting = [record.id for record in records if record.state is not State.RUNNING]
    held = await ledger.pauses.hold(waiting, ledger.clock.time())
    return [record for record in records if record.id not in held]


class Destination(Protocol):
    """Destination of a job that is recorded or will be."""

    @property
    def lane(self) -> str: ...
    @property
    def worker(self) -> str: ...
    @property
    def routing_key(self) -> str: ...


def routed(job: Destination, message: JobMessage) -> Outgoing:
    """Return the message with the queue in which it must arrive. If that queue is known not to
    exist, or to have no bindings yet, the message is not sent, and its result is Unroutable."""
    return Outgoing(message, job.routing_key, queue_name(job.lane, job.worker))
