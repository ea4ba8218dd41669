"""Which queues are there, as a publisher has to know: `jobs.topic` passes a job without one on to
the dead letters, and confirms it as if all were well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from switchyard.broker.errors import BrokerAway
from switchyard.broker.wire.away import CHANNEL_ERRORS

AWAY = (BrokerAway, *CHANNEL_ERRORS)
"""What it means that nobody answered."""
THERE_FOR, MISSING_FOR = 30.0, 0.5
"""Seconds for which an answer is believed: queues seldom go, and come as soon as somebody has read
that they are missing."""


class KnownQueues:
    """Asks for each queue once for all who publish at the same time, and again after a while."""

    def __init__(self, ask: Callable[[str], Awaitable[bool]]) -> None:
        self._ask = ask
        self._answers: dict[str, tuple[bool, float]] = {}
        """Whether it is there, and until when that is believed, on the monotonic clock."""
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def has(self, queue: str, limit: float) -> bool | None:
        """Whether there is such a queue; None where no answer comes within `limit` seconds."""
        is_there, until = self._answers.get(queue, (False, 0.0))
        if time.monotonic() < until:
            return is_there
        asking = self._asking.get(queue)
        if asking is None:
            asking = self._asking[queue] = asyncio.create_task(self._look(queue))
            asking.add_done_callback(lambda done: self._asked(queue, done))
        # Waited for, and not awaited: somebody who gives up must not end it for the others.
        await asyncio.wait((asking,), timeout=limit)
        if not asking.done() or asking.cancelled():
            return None
        error = asking.exception()
        if error is not None and not isinstance(error, AWAY):
            raise error
        return None if error is not None else asking.result()

    async def _look(self, queue: str) -> bool:
        is_there = await self._ask(queue)
        kept = THERE_FOR if is_there else MISSING_FOR
        self._answers[queue] = is_there, time.monotonic() + kept
        return is_there

    def _asked(self, queue: str, done: asyncio.Task[bool]) -> None:
        del self._asking[queue]
        if not done.cancelled():
            done.exception()  # who waited has it; perhaps nobody did

    async def close(self) -> None:
        """Ask nothing more."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
