"""How much waits in queues, asked over AMQP alone: exact, and without the management API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiormq.connection import Connection
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
)

from switchyard.broker.errors import BrokerAway
from switchyard.broker.lanes import STAND_IN, UNBOUND
from switchyard.broker.wire.away import ANSWER_LIMIT, library_calls, meaning_away, within
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.connection import closed, connected, underlying


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a passive declaration tells."""

    ready: int
    """Messages that wait for a consumer, at this moment."""
    consumers: int


async def waiting_in(
    channel: PipelinedChannel, queue: str, *, limit: float | None = ANSWER_LIMIT
) -> Waiting:
    """A queue's numbers. Raises one of CHANNEL_ERRORS, also where there is no such queue or no
    answer within `limit` seconds; either ends the channel, and all that it holds goes back."""
    async with within(limit):
        declared = await channel.queue_declare(queue, passive=True)
    return Waiting(declared.message_count or 0, declared.consumer_count or 0)


async def ask_queue(connection: Connection, queue: str) -> Waiting | None:
    """A queue's numbers; None where there is no such queue. Raises one of CHANNEL_ERRORS."""
    # A channel for each: the broker closes the channel on which one was not found.
    channel = await open_channel(connection, confirms=False)
    try:
        waiting = await waiting_in(channel, queue)
    except (ChannelNotFoundEntity, ChannelLockedResource):
        return None
    await closed(channel)
    return waiting


async def is_unbound(connection: Connection, queue: str) -> bool:
    """Whether a lane's queue is there already and its bindings may not be: `topology apply` is
    making them, or was broken off. Raises one of CHANNEL_ERRORS."""
    channel = await open_channel(connection, confirms=False)
    try:
        async with within():
            with library_calls():
                await channel.exchange_declare(queue + UNBOUND, passive=True)
    except (ChannelNotFoundEntity, ChannelAccessRefused):
        return False
    await closed(channel)
    return True


async def ask_lane_queue(connection: Connection, queue: str, limit: int | None) -> Waiting | None:
    """The same of a lane's queue, whose length limit that is. While it is remade with another type
    it takes nothing, or is not there: then, of the queue that stands in for it."""
    found = await ask_queue(connection, queue)
    if found is not None and limit != 0:
        return found
    try:
        return await ask_queue(connection, STAND_IN + queue) or found
    except ChannelAccessRefused:  # to a user who may see the lanes' queues alone
        return found


async def ask_queues(url: str, queues: Iterable[str]) -> dict[str, Waiting | None]:
    """Each queue's numbers; None for one that is not there. Raises BrokerAway."""
    async with connected(url, "queue depths") as connection:
        transport = underlying(connection)
        with meaning_away("can't ask for the depths of queues"):
            return {queue: await ask_queue(transport, queue) for queue in queues}


@asynccontextmanager
async def queue_depths(url: str) -> AsyncIterator[Callable[[str], Awaitable[int]]]:
    """A function that tells how many messages wait in a queue. Raises BrokerAway, also where there
    is no such queue."""
    async with connected(url, "queue depths") as connection:
        with meaning_away("can't ask for the depths of queues"):
            channel = await open_channel(underlying(connection), confirms=False)

            async def depth(queue: str) -> int:
                try:
                    return (await waiting_in(channel, queue)).ready
                except ChannelNotFoundEntity as error:
                    raise BrokerAway(
                        f"there is no queue {queue!r} on the broker: run `jobctl topology apply`",
                        maybe_accepted=False,
                    ) from error

            yield depth
