"""Which messages for whoever listens would reach nobody just now: they need not be sent.

Events are half of what a worker publishes and of what the broker gets from it, and often nobody
listens. The broker says so by returning one. Whoever begins to listen hears everything REST seconds
later, which `services.monitoring.job_events` waits for before it says that it listens.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from switchyard.broker.errors import Unroutable

REST = 0.25
"""Seconds, from the sending of a message that reached nobody, in which no such is sent."""
MOST_KNOWN = 1_000
"""Routing keys that are remembered."""


class Unheard:
    """What one publisher knows of that."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}
        """By exchange and routing key, on the monotonic clock."""

    def is_unheard(self, exchange: str, routing_key: str) -> bool:
        """Whether nobody listened to those a moment ago."""
        until = self._until.get((exchange, routing_key))
        return until is not None and time.monotonic() < until

    def sent(self, exchange: str, routing_key: str, confirm: asyncio.Future[None]) -> None:
        """One is on its way now."""
        until = time.monotonic() + REST  # from now: by the answer, somebody may have begun
        confirm.add_done_callback(partial(self._answered, (exchange, routing_key), until))

    def _answered(self, key: tuple[str, str], until: float, confirm: asyncio.Future[None]) -> None:
        if confirm.cancelled() or not isinstance(confirm.exception(), Unroutable):
            self._until.pop(key, None)
            return
        if len(self._until) >= MOST_KNOWN:
            self._until.clear()
        self._until[key] = until
