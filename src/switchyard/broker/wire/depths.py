"""Read how many messages wait in queues over AMQP: exact, and without the management API.

RabbitMQ 4.3 answers only users with a permission on the queue, and each permission would let a
publisher do more: read the queue (read), delete it (configure), or have `jobs.events` fill it
(write). For a user without one, the management API is asked instead, whose figures are some seconds
old.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from aiormq.connection import Connection
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
)
from pydantic import SecretStr

from switchyard.broker.errors import BrokerUnavailable, ManagementError
from switchyard.broker.lanes import STAND_IN_PREFIX, UNBOUND_SUFFIX
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.connection import close_quietly, connected, underlying
from switchyard.broker.wire.failures import (
    ANSWER_TIMEOUT,
    library_calls,
    raising_broker_unavailable,
    time_limit,
)

MANAGEMENT_TIMEOUT = 1.0
"""Seconds for each try to ask the management API."""
DEPTHS_TTL, FAILURE_TTL = 0.5, 30.0
"""Seconds for which the management API's figures are used again; and after a failure, seconds
until it is asked again."""


@dataclass(frozen=True, slots=True)
class QueueSize:
    """A queue's numbers, from the answer to a passive declaration."""

    ready: int
    """Messages that wait for a consumer, at this moment."""
    consumers: int


async def read_queue_size(
    channel: PipelinedChannel, queue: str, *, limit: float | None = ANSWER_TIMEOUT
) -> QueueSize:
    """Return a queue's numbers. Raises one of CHANNEL_ERRORS, also where there is no such queue or
    no answer within `limit` seconds; either ends the channel, and all that it holds goes back."""
    async with time_limit(limit):
        declared = await channel.queue_declare(queue, passive=True)
    return QueueSize(declared.message_count or 0, declared.consumer_count or 0)


async def query_queue(connection: Connection, queue: str) -> QueueSize | None:
    """Return a queue's numbers; None where there is no such queue. Raises one of CHANNEL_ERRORS."""
    # A channel of its own: the broker closes a channel on which a queue was not found.
    channel = await open_channel(connection, confirms=False)
    try:
        size = await read_queue_size(channel, queue)
    except (ChannelNotFoundEntity, ChannelLockedResource):
        return None
    await close_quietly(channel)
    return size


async def is_unbound(connection: Connection, queue: str) -> bool:
    """Tell whether a lane's queue is there already and its bindings may not be: `topology apply` is
    making them, or was broken off. Raises one of CHANNEL_ERRORS."""
    channel = await open_channel(connection, confirms=False)
    try:
        async with time_limit():
            with library_calls():
                await channel.exchange_declare(queue + UNBOUND_SUFFIX, passive=True)
    except (ChannelNotFoundEntity, ChannelAccessRefused):
        return False
    await close_quietly(channel)
    return True


async def query_lane_queues(
    connection: Connection, queues: Iterable[str], limits: Mapping[str, int]
) -> dict[str, QueueSize | None]:
    """Return each lane queue's numbers. `limits` are their length limits; while a queue is remade
    with another type, that is 0, or the queue is missing: then its numbers are those of the queue
    that stands in for it. Raises one of CHANNEL_ERRORS."""
    sizes = await _query_each(connection, queues)
    for queue, size in sizes.items():
        if size is not None and limits.get(queue) != 0:
            continue
        # To a user who may see the lanes' queues alone, a stand-in is refused.
        with suppress(ChannelAccessRefused):
            sizes[queue] = await query_queue(connection, STAND_IN_PREFIX + queue) or size
    return sizes


async def query_queues(url: str, queues: Iterable[str]) -> dict[str, QueueSize | None]:
    """Return each queue's numbers; None for a missing queue. If our user may not see them over
    AMQP, they come from the management API of the environment. Raises BrokerUnavailable."""
    names = list(queues)
    async with connected(url, "queue depths") as connection:
        with raising_broker_unavailable("can't ask for the depths of queues"):
            try:
                return await _query_each(underlying(connection), names)
            except ChannelAccessRefused:
                hidden = ManagementDepths(BrokerSettings(amqp_url=SecretStr(url)))
    sizes = await hidden.by_queue()
    return {queue: sizes.get(queue) for queue in names}


async def _query_each(connection: Connection, queues: Iterable[str]) -> dict[str, QueueSize | None]:
    """Ask on one channel, until a queue is not found, which ends the channel: to open one for each
    queue takes three times as many calls. Raises one of CHANNEL_ERRORS."""
    sizes: dict[str, QueueSize | None] = {}
    channel = None
    try:
        for queue in queues:
            if channel is None:
                channel = await open_channel(connection, confirms=False)
            try:
                sizes[queue] = await read_queue_size(channel, queue)
            except (ChannelNotFoundEntity, ChannelLockedResource):
                sizes[queue] = channel = None
    finally:
        if channel is not None:
            await close_quietly(channel)
    return sizes


class ManagementDepths:
    """Asks the management API for the queues that AMQP hides from our user."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._depths: Mapping[str, QueueSize] = {}
        self._failure: str | None = None
        self._until = 0.0

    async def by_queue(self, *, fresh: bool = False) -> Mapping[str, QueueSize]:
        """Return the numbers of all queues of the virtual host, by name, at most half a second old,
        or `fresh`. Raises BrokerUnavailable where the management API can't be asked; it is tried
        again after half a minute."""
        if time.monotonic() >= self._until or (fresh and self._failure is None):
            await self._query()
        if self._failure is not None:
            raise BrokerUnavailable(
                "the broker shows this user no depths of queues over AMQP, and the management API "
                f"can't be asked instead: {self._failure}",
                maybe_accepted=False,
            )
        return self._depths

    async def _query(self) -> None:
        # Imported here: most users are not refused, and need no HTTP client.
        from switchyard.broker.management.client import ManagementClient

        self._failure = None
        try:
            url, vhost = self._settings.require_management_url(), self._settings.vhost
            async with ManagementClient(url, vhost, timeout=MANAGEMENT_TIMEOUT) as client:
                depths = await client.depths()
        except (ManagementError, ValueError) as error:
            self._failure, self._until = str(error), time.monotonic() + FAILURE_TTL
            return
        self._depths = {name: QueueSize(*numbers) for name, numbers in depths.items()}
        self._until = time.monotonic() + DEPTHS_TTL


@asynccontextmanager
async def queue_depths(url: str) -> AsyncIterator[Callable[[str], Awaitable[int]]]:
    """Open a function that tells how many messages wait in a queue. Raises BrokerUnavailable, also
    where there is no such queue."""
    async with connected(url, "queue depths") as connection:
        with raising_broker_unavailable("can't ask for the depths of queues"):
            channel = await open_channel(underlying(connection), confirms=False)

            async def depth(queue: str) -> int:
                try:
                    return (await read_queue_size(channel, queue)).ready
                except ChannelNotFoundEntity as error:
                    raise BrokerUnavailable(
                        f"there is no queue {queue!r} on the broker: run `jobctl topology apply`",
                        maybe_accepted=False,
                    ) from error

            yield depth
