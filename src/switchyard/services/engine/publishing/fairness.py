"""Keep sources fair: one with many jobs in a lane gets lower priorities there.

Within a lane, the broker delivers by priority. The further jobs of a source with many open jobs
get a lower one, so that the few jobs of another source need not wait until a hundred thousand are
done. The jobs of one source keep their order, also by the priorities that it gives them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from switchyard.services.engine.ledger.gauges import GaugeReads
from switchyard.services.engine.records.requests import NewJob

PRIORITY_STEP = 5
"""Amount by which the priority is lowered, not below 0."""
COUNTS_TTL = 2.0
"""Seconds for which the ledger's count is reused; jobs that this process publishes are added to
it."""
MAX_TIME_SHARE = 0.05
"""Fraction of the time that may be spent on counting."""
SAMPLE = 20_000
"""Open jobs of a lane that are counted, at most: enough to show which sources have many."""


def lower_priority(priority: int) -> int:
    """Return the priority just behind other sources' jobs of the same priority."""
    return max(0, priority - PRIORITY_STEP)


class FairSources:
    """Counts each source's open jobs in each lane, for one publisher."""

    def __init__(self, gauges: GaugeReads, max_open: int) -> None:
        self._gauges = gauges
        self._max_open = max_open
        self._open: dict[str, Counter[str]] = {}
        self._next_count_at: dict[str, float] = {}

    async def lower_priorities(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Return the jobs with lower priorities for sources that have many open jobs. Raises
        LedgerError."""
        for lane in {job.lane for job in jobs}:
            if time.monotonic() >= self._next_count_at.get(lane, 0.0):
                await self._refresh(lane)
        return [self._with_fair_priority(job) for job in jobs]

    def _with_fair_priority(self, job: NewJob) -> NewJob:
        counts, source = self._open[job.lane], job.message.metadata.source
        counts[source] += 1
        if counts[source] <= self._max_open:
            return job
        behind = {"priority": lower_priority(job.message.priority)}
        return replace(job, message=job.message.model_copy(update=behind))

    async def _refresh(self, lane: str) -> None:
        began = time.monotonic()
        self._open[lane] = Counter(await self._gauges.open_by_source(lane, sample=SAMPLE))
        ended_at = time.monotonic()
        self._next_count_at[lane] = ended_at + max(COUNTS_TTL, (ended_at - began) / MAX_TIME_SHARE)
