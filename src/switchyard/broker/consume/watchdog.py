"""Finds a consumer that the broker has forgotten without a word.

A connection can be open, its heartbeats answered, and the broker yet deliver nothing: a consumer
that was lost in a fail-over is told to nobody. So each queue is looked at again and again, over
AMQP alone: what a worker may do needs no management API.
"""

from __future__ import annotations

import asyncio

from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.listening import until_event
from switchyard.broker.consume.slots import LaneQueue
from switchyard.broker.wire.depths import QueueSize, read_queue_size
from switchyard.broker.wire.failures import CHANNEL_ERRORS

WATCH_SECONDS = 10.0
"""Seconds between two looks. A consumer is given up after two that found the same: a worker stands
still for about 20 s at most."""


async def watch(
    queue: LaneQueue, stopping: asyncio.Event, log: FilteringBoundLogger, *, every: float
) -> None:
    """Set `queue.lost` when the broker has forgotten the queue's consumer, until `stopping`."""
    suspected_at: int | None = None
    """How many deliveries had arrived when it was found idle without a reason."""
    while not stopping.is_set():
        await until_event(stopping, asyncio.sleep(every))
        arrived = queue.arrived
        waiting = await _ask(queue)
        if waiting is None or not _gets_too_little(queue, waiting) or arrived != queue.arrived:
            suspected_at = None
        elif suspected_at == arrived:
            log.error(
                "consumer restarted: the broker delivers nothing to it",
                queue=queue.name,
                ready=waiting.ready,
                consumers=waiting.consumers,
            )
            suspected_at = None
            queue.lost.set()
        else:
            suspected_at = arrived


def _gets_too_little(queue: LaneQueue, waiting: QueueSize) -> bool:
    """Tell whether a consumer of that queue should be known, or have got something."""
    if queue.state != "consuming":
        return False
    return waiting.consumers == 0 or (waiting.ready > 0 and queue.held < queue.prefetch)


async def _ask(queue: LaneQueue) -> QueueSize | None:
    """Return the broker's numbers; None where nothing is consumed, or the channel has just ended,
    which the queue's own loop mends."""
    channel = queue.channel
    if channel is None or queue.state != "consuming":
        return None
    try:
        # Without a limit, which would end the channel, and give away what runs.
        return await read_queue_size(channel, queue.name, limit=None)
    except CHANNEL_ERRORS:
        return None
