"""Limit how much a backfill may publish now: it fills its queues no more than workers need."""

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
MAX_QUEUE_FILL = 0.75
"""Fraction of a queue's limit beyond which no backfill may publish, whatever its share."""
SLOW_PAUSE = 0.2
"""Seconds between batches of `SLOW_BATCH` while hot jobs wait: 50 jobs a second."""
DEPTHS_TTL = 0.5
"""Seconds for which depths are reused."""


class Gate:
    """Closes when one of the lane's queues holds `high` messages, or when `max_open` jobs of the
    backfill are not finished; opens again at `low`. Jobs let through since the last measurement,
    and jobs under way then, are counted as if all still waited: no queue gets more than `high` from
    here."""

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
        hindrance: Callable[[], Awaitable[str | None]] | None = None,
        share: Callable[[], Awaitable[QueueQuota | None]] | None = None,
    ) -> None:
        self._pressure = pressure
        self._traffic = None if lane == HOT.name else traffic
        self._count_open = count_open
        self._find_hindrance = hindrance
        """Returns a text of what the backfill's jobs would wait for in any case; None where
        nothing."""
        self._share = share
        self._part = 1.0
        """Fraction of the space between the watermarks that this backfill may use; less than 1
        while other backfills use the queue, too."""
        self._lane = lane
        self._queue = queue
        self._low = low
        self._high = high
        self._looked_at = self._taken_at = float("-inf")
        self._slow_until = 0.0
        self._counted_at = float("-inf")
        self._limit = self._depth = self._let_through = self._unsure = self._open_jobs = 0
        self._scale = 1.0
        """Factor from the fullest queue's own depth to the scale of the watermarks."""
        self._is_closed = False
        self._hot_waits = 0
        self._fullest = queue
        self._hindrance: str | None = None
        self.why: str | None = None
        """Text of what the gate waits for; None while it is open."""

    def note_refusal(self) -> None:
        """Measure again at the next call: the broker has refused a job, so others publish, too."""
        self._looked_at = float("-inf")

    def let_through(self, number: int) -> None:
        """Count jobs that are published now."""
        self._let_through += number
        self._open_jobs += number

    async def allowance(self, count: int, max_open: int | None, under_way: int = 0) -> int:
        """Return how many jobs may be published now, 0 to `count`; report those that are published
        with `let_through`. `under_way` earlier ones may not have reached the broker yet.

        Raises InvalidBackfill when the lane has no such queue, BrokerUnavailable,
        LedgerUnavailable.
        """
        now = time.monotonic()
        if now - self._looked_at >= DEPTHS_TTL:
            await self._measure(under_way)
        low, high = self._watermarks
        depth = self._depth + self._let_through / self._part
        room = int((high - depth) * self._part) - self._unsure
        if depth >= high:
            self._is_closed = True
        elif self._depth <= low:
            self._is_closed = False
        if self._hindrance is not None:
            self.why = self._hindrance
            return 0
        held, goes_on = (round(each / self._scale) for each in (self._depth, low))
        self.why = f"{self._fullest} holds {held:,} jobs; goes on at {goes_on:,}"
        if max_open is not None:
            if self._open_jobs >= max_open or now - self._counted_at >= DEPTHS_TTL:
                self._open_jobs = under_way + await self._count_open(max_open)
                self._counted_at = now
            free = max_open - self._open_jobs
            if free < room and not self._is_closed:
                room = free
                self.why = f"{self._open_jobs:,} of its jobs are not finished"
        if self._is_closed or room <= 0:
            return 0
        self.why = None
        if self._traffic is None:
            return min(count, room)
        if self._hot_waits > HOT_BACKLOG:
            self.why = f"slow: {self._hot_waits:,} hot jobs wait"
            if now < self._slow_until:
                return 0
            self._slow_until = now + SLOW_PAUSE
            return min(count, room, SLOW_BATCH)
        room = await self._traffic.allowance(min(count, room))
        self.why = self._traffic.why
        return room

    def turn(self, session: BulkSession) -> AbstractAsyncContextManager[None]:
        """Return a context within which the admitted jobs are published: hot jobs come first."""
        return nullcontext() if self._traffic is None else self._traffic.turn(session)

    @property
    def _watermarks(self) -> tuple[int, int]:
        high = max(1, self._limit // 2) if self._high is None else self._high
        low = high // 2 if self._low is None else min(self._low, high - 1)
        return low, high

    async def _measure(self, under_way: int) -> None:
        snapshot = await self._pressure.snapshot()
        self._looked_at = snapshot.at
        if snapshot.at == self._taken_at:
            return  # the same snapshot as before, without the jobs that were let through since
        self._taken_at = snapshot.at
        self._let_through, self._unsure = 0, under_way
        target = snapshot.queue(self._queue)
        if target is None or target.ready is None:
            raise InvalidBackfill(f"there is no queue {self._queue}: run `jobctl topology apply`")
        self._limit = target.limit
        # Also the lane's other queues: jobs that follow must find room there. A queue with
        # half the limit counts twice: by default it may be half full, too.
        lane = {queue.name: queue for queue in _lane(snapshot, self._lane)}
        scales = {name: self._scale_of(queue, target) for name, queue in lane.items()}
        depths = {name: ceil(queue.waiting * scales[name]) for name, queue in lane.items()}
        depths[self._queue] = await self._effective_depth(depths[self._queue])
        self._fullest = max(depths, key=lambda name: depths[name])
        self._depth, self._scale = depths[self._fullest], scales[self._fullest]
        if self._find_hindrance is not None:
            self._hindrance = await self._find_hindrance()
        self._hot_waits = sum(queue.ready or 0 for queue in _lane(snapshot, HOT.name))

    def _scale_of(self, queue: QueueDepth, target: QueueDepth) -> float:
        return 1.0 if self._high is not None else target.limit / max(1, queue.limit)

    async def _effective_depth(self, depth: int) -> int:
        """Return the effective queue depth for this backfill: its waiting jobs divided by its share
        of the queue; the depth itself where it does not share the queue."""
        share = None if self._share is None else await self._share()
        part = 1.0 if share is None else share.part
        if part > self._part:
            self._is_closed = False  # the jobs in the queue are a smaller fraction of its share now
        self._part = part
        if share is None:
            return depth
        if depth >= MAX_QUEUE_FILL * self._limit:
            return depth
        return ceil(share.waiting / share.part)


def _lane(snapshot: Snapshot, name: str) -> list[QueueDepth]:
    return [queue for lane in snapshot.lanes if lane.name == name for queue in lane.queues]
