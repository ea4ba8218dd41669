"""Measure how full the lanes are, for back-pressure.

Depths come from passive declarations, which are exact; limits from the policies in force, or,
without the management API, from the declared lanes. Jobs that were put off because a named limit is
used up, or because all servers of language models are paused, count although they are not in their
queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog
from aiormq.connection import Connection
from aiormq.exceptions import ChannelAccessRefused

from switchyard.broker.closeable import AsyncCloseable
from switchyard.broker.errors import BrokerUnavailable, ManagementError
from switchyard.broker.lanes import (
    DEAD_QUEUE,
    LANES,
    STAND_IN_PREFIX,
    Lane,
    lane_named,
    lane_of,
)
from switchyard.broker.task_supervisor import end_tasks
from switchyard.broker.wire.depths import (
    ManagementDepths,
    QueueSize,
    query_lane_queues,
    query_queue,
)
from switchyard.broker.wire.failures import raising_broker_unavailable
from switchyard.broker.wire.reconnector import Reconnector
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.monitoring.pressure_thresholds import PressureThresholds
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.states import Pressure, fullest
from switchyard.services.engine.wings import load_contributions

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger

DEPTHS_TTL = 1.0
"""Seconds for which depths are reused."""
MAX_DEPTHS_AGE = 5.0
"""Seconds after which known depths are too old to be used."""
LIMITS_TTL = 30.0
"""Seconds for which limits are reused."""
ASK_TIMEOUT = 2.0
MANAGEMENT_TIMEOUT = 1.0
DEPTH_TIMEOUT = 0.3
"""Seconds that an answer may wait for depths that it does not need."""
FIRST_DEPTH_TIMEOUT = 1.0
"""Seconds that the first publish of a process may wait for depths."""
MAX_RETRY_INTERVAL = 5.0
"""Seconds between attempts to read the first depths, at most: from DEPTHS_TTL on, each doubled."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Depth and limit of one queue of a lane."""

    name: str
    ready: int | None
    """Messages that wait for a worker; None where there is no such queue."""
    consumers: int
    limit: int
    """Waiting jobs at which it is full."""
    pressure: Pressure
    put_off: int = 0
    """Jobs outside the queue that wait for a named limit, or for servers of language models that
    are all paused."""

    @property
    def waiting(self) -> int:
        """Jobs that wait for a worker."""
        return (self.ready or 0) + self.put_off


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """A lane is as full as the fullest of its queues."""

    name: str
    pressure: Pressure
    queues: tuple[QueueDepth, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Depths of all lanes at one moment, most urgent first."""

    lanes: tuple[LaneDepth, ...]
    at: float
    """Seconds, on the monotonic clock."""

    def queue(self, name: str) -> QueueDepth | None:
        queues = (queue for lane in self.lanes for queue in lane.queues if queue.name == name)
        return next(queues, None)


class LanePressure(AsyncCloseable):
    """Reads depths from the broker on demand, at most once a second."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        ledger: Ledger | None = None,
        fresh_for: float = DEPTHS_TTL,
        lanes: tuple[Lane, ...] = LANES,
    ) -> None:
        """Without a ledger, jobs that wait for a named limit are not counted."""
        self._settings = settings
        self._ledger = ledger
        self._fresh_for = fresh_for
        self._lanes = lanes
        self._registry = registry
        self._log = structlog.get_logger("lane pressure")
        self._reconnector = Reconnector(settings.require_amqp_url(), "lane pressure", self._log)
        self._management_depths = ManagementDepths(settings)
        self._is_amqp_forbidden = False
        """Whether our user may not declare the queues passively over AMQP."""
        self._snapshot: Snapshot | None = None
        self._query: asyncio.Task[Snapshot] | None = None
        self._first_read: asyncio.Task[None] | None = None
        self._limits: Mapping[str, int] = {}
        self._limits_until = 0.0
        self._next_query_at = 0.0
        self._has_waited_for_first = False

    async def close(self) -> None:
        await end_tasks(*filter(None, (self._first_read, self._query)))
        await self._reconnector.close()

    def start(self) -> None:
        """Connect and read the depths for the first time, in the background; a broker that does not
        answer is asked again."""
        self._first_read = asyncio.create_task(self._read_first(), name="first depths")

    async def _read_first(self) -> None:
        pause = DEPTHS_TTL
        while not self.is_known:
            await asyncio.wait({self._start_query()})  # which logs its own failure
            if not self.is_known:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_INTERVAL)

    @property
    def is_known(self) -> bool:
        """Whether the depths were ever known."""
        return self._snapshot is not None

    async def snapshot(self) -> Snapshot:
        """Return the depths, at most a second old. Raises BrokerUnavailable."""
        snapshot = self._snapshot
        if snapshot is not None and time.monotonic() - snapshot.at < self._fresh_for:
            return snapshot
        return await asyncio.shield(self._start_query())

    def recent(self, queue: str) -> QueueDepth | None:
        """Return the known depth of a queue without waiting; None where it is unknown or too old.
        Depths that are older than a second are read again in the background."""
        now = time.monotonic()
        snapshot = self._snapshot
        age = float("inf") if snapshot is None else now - snapshot.at
        if age >= DEPTHS_TTL and now >= self._next_query_at:
            self._next_query_at = now + DEPTHS_TTL  # also where the broker is away
            self._start_query()
        return snapshot.queue(queue) if snapshot is not None and age < MAX_DEPTHS_AGE else None

    async def wait_for_first(self) -> None:
        """Wait for the first depths, for FIRST_DEPTH_TIMEOUT seconds at most, so that a program
        that publishes once and ends gets them, too. Later calls do not wait."""
        if self._has_waited_for_first:
            return
        self._has_waited_for_first = True
        if not self.is_known:
            await self._snapshot_within(FIRST_DEPTH_TIMEOUT)

    async def get_soon(self, queue: str) -> QueueDepth | None:
        """Return the depth of a queue, after up to DEPTH_TIMEOUT seconds; None where it is
        unknown."""
        recent = self.recent(queue)
        if recent is not None:
            return recent
        snapshot = await self._snapshot_within(DEPTH_TIMEOUT)
        return None if snapshot is None else snapshot.queue(queue)

    async def _snapshot_within(self, seconds: float) -> Snapshot | None:
        try:
            async with asyncio.timeout(seconds):
                return await self.snapshot()
        except (TimeoutError, BrokerUnavailable):
            return None

    async def probe(self) -> None:
        """Check the connection by one round trip to the broker. Raises BrokerUnavailable."""
        await self._with_timeout(self._probe_connection(await self._connection()))

    async def _probe_connection(self, connection: Connection) -> None:
        with suppress(ChannelAccessRefused):  # an answer, too: not every user may see the queue
            await query_queue(connection, DEAD_QUEUE)

    def _start_query(self) -> asyncio.Task[Snapshot]:
        if self._query is None or self._query.done():
            self._query = asyncio.create_task(self._measure(), name="lane pressure")
            self._query.add_done_callback(self._log_failure)
        return self._query

    def _log_failure(self, task: asyncio.Task[Snapshot]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log.warning("queue depths unknown", error=str(error))

    async def _measure(self) -> Snapshot:
        connection = await self._connection()
        limits = await self._read_limits()
        put_off = await self._count_put_off()
        # Read each time: other processes may register types for further kinds of workers.
        queues_by_lane = self._registry.queues_by_lane(self._lanes)
        names = [name for queues in queues_by_lane.values() for name in queues]
        depths = await self._with_timeout(self._read_depths(connection, names, limits))
        lanes = tuple(
            _lane_depth(
                lane,
                [
                    self._queue_depth(name, depths[name], limits, put_off.get(name, 0))
                    for name in queues
                ],
            )
            for lane, queues in queues_by_lane.items()
        )
        self._snapshot = Snapshot(lanes, time.monotonic())
        return self._snapshot

    async def _connection(self) -> Connection:
        return await self._with_timeout(self._reconnector.connection_now())

    async def _with_timeout(self, work: Awaitable[T]) -> T:
        with raising_broker_unavailable("can't ask the broker"):
            async with asyncio.timeout(ASK_TIMEOUT):
                return await work

    async def _read_depths(
        self, connection: Connection, names: list[str], limits: Mapping[str, int]
    ) -> dict[str, QueueSize | None]:
        if not self._is_amqp_forbidden:
            try:
                return await query_lane_queues(connection, names, limits)
            except ChannelAccessRefused:
                self._is_amqp_forbidden = True
        waiting = await self._management_depths.by_queue()
        # While a lane's queue is recreated, another one stands in for it: see `query_lane_queues`.
        stand_ins = {name: waiting.get(STAND_IN_PREFIX + name) for name in names}
        return {
            name: (None if limits.get(name) == 0 else waiting.get(name))
            or stand_ins[name]
            or waiting.get(name)
            for name in names
        }

    async def _count_put_off(self) -> Mapping[str, int]:
        if self._ledger is None:
            return {}
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                put_off = Counter(await self._ledger.limits.waiting_for_permits())
                # In a thread: the first time this imports modules, for up to 0.3 s.
                counts = await asyncio.to_thread(lambda: list(load_contributions("delayed_jobs")))
                for count in counts:
                    put_off.update(await count(self._settings, self._ledger))
                return put_off
        except (TimeoutError, LedgerError) as error:
            reason = str(error) or f"no answer within {ASK_TIMEOUT:g} s"
            self._log.warning("jobs that wait for limits not counted", error=reason)
            return {}

    async def _read_limits(self) -> Mapping[str, int]:
        now = time.monotonic()
        if now < self._limits_until:
            return self._limits
        # Imported here: programs that only publish may have no management API, and need no HTTP
        # client.
        from switchyard.broker.management.client import ManagementClient

        self._limits_until = now + LIMITS_TTL
        try:
            url, vhost = self._settings.require_management_url(), self._settings.vhost
            async with ManagementClient(url, vhost, timeout=MANAGEMENT_TIMEOUT) as client:
                # Not the queues' statistics, which lag behind a change of policy.
                policies = {each.name: each.definition for each in await client.policies()}
                queues = await client.queues()
        except (ManagementError, ValueError) as error:
            self._log.info("queue limits not read: the declared ones are used", reason=str(error))
            return self._limits
        in_force = {queue.name: policies.get(queue.policy or "", {}) for queue in queues}
        self._limits = {
            name: int(policy["max-length"])
            for name, policy in in_force.items()
            if "max-length" in policy
        }
        return self._limits

    def _queue_depth(
        self, name: str, waiting: QueueSize | None, limits: Mapping[str, int], put_off: int
    ) -> QueueDepth:
        # The limit is 0 for a moment while a queue is recreated.
        max_length = limits.get(name) or lane_named(lane_of(name), self._lanes).max_length
        thresholds = PressureThresholds.from_settings(self._settings, name, max_length)
        if waiting is None:
            return QueueDepth(name, None, 0, thresholds.limit, Pressure.OK)
        before = None if self._snapshot is None else self._snapshot.queue(name)
        pressure = thresholds.pressure(
            waiting.ready + put_off, Pressure.OK if before is None else before.pressure
        )
        return QueueDepth(
            name, waiting.ready, waiting.consumers, thresholds.limit, pressure, put_off
        )


def _lane_depth(name: str, queues: list[QueueDepth]) -> LaneDepth:
    return LaneDepth(name, fullest(queue.pressure for queue in queues), tuple(queues))
