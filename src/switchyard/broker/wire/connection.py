"""Connecting: every connection to a broker is opened and closed here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel
from aiormq.abc import AbstractConnection as AiormqConnection
from aiormq.connection import Connection
from aiormq.exceptions import (
    AuthenticationError,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from switchyard.broker.errors import BrokerAway, BrokerRefuses
from switchyard.broker.wire.away import library_calls, meaning_away
from switchyard.broker.wire.frame_tap import TappedTransport

CONNECT_TIMEOUT = 2.0
"""Seconds for TCP, TLS and the AMQP handshake together."""
HEARTBEAT = 10
"""Seconds between heartbeats; a peer that says nothing for three of them is gone."""


def address_of(url: str) -> str:
    """Host, port and virtual host of an AMQP address, without its credentials."""
    parts = urlsplit(url)
    return f"{parts.hostname or 'localhost'}:{parts.port or 5672}{parts.path}"


async def connect(url: str, name: str, *, timeout: float = CONNECT_TIMEOUT) -> AbstractConnection:
    """Open one connection, shown on the broker as `name`.

    Raises BrokerAway when the broker can't be reached or does not answer within `timeout` seconds,
    BrokerRefuses when it refuses the credentials or the vhost.
    """
    query = "&" if urlsplit(url).query else "?"
    url = url if "heartbeat=" in url else f"{url}{query}heartbeat={HEARTBEAT}"
    connection = aio_pika.Connection(URL(url), client_properties={"connection_name": name})
    connection.kwargs["transport_factory"] = TappedTransport()
    try:
        with meaning_away(f"can't connect to the broker at {address_of(url)}"), library_calls():
            await asyncio.wait_for(connection.connect(), timeout)
    except BrokerAway as error:
        await closed(connection)
        if (refused := _refused(error.__cause__)) is not None:
            raise BrokerRefuses(
                f"can't connect to the broker at {address_of(url)}: it refuses {refused} in "
                "JOBS_AMQP_URL",
                maybe_accepted=False,
            ) from error
        raise
    return connection


def _refused(error: BaseException | None) -> str | None:
    """What the broker lets nobody in by, if that is what has happened."""
    if isinstance(error, AuthenticationError | ProbableAuthenticationError):
        return "user or password"
    # A close in answer to the opening, whose text aiormq does not give.
    if isinstance(error, InvalidFrameError) and "Connection.OpenOk" in str(error):
        return "the vhost"
    return None


def underlying(connection: AbstractConnection) -> Connection:
    """The aiormq connection below an aio-pika one."""
    transport = connection.transport
    if transport is None or not isinstance(transport.connection, Connection):
        raise BrokerAway("the connection is closed", maybe_accepted=False)
    return transport.connection


def is_blocked(connection: AiormqConnection) -> bool:
    """Whether the broker has said `connection.blocked` (a memory or disk alarm)."""
    # `ready()` ends at once unless the connection is blocked: one step tells, without waiting.
    ready = connection.ready()
    try:
        ready.send(None)
    except StopIteration:
        return False
    else:
        ready.close()
        return True


async def closed(open_one: AbstractConnection | AbstractChannel) -> None:
    """Close a connection or channel, in whatever state it is; never fails."""
    # A task of its own: aiormq may answer with a cancellation that is not ours.
    closing = asyncio.ensure_future(open_one.close())
    await asyncio.wait((closing,))
    if not closing.cancelled():
        closing.exception()  # it is gone either way


@asynccontextmanager
async def connected(url: str, name: str, **options: Any) -> AsyncIterator[AbstractConnection]:
    """An aio-pika connection for one piece of work, closed at its end. Raises BrokerAway."""
    connection = await connect(url, name, **options)
    try:
        yield connection
    finally:
        await closed(connection)
