"""Limit how many jobs a backfill may publish now, so that queues hold no more than workers need."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from math import ceil

from switchyard.broker.lanes import HOT
from switchyard.services.engine.backfill.queue_quota import QueueQuota
from switchyard.services.engine.backfill.sources import InvalidBackfill
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.monitoring.lane_pressure import LanePressure, QueueDepth, Snapshot

HOT_BACKLOG = 20
"""Number of waiting hot jobs above which backfills slow down."""
SLOW_BATCH = 10
"""Jobs of one batch while hot jobs wait."""
MAX_QUEUE_FILL = 0.75
"""Fraction of a queue's limit beyond which no backfill may publish, whatever its share."""
SLOW_PAUSE = 0.2
"""Seconds between batches of `SLOW_BATCH` while hot jobs wait: 50 jobs a second."""
DEPTHS_TTL = 0.5
"""Seconds for which depths are reused."""


class Gate:
    """Closes when one of the lane's queues holds `high` messages, or when `max_open` jobs of the
    backfill are not finished; opens again at `low`.

    Jobs that were published since the last measurement, or not confirmed then, count as waiting. So
    this backfill never fills a queue above `high`."""

    def __init__(
        self,
        pressure: LanePressure,
        traffic: HotTraffic,
        count_open: Callable[[int], Awaitable[int]],
        *,
        lane: str,
        queue: str,
        low: int | None,
        high: int | None,
        find_obstacle: Callable[[], Awaitable[str | None]] | None = None,
        read_quota: Callable[[], Awaitable[QueueQuota | None]] | None = None,
    ) -> None:
        self._pressure = pressure
        self._traffic = None if lane == HOT.name else traffic
        self._count_open = count_open
        self._find_obstacle = find_obstacle
        """Describes what keeps the backfill's jobs from running; returns None where nothing
        does."""
        self._read_quota = read_quota
        self._fraction = 1.0
        """Fraction of the queue that this backfill may use; 1 while no other backfill uses it."""
        self._lane = lane
        self._queue = queue
        self._low = low
        self._high = high
        self._measured_at = self._snapshot_at = float("-inf")
        """Monotonic times: of the last measurement, and of the snapshot that it used."""
        self._slow_until = 0.0
        self._counted_at = float("-inf")
        self._limit = self._depth = self._published = self._unconfirmed = self._open_jobs = 0
        self._scale = 1.0
        """Factor from the fullest queue's own depth to the scale of the watermarks."""
        self._is_closed = False
        self._hot_waits = 0
        """Hot jobs that wait."""
        self._fullest = queue
        self._obstacle: str | None = None
        self.why: str | None = None
        """Text of what the gate waits for; None while it is open."""

    def measure_again(self) -> None:
        """Measure at the next call: a refused job shows that others publish, too."""
        self._measured_at = float("-inf")

    def count_published(self, number: int) -> None:
        """Count jobs that are published now."""
        self._published += number
        self._open_jobs += number

    async def allowance(self, count: int, max_open: int | None, unconfirmed: int = 0) -> int:
        """Return how many jobs may be published now, 0 to `count`; report those that are published
        with `count_published`. `unconfirmed` earlier ones may not have reached the broker yet.

        Raises InvalidBackfill when the lane has no such queue, BrokerUnavailable,
        LedgerUnavailable.
        """
        if time.monotonic() - self._measured_at >= DEPTHS_TTL:
            await self._measure(unconfirmed)
        room = self._open_or_close()
        if self._obstacle is not None:
            self.why = self._obstacle
            return 0
        if max_open is not None:
            free = max_open - await self._read_open_jobs(max_open, unconfirmed)
            if free < room and not self._is_closed:
                room = free
                self.why = f"{self._open_jobs:,} of its jobs are not finished"
        if self._is_closed or room <= 0:
            return 0
        self.why = None
        allowed = min(count, room)
        return (
            allowed if self._traffic is None else await self._yield_to_hot(self._traffic, allowed)
        )

    def _open_or_close(self) -> int:
        """Open or close by the watermarks; return how many jobs the queues have room for."""
        low, high = self._watermarks
        depth = self._depth + self._published / self._fraction
        if depth >= high:
            self._is_closed = True
        elif self._depth <= low:
            self._is_closed = False
        waiting, resumes_at = (round(each / self._scale) for each in (self._depth, low))
        self.why = f"{self._fullest} holds {waiting:,} jobs; goes on at {resumes_at:,}"
        return int((high - depth) * self._fraction) - self._unconfirmed

    async def _read_open_jobs(self, max_open: int, unconfirmed: int) -> int:
        """Return how many jobs of the backfill are not finished, counted at most DEPTHS_TTL ago."""
        now = time.monotonic()
        if self._open_jobs >= max_open or now - self._counted_at >= DEPTHS_TTL:
            self._open_jobs = unconfirmed + await self._count_open(max_open)
            self._counted_at = now
        return self._open_jobs

    async def _yield_to_hot(self, traffic: HotTraffic, allowed: int) -> int:
        """Return how many of the allowed jobs may be published beside the hot ones."""
        if self._hot_waits <= HOT_BACKLOG:
            allowed = await traffic.allowance(allowed)
            self.why = traffic.why
            return allowed
        self.why = f"slow: {self._hot_waits:,} hot jobs wait"
        if (now := time.monotonic()) < self._slow_until:
            return 0
        self._slow_until = now + SLOW_PAUSE
        return min(allowed, SLOW_BATCH)

    def turn(self, session: BulkSession) -> AbstractAsyncContextManager[None]:
        """Return a context within which the admitted jobs are published: hot jobs come first."""
        return nullcontext() if self._traffic is None else self._traffic.turn(session)

    @property
    def _watermarks(self) -> tuple[int, int]:
        """The low and the high watermark of the queue."""
        high = max(1, self._limit // 2) if self._high is None else self._high
        low = high // 2 if self._low is None else min(self._low, high - 1)
        return low, high

    async def _measure(self, unconfirmed: int) -> None:
        """Read the depths of the queues, and what else decides."""
        snapshot = await self._pressure.snapshot()
        self._measured_at = snapshot.at
        if snapshot.at == self._snapshot_at:
            return  # an old snapshot, which lacks the jobs that were published since
        self._snapshot_at = snapshot.at
        self._published, self._unconfirmed = 0, unconfirmed
        target = snapshot.queue(self._queue)
        if target is None or target.ready is None:
            raise InvalidBackfill(f"there is no queue {self._queue}: run `jobctl topology apply`")
        self._limit = target.limit
        # The lane's other queues count, too, as jobs that follow must fit there. Depths are scaled
        # by the queues' limits: by default, each may be half full.
        lane = {queue.name: queue for queue in _lane_queues(snapshot, self._lane)}
        scales = {name: self._scale_of(queue, target) for name, queue in lane.items()}
        depths = {name: ceil(queue.waiting * scales[name]) for name, queue in lane.items()}
        depths[self._queue] = await self._effective_depth(depths[self._queue])
        self._fullest = max(depths, key=lambda name: depths[name])
        self._depth, self._scale = depths[self._fullest], scales[self._fullest]
        if self._find_obstacle is not None:
            self._obstacle = await self._find_obstacle()
        self._hot_waits = sum(queue.ready or 0 for queue in _lane_queues(snapshot, HOT.name))

    def _scale_of(self, queue: QueueDepth, target: QueueDepth) -> float:
        return 1.0 if self._high is not None else target.limit / max(1, queue.limit)

    async def _effective_depth(self, depth: int) -> int:
        """Return the effective queue depth for this backfill: its waiting jobs divided by its share
        of the queue; the depth itself where it does not share the queue."""
        quota = None if self._read_quota is None else await self._read_quota()
        fraction = 1.0 if quota is None else quota.fraction
        if fraction > self._fraction:
            self._is_closed = False  # its share has grown, so its jobs fill less of it
        self._fraction = fraction
        if quota is None or depth >= MAX_QUEUE_FILL * self._limit:
            return depth
        return ceil(quota.waiting / quota.fraction)


def _lane_queues(snapshot: Snapshot, name: str) -> list[QueueDepth]:
    return [queue for lane in snapshot.lanes if lane.name == name for queue in lane.queues]
