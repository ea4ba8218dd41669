"""Keep a connection to the broker open: reconnect, with backoff, whenever it is lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from aio_pika.abc import AbstractConnection
from aiormq.connection import Connection
from structlog.typing import FilteringBoundLogger

from switchyard.broker.addresses import display_address
from switchyard.broker.errors import BrokerUnavailable, LimitReached
from switchyard.broker.wire.connection import close_quietly, connect, underlying

Guard = Callable[[Connection], Awaitable[None]]
"""Checks a new connection before it is used; raises BrokerUnavailable to refuse it."""

MIN_BACKOFF, MAX_BACKOFF = 0.1, 5.0
"""Seconds before the second attempt at something (a connection, a consumer, a publish), and the
most between later ones: doubled each time. Attempts to connect are at most MAX_RECONNECT_INTERVAL
apart."""
MAX_RECONNECT_INTERVAL = 0.5
"""Seconds at most between attempts to connect: a refused attempt costs next to nothing, and the
first job after an outage waits no longer than this."""
LOG_REPEAT_INTERVAL = 5.0
"""Seconds between log lines about one outage."""


class Reconnector:
    """Holds one connection, and opens it again whenever it is lost."""

    def __init__(
        self, url: str, name: str, log: FilteringBoundLogger, *, guard: Guard | None = None
    ) -> None:
        """`guard` is awaited with each new connection; when it raises, that connection is not
        used."""
        self._guard = guard
        self._url = url
        self._name = name
        self._log = log
        self._lock = asyncio.Lock()
        self._next_log_at = 0.0
        """When the outage may be logged again, on the monotonic clock: once for all waiting
        calls."""
        self._connection: Connection | None = None
        self._aio_pika_connection: AbstractConnection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed

    async def connection(self) -> Connection:
        """Return the open connection; waits, with backoff, for as long as the broker is away."""
        delay = MIN_BACKOFF
        while True:
            try:
                return await self.connection_now()
            except BrokerUnavailable as error:
                if time.monotonic() >= self._next_log_at:
                    self._next_log_at = time.monotonic() + LOG_REPEAT_INTERVAL
                    is_limit = isinstance(error, LimitReached)
                    event = "broker limit reached" if is_limit else "broker unreachable"
                    self._log.warning(event, error=str(error), looks_every=MAX_RECONNECT_INTERVAL)
                # Random, so that not all clients of a broker come back to it at the same moment.
                await asyncio.sleep(delay * random.uniform(0.5, 1))
                delay = min(delay * 2, MAX_RECONNECT_INTERVAL)

    async def connection_now(self) -> Connection:
        """Return the open connection, after at most one attempt to connect. Raises
        BrokerUnavailable."""
        async with self._lock:
            if self._connection is None or self._connection.is_closed:
                await self._drop()
                self._aio_pika_connection = await connect(self._url, self._name)
                connection = underlying(self._aio_pika_connection)
                if self._guard is not None:
                    await self._guard(connection)
                self._connection = connection
                self._next_log_at = 0.0
                node = display_address(str(connection.url))
                self._log.info("broker connected", broker=node, name=self._name)
            return self._connection

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._aio_pika_connection, self._connection = (
            self._aio_pika_connection,
            None,
            None,
        )
        if connection is not None:
            await close_quietly(connection)
