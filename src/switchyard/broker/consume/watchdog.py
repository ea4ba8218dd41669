"""Find a consumer that the broker has lost without telling.

Over an open connection with heartbeats, a broker may still deliver nothing: when it loses a
consumer in a fail-over, it does not report that. So each queue is queried periodically, over AMQP
alone: a worker's user need not have access to the management API.
"""

from __future__ import annotations

import asyncio

from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.listening import run_until_event
from switchyard.broker.consume.slots import LaneQueue
from switchyard.broker.wire.depths import QueueSize, read_queue_size
from switchyard.broker.wire.failures import CHANNEL_ERRORS

WATCH_SECONDS = 10.0
"""Seconds between two queries. A consumer is given up after two with the same result: a worker
stands still for about 20 s at most."""


async def watch(
    queue: LaneQueue, stopping: asyncio.Event, log: FilteringBoundLogger, *, every: float
) -> None:
    """Set `queue.lost` whenever the broker has lost the queue's consumer, until `stopping` is
    set."""
    suspected_at: int | None = None
    """How many deliveries had arrived when it was found idle without a reason."""
    while not stopping.is_set():
        await run_until_event(stopping, asyncio.sleep(every))
        arrived = queue.arrived
        size = await _query(queue)
        if size is None or not _seems_lost(queue, size) or arrived != queue.arrived:
            suspected_at = None
        elif suspected_at == arrived:
            log.error(
                "consumer restarted: the broker delivers nothing to it",
                queue=queue.name,
                ready=size.ready,
                consumers=size.consumers,
            )
            suspected_at = None
            queue.lost.set()
        else:
            suspected_at = arrived


def _seems_lost(queue: LaneQueue, size: QueueSize) -> bool:
    """Tell whether the broker knows no consumer of the queue, or sends ours nothing although
    messages are ready and its prefetch allows more."""
    if queue.state != "consuming":
        return False
    return size.consumers == 0 or (size.ready > 0 and queue.held < queue.prefetch)


async def _query(queue: LaneQueue) -> QueueSize | None:
    """Return the broker's numbers; None where nothing is consumed, or the channel has just ended,
    which the queue's own loop mends."""
    channel = queue.channel
    if channel is None or queue.state != "consuming":
        return None
    try:
        # No time limit: reaching it would close the channel, and the running jobs would be
        # redelivered.
        return await read_queue_size(channel, queue.name, limit=None)
    except CHANNEL_ERRORS:
        return None
