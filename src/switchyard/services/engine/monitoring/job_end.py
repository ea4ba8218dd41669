"""Wait for the end of a job: for its event, and by rare polls of the ledger, as events can be
lost."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_events import ENDINGS, EventHub, JobEvent
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import FINISHED

STATE_POLL_INTERVAL = 15.0
"""Seconds after which the ledger is read although no event came: events that are sent while the
connection is cut are lost."""


class EndListener:
    """Receives the event of one job's end from now on. Must be closed.

    If it is made before the job is published, it misses no event, and the ledger need not be read
    before the event comes.
    """

    def __init__(self, hub: EventHub, job_id: str) -> None:
        def matches(event: JobEvent) -> bool:
            return event.job_id == job_id and event.name in ENDINGS

        self._exit_stack = ExitStack()
        self._subscription = self._exit_stack.enter_context(hub.subscribe(matches))

    def close(self) -> None:
        self._exit_stack.close()

    @property
    def is_over(self) -> bool:
        """Whether no more events come, as the process stops."""
        return self._subscription.is_over

    async def wait(self, timeout: float) -> None:
        """Return when the event has come, or after `timeout` seconds."""
        await self._subscription.next(timeout)


async def wait_for_end(
    hub: EventHub,
    ledger: Ledger,
    job_id: str,
    *,
    timeout: float,
    listener: EndListener | None = None,
) -> JobRecord | None:
    """Return the job once it has ended, or as it is after `timeout` seconds; None: no such job.
    `listener` is one that was made before the job was published.

    Raises LedgerUnavailable when the ledger is away at the end of that time.
    """
    deadline = time.monotonic() + timeout
    with closing(EndListener(hub, job_id)) as own_listener:
        if listener is not None and not listener.is_over:
            await listener.wait(min(timeout, STATE_POLL_INTERVAL))
        while True:
            # Read after subscribing, so that no end in between is missed.
            left = deadline - time.monotonic()
            try:
                record = await ledger.job_reads.get(job_id)
            except LedgerUnavailable:
                if left <= 0:
                    raise
            else:
                if record is None or record.state in FINISHED or left <= 0:
                    return record
            if own_listener.is_over:
                return await ledger.job_reads.get(job_id)
            await own_listener.wait(min(max(left, 0.01), STATE_POLL_INTERVAL))
