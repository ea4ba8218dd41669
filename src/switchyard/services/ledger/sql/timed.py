"""A database whose transactions are timed, for metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from switchyard.services.ledger.sql.database import Database, Work

T = TypeVar("T")
Observe = Callable[[str, float, bool], None]
"""Told of every transaction: `read` or `write`, its seconds, and whether it came to its end."""


class TimedDatabase:
    """Another database, and somebody who is told how long each transaction took."""

    def __init__(self, database: Database, observe: Observe) -> None:
        self._database = database
        self._observe = observe
        self.dialect = database.dialect
        self.where = database.where
        self.clock = database.clock

    async def read(self, work: Work[T]) -> T:
        began, well = time.perf_counter(), False
        try:
            result = await self._database.read(work)
            well = True
            return result
        finally:
            self._observe("read", time.perf_counter() - began, well)

    async def write(self, work: Work[T]) -> T:
        began, well = time.perf_counter(), False
        try:
            result = await self._database.write(work)
            well = True
            return result
        finally:
            self._observe("write", time.perf_counter() - began, well)

    async def close(self) -> None:
        await self._database.close()
