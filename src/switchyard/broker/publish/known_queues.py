"""Find out which queues exist before a job is published: `jobs.topic` passes a job that has no
queue on to the dead letters, and confirms it all the same.

An answer holds for one connection: the next one may lead to another broker, an empty one, whose
topology is just being made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiormq.connection import Connection

from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.wire.failures import CHANNEL_ERRORS

NO_ANSWER = (BrokerUnavailable, *CHANNEL_ERRORS)
"""Errors that mean that the broker did not answer."""
FOUND_TTL, MISSING_TTL = 30.0, 0.5
"""Seconds for which an answer is reused: queues are seldom deleted, and a missing one is soon made
by the operator who has read the error."""

QueueQuery = Callable[[Connection, str], Awaitable[bool]]


class KnownQueues:
    """Queries the broker once per queue for all concurrent publishes, and again after a while."""

    def __init__(self, exists: QueueQuery, is_unbound: QueueQuery) -> None:
        """`is_unbound` is called only where the queue is there, and on each connection until it was
        bound: a queue that is being made is there before its bindings are, and each call for a
        bound queue leaves a line in the broker's log."""
        self._exists = exists
        self._is_unbound = is_unbound
        self._connection: Connection | None = None
        self._answers: dict[str, tuple[bool, float]] = {}
        """By queue: whether it can be published to, and until when that answer is used, on the
        monotonic clock."""
        self._bound: set[str] = set()
        self._queries: dict[str, asyncio.Task[bool]] = {}

    async def has(self, connection: Connection, queue: str, limit: float) -> bool | None:
        """Tell whether there is such a queue with its bindings; None where no answer comes within
        `limit` seconds."""
        if connection is not self._connection:
            self._connection = connection
            self._answers, self._bound, self._queries = {}, set(), {}
        exists, until = self._answers.get(queue, (False, 0.0))
        if time.monotonic() < until:
            return exists
        query = self._queries.get(queue)
        if query is None:
            query = self._queries[queue] = asyncio.create_task(self._query(connection, queue))
            query.add_done_callback(lambda done: self._store_answer(queue, done))
        # Waited for, and not awaited: a caller that gives up must not cancel it for the others.
        await asyncio.wait((query,), timeout=limit)
        if not query.done() or query.cancelled():
            return None
        error = query.exception()
        if error is not None and not isinstance(error, NO_ANSWER):
            raise error
        return None if error is not None else query.result()

    async def _query(self, connection: Connection, queue: str) -> bool:
        is_ready = await self._exists(connection, queue)
        # In this order: the `.unbound` exchange is made before the queue, and deleted after its
        # bindings.
        if is_ready and queue not in self._bound:
            is_ready = not await self._is_unbound(connection, queue)
        if connection is self._connection:
            if is_ready:
                self._bound.add(queue)
            else:
                self._bound.discard(queue)
            ttl = FOUND_TTL if is_ready else MISSING_TTL
            self._answers[queue] = is_ready, time.monotonic() + ttl
        return is_ready

    def _store_answer(self, queue: str, done: asyncio.Task[bool]) -> None:
        if self._queries.get(queue) is done:
            del self._queries[queue]
        if not done.cancelled():
            done.exception()  # retrieved, in case nobody waited for it

    async def close(self) -> None:
        """Cancel the queries under way."""
        query = list(self._queries.values())
        for task in query:
            task.cancel()
        await asyncio.gather(*query, return_exceptions=True)
