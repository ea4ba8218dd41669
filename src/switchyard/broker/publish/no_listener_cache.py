"""Which messages for whoever listens would reach nobody just now: they need not be sent.

Events are half of what a worker publishes and of what the broker gets from it, and often nobody
listens. The broker says so by returning one. Whoever begins to listen hears everything
NO_LISTENER_TTL seconds later, which `services.engine.monitoring.job_events` waits for before it
says that it listens.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial

from switchyard.broker.errors import Unroutable

NO_LISTENER_TTL = 0.25
"""Seconds, from the sending of a message that reached nobody, in which others need not be sent."""
REQUERY_INTERVAL = NO_LISTENER_TTL / 5
"""Seconds until one is sent nevertheless, if the last that was sent is answered: where the broker
answers in time, the rest goes on without a gap."""
MAX_KNOWN = 1_000
"""Routing keys that are remembered."""


@dataclass(slots=True)
class _Rest:
    until: float
    """Seconds, on the monotonic clock."""
    ask_at: float
    """When the next one is sent: at the end at the latest, and then while one is on its way."""


class NoListenerCache:
    """Remembers, per exchange and routing key, that nobody listens, so that events are not sent."""

    def __init__(self) -> None:
        self._resting: dict[tuple[str, str], _Rest] = {}
        """By exchange and routing key."""

    def is_unheard(self, exchange: str, routing_key: str) -> bool:
        """Tell whether the next one need not be sent. Else it has to be: see `sent`."""
        rest = self._resting.get((exchange, routing_key))
        return rest is not None and time.monotonic() < rest.ask_at

    def sent(self, exchange: str, routing_key: str, confirm: asyncio.Future[None]) -> None:
        """Note that an event is on its way now."""
        key = exchange, routing_key
        rest = self._resting.get(key)
        if rest is not None:
            rest.ask_at = rest.until
        # From now, not from the answer: by then somebody may have begun to listen.
        until = time.monotonic() + NO_LISTENER_TTL
        confirm.add_done_callback(partial(self._store_answer, key, until))

    def _store_answer(
        self, key: tuple[str, str], until: float, confirm: asyncio.Future[None]
    ) -> None:
        if confirm.cancelled() or not isinstance(confirm.exception(), Unroutable):
            self._resting.pop(key, None)
            return
        if len(self._resting) >= MAX_KNOWN:
            self._resting.clear()
        self._resting[key] = _Rest(until, min(until, time.monotonic() + REQUERY_INTERVAL))
