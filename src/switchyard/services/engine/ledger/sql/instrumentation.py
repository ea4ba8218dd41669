"""A database whose transactions are timed: for metrics, and for somebody who waits for them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from switchyard.services.engine.ledger.sql.database import Database, TransactionBody

T = TypeVar("T")
Observe = Callable[[str, float, bool], None]
"""Called after every transaction with its kind (`read` or `write`), its seconds, and whether it
succeeded."""
OnWait = Callable[[str], None]
"""Called with the database's address, without credentials."""
LONG_WAIT_SECONDS = 3.0
"""Seconds of a transaction after which the waiting user is notified."""


class _DatabaseWrapper(ABC):
    """Wraps a database, with something around each of its transactions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.dialect = database.dialect
        self.location = database.location
        self.clock = database.clock

    @abstractmethod
    def _around(self, kind: str) -> AbstractContextManager[None]:
        """Return the context for a transaction of that kind, `read` or `write`."""

    async def read(self, body: TransactionBody[T]) -> T:
        with self._around("read"):
            return await self._database.read(body)

    async def write(self, body: TransactionBody[T]) -> T:
        with self._around("write"):
            return await self._database.write(body)

    async def write_each(self, body: TransactionBody[T]) -> T:
        with self._around("write"):
            return await self._database.write_each(body)

    async def sync(self) -> None:
        await self._database.sync()

    async def close(self) -> None:
        await self._database.close()


class TimedDatabase(_DatabaseWrapper):
    """Wraps a database; calls `observe` with how long each transaction took."""

    def __init__(self, database: Database, observe: Observe) -> None:
        super().__init__(database)
        self._observe = observe

    @contextmanager
    def _around(self, kind: str) -> Iterator[None]:
        began, succeeded = time.perf_counter(), False
        try:
            yield
            succeeded = True
        finally:
            self._observe(kind, time.perf_counter() - began, succeeded)


class SlowTransactionNotifier(_DatabaseWrapper):
    """Wraps a database; calls `on_wait` with its address once a transaction takes longer than
    LONG_WAIT_SECONDS, so that a user of the command line sees why nothing happens."""

    def __init__(self, database: Database, on_wait: OnWait) -> None:
        super().__init__(database)
        self._on_wait = on_wait

    @contextmanager
    def _around(self, kind: str) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LONG_WAIT_SECONDS, self._on_wait, self.location)
        try:
            yield
        finally:
            timer.cancel()
