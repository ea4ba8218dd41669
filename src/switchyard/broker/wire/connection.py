"""Open and close connections to a broker. Reconnecting: `broker.wire.reconnector`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
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

from switchyard.broker.addresses import display_address, nodes_of
from switchyard.broker.errors import BrokerAuthError, BrokerUnavailable, LimitReached
from switchyard.broker.happy_eyeballs import ATTEMPT_DELAY, AllAttemptsFailed, connect_first
from switchyard.broker.wire.failures import (
    library_calls,
    raising_broker_unavailable,
    unavailable_error,
)
from switchyard.broker.wire.frame_tap import TappedTransport

CONNECT_TIMEOUT = 2.0
"""Seconds for TCP, TLS and the AMQP handshake together, and for all nodes together."""
HEARTBEAT = 10
"""Seconds between heartbeats; a peer that is silent for three of them counts as gone."""
_NOT_ALLOWED = "NOT_ALLOWED"
_CANT_CONNECT = "can't connect to the broker at "


async def connect(url: str, name: str, *, timeout: float = CONNECT_TIMEOUT) -> AbstractConnection:
    """Open one connection, shown on the broker as `name`, to any of the address's nodes.

    Raises BrokerUnavailable when none can be reached or answers within `timeout` seconds,
    LimitReached when a node takes no more connections and no other takes this one, BrokerAuthError
    when a node refuses the credentials or the vhost and no other takes them.

    The nodes are tried in random order, so that clients spread over a cluster; the next one as soon
    as one fails, or after ATTEMPT_DELAY seconds beside it: a node that is switched off, or frozen
    behind an open port, costs no more than that.
    """
    nodes = list(nodes_of(url))
    random.shuffle(nodes)
    if len(nodes) == 1:
        return await _connect_to(nodes[0], name, timeout)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout

    def attempt(node: str) -> Callable[[], Coroutine[Any, Any, AbstractConnection]]:
        return lambda: _connect_to(node, name, deadline - loop.time())

    try:
        return await connect_first(
            [attempt(node) for node in nodes],
            head_start=min(ATTEMPT_DELAY, timeout / (len(nodes) + 1)),
            failures=BrokerUnavailable,
            close=close_quietly,
        )
    except AllAttemptsFailed as error:
        raise _combine_errors(error.errors) from error


async def _connect_to(url: str, name: str, timeout: float) -> AbstractConnection:
    """Connect as `connect` does, to the address of one node."""
    query = "&" if urlsplit(url).query else "?"
    url = url if "heartbeat=" in url else f"{url}{query}heartbeat={HEARTBEAT}"
    connection = aio_pika.Connection(URL(url), client_properties={"connection_name": name})
    transport = connection.kwargs["transport_factory"] = TappedTransport()
    try:
        with raising_broker_unavailable(f"{_CANT_CONNECT}{display_address(url)}"), library_calls():
            async with asyncio.timeout(timeout):
                await connection.connect()
    except BrokerUnavailable as error:
        await close_quietly(connection)
        close_reason = transport.tap.close_reason if transport.tap is not None else ""
        if (refused := _refusal_of(error.__cause__, close_reason)) is not None:
            raise BrokerAuthError(
                f"{_CANT_CONNECT}{display_address(url)}: it refuses {refused} in JOBS_AMQP_URL",
                maybe_accepted=False,
            ) from error
        if close_reason:
            raise unavailable_error(
                f"{_CANT_CONNECT}{display_address(url)}: {close_reason}"
            ) from error
        raise
    except asyncio.CancelledError:
        # aio-pika would close it when it is garbage-collected, perhaps without a loop.
        await close_quietly(connection)
        raise
    return connection


def _combine_errors(failed: Sequence[Exception]) -> BrokerUnavailable:
    for error in failed:
        if isinstance(error, BrokerAuthError):
            return error
    reasons = "; ".join(str(error).removeprefix(_CANT_CONNECT) for error in failed)
    is_limit = any(isinstance(error, LimitReached) for error in failed)
    kind = LimitReached if is_limit else BrokerUnavailable
    return kind(f"{_CANT_CONNECT}any of its addresses: {reasons}", maybe_accepted=False)


def _refusal_of(error: BaseException | None, close_reason: str) -> str | None:
    """Return which of credentials and vhost the broker has refused; None if it refused neither.
    `close_reason` is what it said when it closed the connection."""
    if isinstance(error, AuthenticationError | ProbableAuthenticationError):
        return "user or password"
    # The broker closed the connection in answer to its opening. A limit has the same code as a
    # wrong vhost; a broker that is stopping, or whose vhost is down, has others.
    is_at_opening = isinstance(error, InvalidFrameError) and "Connection.OpenOk" in str(error)
    if is_at_opening and close_reason.startswith(_NOT_ALLOWED):
        return None if isinstance(unavailable_error(close_reason), LimitReached) else "the vhost"
    return None


def underlying(connection: AbstractConnection) -> Connection:
    """Return the aiormq connection below an aio-pika one."""
    transport = connection.transport
    if transport is None or not isinstance(transport.connection, Connection):
        raise BrokerUnavailable("the connection is closed", maybe_accepted=False)
    return transport.connection


def is_blocked(connection: AiormqConnection) -> bool:
    """Tell whether the broker has said `connection.blocked` (a memory or disk alarm)."""
    # `ready()` returns at once unless the connection is blocked: one step shows it, without
    # waiting.
    ready = connection.ready()
    try:
        ready.send(None)
    except StopIteration:
        return False
    else:
        ready.close()
        return True


async def close_quietly(connection: AbstractConnection | AbstractChannel) -> None:
    """Close a connection or channel, in whatever state it is; never fails."""
    # A task of its own: aiormq may answer with a cancellation that is not ours.
    closing = asyncio.ensure_future(connection.close())
    await asyncio.wait((closing,))
    if not closing.cancelled():
        closing.exception()  # retrieved: the connection is gone either way


@asynccontextmanager
async def connected(url: str, name: str, **options: Any) -> AsyncIterator[AbstractConnection]:
    """Open an aio-pika connection for one piece of work, and close it at its end. Raises
    BrokerUnavailable."""
    connection = await connect(url, name, **options)
    try:
        yield connection
    finally:
        await close_quietly(connection)
