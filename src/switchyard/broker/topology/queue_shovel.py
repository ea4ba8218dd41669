"""Move all messages of a queue to an exchange, confirmed before they are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiormq import Connection

from switchyard.broker.errors import BrokerUnavailable, MessageTooLarge, NeverTaken, PublishError
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.depths import read_queue_size
from switchyard.broker.wire.envelope import Forwarded
from switchyard.broker.wire.failures import CHANNEL_ERRORS, raising_broker_unavailable
from switchyard.broker.wire.incoming import Incoming

WINDOW = 200
"""Messages under way at once."""
CONSUMER_PRIORITY = 100
"""Higher than that of workers: while the window is not full, they get nothing from the queue."""
RETRY_INTERVAL = 0.2
"""Seconds until a message that the full target refused is sent again."""
DEPTH_POLL_INTERVAL = 0.05
"""Seconds between two looks into the queue."""


class QueueShovel:
    """Takes from a queue, before all other consumers, and publishes to an exchange.

    Routing key, properties, headers and body stay as they were. A message is acknowledged when the
    broker has confirmed its copy: if the process is killed, nothing is lost, and up to a window of
    messages exists twice, which a job's claim makes harmless.
    """

    def __init__(self, channel: PipelinedChannel, queue: str, exchange: str) -> None:
        self._channel = channel
        self._queue = queue
        self._exchange = exchange
        self._sending: set[asyncio.Task[None]] = set()
        self._refused: NeverTaken | None = None
        self.moved = 0

    async def _start(self) -> None:
        await self._channel.basic_qos(prefetch_count=WINDOW)
        await self._channel.consume(
            self._queue, "shovel", self._on_message, priority=CONSUMER_PRIORITY
        )

    def _on_message(self, message: Incoming) -> None:
        task = asyncio.create_task(self._send(message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, message: Incoming) -> None:
        copy = Forwarded(message.body, message.message_id, message.properties)
        while not self._channel.closed.done():
            try:
                await self._channel.publish(self._exchange, message.routing_key, copy)
            except BrokerUnavailable:
                return  # the channel is gone: the broker has the message back
            except NeverTaken as error:
                name = message.message_id or "a message without an id"
                self._refused = NeverTaken(
                    f"{name} stays in {self._queue}: the broker refuses it now "
                    f"({_reason_of(error)}). If it is too large, raise max_message_size in "
                    "rabbitmq.conf; then run this again"
                )
                return
            except PublishError:
                # The target refuses it for now, as when it is full. Returned to its queue, the
                # message would lose its priority (RabbitMQ 4.3).
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            self._channel.ack(message.delivery_tag)
            self.moved += 1
            return

    def raise_if_stopped(self) -> None:
        """Raise NeverTaken where the broker has refused a message for good, and so closed the
        channel; BrokerUnavailable where the connection was lost."""
        if self._refused is not None:
            raise self._refused
        if self._channel.closed.done() and not self._sending:
            raise BrokerUnavailable("the connection was lost", maybe_accepted=False)

    async def wait_until_empty(self) -> None:
        """Wait until no message is left in the queue that could be moved, and none is under way.
        Raises as `raise_if_stopped` does."""
        with raising_broker_unavailable(f"can't move what is in {self._queue}"):
            empty_reads = 0
            while empty_reads < 2:
                self.raise_if_stopped()
                try:
                    size = await read_queue_size(self._channel, self._queue)
                except CHANNEL_ERRORS:
                    await asyncio.gather(*self._sending)  # they end, as their channel is closed
                    self.raise_if_stopped()
                    raise
                empty_reads = 0 if size.ready or self._sending else empty_reads + 1
                await asyncio.sleep(DEPTH_POLL_INTERVAL)


@asynccontextmanager
async def running_shovel(
    connection: Connection, queue: str, exchange: str
) -> AsyncIterator[QueueShovel]:
    """Move the queue's messages, and those that come in, for as long as the context lasts. Raises
    BrokerUnavailable."""
    with raising_broker_unavailable(f"can't move what is in {queue}"):
        channel = await open_channel(connection, confirms=True)
        shovel = QueueShovel(channel, queue, exchange)
        await shovel._start()
    try:
        yield shovel
    finally:
        await _end(channel, shovel)


async def _end(channel: PipelinedChannel, shovel: QueueShovel) -> None:
    for task in tuple(shovel._sending):
        task.cancel()
    await asyncio.gather(*shovel._sending, return_exceptions=True)
    with raising_broker_unavailable("can't close the channel"):
        await channel.close()


def _reason_of(error: NeverTaken) -> str:
    if isinstance(error, MessageTooLarge):
        return f"it has {error.size:,} bytes, and at most {error.limit:,} are allowed"
    return str(error)
