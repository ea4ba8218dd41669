"""Asking a broker about its queues, over AMQP alone: exact, and without the management API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiormq.connection import Connection
from aiormq.exceptions import ChannelLockedResource, ChannelNotFoundEntity

from switchyard.broker.wire.away import meaning_away
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.connection import closed, connected, underlying


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a passive declaration tells."""

    ready: int
    """Messages that wait for a consumer, at this moment."""
    consumers: int


async def ask_queues(url: str, names: Iterable[str]) -> dict[str, Waiting | None]:
    """Each queue's numbers; None for one that is not there. Raises BrokerAway."""
    async with connected(url, "jobctl") as connection:
        transport = underlying(connection)
        return {name: await _ask(transport, name) for name in names}


async def _ask(connection: Connection, name: str) -> Waiting | None:
    # A channel for each: the broker closes the channel on which one was not found.
    with meaning_away(f"can't ask for the queue {name}"):
        channel = await open_channel(connection, confirms=False)
        try:
            declared = await channel.queue_declare(name, passive=True)
        except (ChannelNotFoundEntity, ChannelLockedResource):
            return None
        await closed(channel)
    return Waiting(declared.message_count or 0, declared.consumer_count or 0)
