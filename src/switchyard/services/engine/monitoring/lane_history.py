"""Count the jobs of each lane once a minute, for the charts of the dashboard."""

from __future__ import annotations

import asyncio

from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.lanes import HOT
from switchyard.broker.wire.depths import query_queues
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.lane_history import MINUTE


class LaneHistoryRecorder:
    """Writes a row for each lane when a minute has ended."""

    def __init__(self, settings: Settings, registry: Registry, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._queues = registry.queues_by_lane()

    async def record(self) -> None:
        """Wait for the end of this minute, and count it. Raises LedgerError."""
        await asyncio.sleep(MINUTE - self._ledger.clock.time() % MINUTE)
        await self.count()

    async def count(self) -> None:
        """Record the counts since the last minute that was recorded. Raises LedgerError."""
        await self._ledger.lane_history.add_minute(
            list(self._queues),
            await self._count_ready(),
            hot=HOT.name,
            now=self._ledger.clock.time(),
        )

    async def _count_ready(self) -> dict[str, int]:
        """Return the number of ready messages in each lane; empty where the broker is away."""
        queues = [name for names in self._queues.values() for name in names]
        try:
            sizes = await query_queues(self._settings.require_amqp_url(), queues)
        except BrokerUnavailable:
            return {}  # the doctor and the scheduler's log report that
        return {
            lane: sum(size.ready for name in names if (size := sizes[name]) is not None)
            for lane, names in self._queues.items()
        }
