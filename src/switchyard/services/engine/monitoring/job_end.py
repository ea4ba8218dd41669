"""Waiting for a job's end: woken by the event that says so, and not by looking again and again."""

from __future__ import annotations

import time

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_events import ENDINGS, EventHub, JobEvent
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import FINISHED

STATE_POLL_INTERVAL = 15.0
"""Seconds after which the ledger is asked although no event came: one that was sent while the
connection was cut never comes."""


async def wait_for_end(
    feed: EventHub, ledger: Ledger, job_id: str, *, timeout: float
) -> JobRecord | None:
    """Return the job once it has ended, or as it is after `timeout` seconds; None: no such job.

    Raises LedgerUnavailable when the ledger is away at the end of that time.
    """
    deadline = time.monotonic() + timeout

    def matches(event: JobEvent) -> bool:
        return event.job_id == job_id and event.name in ENDINGS

    with feed.subscribed(matches) as subscription:
        while True:
            # Looked up after subscribing, so that nothing happens in between unseen.
            left = deadline - time.monotonic()
            try:
                record = await ledger.job_reads.get(job_id)
            except LedgerUnavailable:
                if left <= 0:
                    raise
            else:
                if record is None or record.state in FINISHED or left <= 0:
                    return record
            if subscription.is_over:  # the process stops
                return await ledger.job_reads.get(job_id)
            await subscription.next(min(max(left, 0.01), STATE_POLL_INTERVAL))
