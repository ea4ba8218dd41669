"""The system mark: tells which system a virtual host belongs to, and every AMQP client can read it.

The mark is the durable exchange `jobs.system`, through which nothing is published. Its content is
the name of its alternate exchange, which does not exist: `<id>.<generation>.<name>`. When a broker
refuses to redeclare the exchange with another alternate exchange, its error names the current one.
The exchange outlives restarts, and is part of exported definitions. Reading changes nothing, and
needs the right to configure `jobs.system`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiormq.connection import Connection
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from switchyard.broker.errors import BrokerError, BrokerUnavailable
from switchyard.broker.lanes import SYSTEM_EXCHANGE
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.connection import close_quietly
from switchyard.broker.wire.failures import library_calls, time_limit

ALTERNATE = "alternate-exchange"
_UNKNOWN = "?"
_CURRENT = re.compile(r"current is '([0-9a-f]{12})\.([0-9]{1,12})(?:\.([A-Za-z0-9@_-]{1,40}))?")
_TRIES = 5
_LOCK: Final[dict[str, Any]] = {"x-queue-type": "classic"}
"""Arguments of the lock's queue: classic, whatever type the virtual host prefers."""
_LOCK_TIMEOUT, _LOCK_POLL_INTERVAL = 5.0, 0.05
"""Seconds to wait for another process that marks the broker, and between tries."""


@dataclass(frozen=True, slots=True)
class SystemMark:
    """The system that a broker belongs to."""

    id: str
    generation: int
    """Seconds since the epoch when it and its ledger last agreed."""
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class MarkUnreadable(BrokerError):
    """The broker's system can't be read: our user may not, or the mark has another form."""


async def read_mark(connection: Connection) -> SystemMark | None:
    """Read the broker's mark; None where it has none.

    Raises MarkUnreadable, or one of CHANNEL_ERRORS.
    """
    channel = await open_channel(connection, confirms=False)
    try:
        async with time_limit():
            with library_calls():
                await channel.exchange_declare(SYSTEM_EXCHANGE, passive=True)
                # Refused, whatever the mark is: the refusal names its value.
                await channel.exchange_declare(SYSTEM_EXCHANGE, **_arguments(_UNKNOWN))
        # The mark was deleted between the two calls, and the second made a new one. Remove that,
        # unless another process has marked the broker meanwhile.
        async with marking_alone(connection), time_limit():
            with library_calls():
                await channel.exchange_declare(SYSTEM_EXCHANGE, **_arguments(_UNKNOWN))
                await channel.exchange_delete(SYSTEM_EXCHANGE)
    except ChannelNotFoundEntity:
        return None
    except ChannelAccessRefused as error:
        raise _not_permitted("ask whose broker it is") from error
    except ChannelPreconditionFailed as error:
        if (match := _CURRENT.search(str(error))) is None:
            raise MarkUnreadable(
                f"the exchange {SYSTEM_EXCHANGE} does not say whose it is"
            ) from error
        return SystemMark(match[1], int(match[2]), match[3] or "unnamed")
    await close_quietly(channel)
    return None


@asynccontextmanager
async def marking_alone(connection: Connection) -> AsyncIterator[None]:
    """Lock the mark against all other connections: the mark that is read within this context is
    still there when the next one is written. The lock is an exclusive queue, deleted with its
    connection.

    Raises MarkUnreadable where our user may not, BrokerUnavailable when another process has it for
    too long.
    """
    until = time.monotonic() + _LOCK_TIMEOUT
    while True:
        channel = await open_channel(connection, confirms=False)
        try:
            async with time_limit():
                with library_calls():
                    await channel.queue_declare(SYSTEM_EXCHANGE, exclusive=True, arguments=_LOCK)
            break
        except ChannelLockedResource as error:
            if time.monotonic() > until:
                raise BrokerUnavailable(
                    "another process is marking the broker, and does not end",
                    maybe_accepted=False,
                ) from error
        except ChannelAccessRefused as error:
            raise _not_permitted("mark the broker") from error
        await asyncio.sleep(_LOCK_POLL_INTERVAL)
    try:
        yield
    finally:
        async with time_limit():
            with library_calls():
                await channel.queue_delete(SYSTEM_EXCHANGE)
        await close_quietly(channel)


async def write_mark(connection: Connection, mark: SystemMark) -> None:
    """Write the broker's mark, replacing any other. Call it within `marking_alone`.

    Raises MarkUnreadable where our user may not, or one of CHANNEL_ERRORS.
    """
    value = f"{mark.id}.{mark.generation}.{mark.name}"
    for attempt in range(_TRIES):
        channel = await open_channel(connection, confirms=False)
        try:
            async with time_limit():
                with library_calls():
                    await channel.exchange_delete(SYSTEM_EXCHANGE)
                    await channel.exchange_declare(SYSTEM_EXCHANGE, **_arguments(value))
        except ChannelPreconditionFailed:
            if attempt == _TRIES - 1:
                raise
            continue  # another process has marked it between the two calls
        except ChannelAccessRefused as error:
            raise _not_permitted("mark the broker") from error
        await close_quietly(channel)
        return


def _not_permitted(what: str) -> MarkUnreadable:
    return MarkUnreadable(
        f"the user of JOBS_AMQP_URL may not {what}: permit it to configure {SYSTEM_EXCHANGE}, and "
        "read and write"
    )


def _arguments(value: str) -> dict[str, Any]:
    return {
        "exchange_type": "fanout",
        "durable": True,
        "arguments": {ALTERNATE: value},
    }
