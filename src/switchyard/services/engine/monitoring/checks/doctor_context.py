"""Hold the state that the doctor's checks share: the connections that are open so far, and the
findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from switchyard.broker.management.client import ManagementClient
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.worker_status import alive_and_silent
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.results import JobSummary, WorkerRecord
from switchyard.services.engine.records.states import State

MAX_EXAMINED = 1000
"""Jobs or other items that one check reads, at most."""
ROOM_FIRST = "first make room, as reported above of the disk"
"""Advice where something fails because this host's disk is full."""


@dataclass
class DoctorContext:
    """State that the checks share. A connection is None until the check that opens it has
    succeeded."""

    settings: Settings
    registry: Registry
    broker: dict[str, Any] | None = None
    """The broker's properties from the AMQP handshake."""
    management: ManagementClient | None = None
    ledger: Ledger | None = None
    found: set[Finding] = field(default_factory=set)
    """Findings of the earlier checks."""

    def now(self) -> float:
        """Return the ledger's time, or this host's where there is none. Seconds since the epoch."""
        return time.time() if self.ledger is None else self.ledger.clock.time()

    async def close(self) -> None:
        """Close the connections that the checks opened."""
        if self.management is not None:
            await self.management.close()
        if self.ledger is not None:
            await self.ledger.close()

    def need_management(self) -> ManagementClient:
        """Return the connection to the management API, which the check's `DoctorStep` requires."""
        assert self.management is not None
        return self.management

    def need_ledger(self) -> Ledger:
        """Return the ledger, which the check's `DoctorStep` requires."""
        assert self.ledger is not None
        return self.ledger

    async def workers(self) -> tuple[list[WorkerRecord], list[WorkerRecord]]:
        """Return the live workers, and those that fell silent within a day and were not replaced by
        later ones. Raises LedgerError."""
        ledger = self.need_ledger()
        return alive_and_silent(
            await ledger.workers.list_workers(),
            takeover_after=self.settings.takeover_after,
            now=ledger.clock.time(),
        )

    async def running_by_worker(self) -> Counter[str]:
        """Return how many jobs each worker runs, among the latest MAX_EXAMINED running jobs. Raises
        LedgerError."""
        return Counter(job.worker_id or "" for job in await self._read_running())

    async def running_in(self, worker_id: str) -> list[JobSummary]:
        """Return the jobs that a worker runs, among the latest MAX_EXAMINED running jobs. Raises
        LedgerError."""
        return [job for job in await self._read_running() if job.worker_id == worker_id]

    async def _read_running(self) -> Sequence[JobSummary]:
        page = await self.need_ledger().job_reads.list_jobs(
            JobFilter(state=State.RUNNING), limit=MAX_EXAMINED
        )
        return page.items
