"""Waiting for a job's end: woken by the event that says so, and not by looking again and again."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_events import ENDINGS, EventHub, JobEvent
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import FINISHED

STATE_POLL_INTERVAL = 15.0
"""Seconds after which the ledger is asked although no event came: one that was sent while the
connection was cut never comes."""


class EndListener:
    """Hears of the end of one job from now on; `close` it at last.

    Where it is made before the job is published, nothing happens unseen: the ledger need not be
    asked until the end is heard.
    """

    def __init__(self, hub: EventHub, job_id: str) -> None:
        def matches(event: JobEvent) -> bool:
            return event.job_id == job_id and event.name in ENDINGS

        self._open = ExitStack()
        self._subscription = self._open.enter_context(hub.subscribe(matches))

    def close(self) -> None:
        self._open.close()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be heard: the process stops."""
        return self._subscription.is_over

    async def wait(self, timeout: float) -> None:
        """Return when the end is heard, or after `timeout` seconds."""
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
    with closing(EndListener(hub, job_id)) as own:
        if listener is not None and not listener.is_over:
            await listener.wait(min(timeout, STATE_POLL_INTERVAL))
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
            if own.is_over:
                return await ledger.job_reads.get(job_id)
            await own.wait(min(max(left, 0.01), STATE_POLL_INTERVAL))
