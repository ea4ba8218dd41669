"""One message on its way to a handler."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Self

from switchyard.broker.lanes import lane_of
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.broker.wire.incoming import Incoming


@dataclass(slots=True)
class Delivery:
    """One message, fetched and not yet settled."""

    body: bytes
    queue: str
    lane: str = field(init=False)
    """The lane of its queue; computed once, as it is read ten times for each job."""
    exchange: str
    routing_key: str
    redelivered: bool
    priority: int
    message_id: str
    headers: dict[str, Any]
    received_at: float
    """Seconds, on the monotonic clock."""
    unreadable: str
    """Why its properties could not be read; empty where they could. With a reason it is no job,
    whatever its body says: see `broker.dead.dead_letter_headers.unreadable_properties`."""
    properties: bytes = field(repr=False)
    """All properties as they came, flags first."""
    _tag: int = field(repr=False)
    _channel: PipelinedChannel = field(repr=False)
    _settled: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        self.lane = lane_of(self.queue)

    @classmethod
    def from_incoming(cls, message: Incoming, queue: str, channel: PipelinedChannel) -> Self:
        """Make the delivery of a message that came in on `channel`."""
        return cls(
            body=message.body,
            queue=queue,
            exchange=message.exchange,
            routing_key=message.routing_key,
            redelivered=message.redelivered,
            priority=message.priority,
            message_id=message.message_id,
            headers=message.headers,
            received_at=time.monotonic(),
            unreadable=message.unreadable,
            properties=message.properties,
            _tag=message.delivery_tag,
            _channel=channel,
        )

    def ack(self) -> bool:
        """Acknowledge the delivery. False when the channel is gone: the broker will deliver it
        again."""
        return self._settle() and self._channel.ack(self._tag)

    def requeue(self) -> bool:
        """Return the delivery to its queue. False when the channel is gone: the broker has done so
        already."""
        return self._settle() and self._channel.requeue(self._tag)

    def requeue_all_before(self) -> bool:
        """Return to their queue this delivery and all unsettled ones before it on its channel."""
        return self._settle() and self._channel.requeue(self._tag, multiple=True)

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or requeued."""
        return self._settled

    def _settle(self) -> bool:
        """Mark the delivery as settled. False if it was settled before: the broker closes a channel
        on which a delivery is settled twice."""
        first, self._settled = not self._settled, True
        return first

    @property
    def is_lost(self) -> bool:
        """Whether its channel is gone, so that it can't be settled any more."""
        return self._channel.closed.done()

    def arrived_on(self, channel: PipelinedChannel) -> bool:
        """Tell whether it arrived on that channel, and is settled there."""
        return self._channel is channel
