"""One message on its way to a handler."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Self

from aiormq.abc import DeliveredMessage

from broker.lanes import lane_of
from broker.wire import PipelinedChannel


@dataclass(slots=True)
class Delivery:
    """One message, fetched and not yet settled."""

    body: bytes
    queue: str
    exchange: str
    routing_key: str
    redelivered: bool
    priority: int
    message_id: str
    headers: dict[str, Any]
    received_at: float
    """Seconds, on the monotonic clock."""
    _tag: int = field(repr=False)
    _channel: PipelinedChannel = field(repr=False)

    @classmethod
    def of(cls, message: DeliveredMessage, queue: str, channel: PipelinedChannel) -> Self:
        """The delivery that aiormq has read from `channel`."""
        properties = message.header.properties
        return cls(
            body=message.body,
            queue=queue,
            exchange=message.exchange or "",
            routing_key=message.routing_key or "",
            redelivered=bool(message.redelivered),
            priority=properties.priority or 0,
            message_id=properties.message_id or "",
            headers=properties.headers or {},
            received_at=time.monotonic(),
            _tag=message.delivery_tag or 0,
            _channel=channel,
        )

    @property
    def lane(self) -> str:
        return lane_of(self.queue)

    def ack(self) -> bool:
        """Done with it. False when the channel is gone: the broker will deliver it again."""
        return self._channel.ack(self._tag)

    def requeue(self) -> bool:
        """Back to its queue. False when the channel is gone: the broker has done so already."""
        return self._channel.requeue(self._tag)

    @property
    def is_lost(self) -> bool:
        """Whether its channel is gone, so that it can't be settled any more."""
        return self._channel.closed.done()
