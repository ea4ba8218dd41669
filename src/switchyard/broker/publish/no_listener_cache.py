"""Which events would reach nobody just now, so that they need not be sent.

Events are half of what a worker publishes and of what the broker gets from it, and often nobody
listens: the broker then returns the event. Whoever begins to listen hears everything
NO_LISTENER_TTL seconds later, which `services.engine.monitoring.job_events` waits for before it
says that it listens.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial

from switchyard.broker.errors import Unroutable

NO_LISTENER_TTL = 1.0
"""Seconds, from the sending of an event that reached nobody, in which others need not be sent.
A busy worker reads the broker's answer some 0.3 s later: with less, it would send all events just
when it has the least time for them."""
PROBE_INTERVAL = NO_LISTENER_TTL / 5
"""Seconds after an answer `no listener` when one event is sent as a probe: if the broker answers
it in time, the entry is renewed before it lapses."""
MAX_KNOWN = 1_000
"""Routing keys that are remembered."""


@dataclass(slots=True)
class _NoListener:
    until: float
    """Seconds, on the monotonic clock."""
    probe_at: float
    """When the next event is sent as a probe; equals `until` while a probe is unanswered."""


class NoListenerCache:
    """Remembers, per exchange and routing key, that nobody listens, so that events are not sent."""

    def __init__(self) -> None:
        self._unheard: dict[tuple[str, str], _NoListener] = {}
        """Keys that nobody listened to, by exchange and routing key."""

    def is_unheard(self, exchange: str, routing_key: str) -> bool:
        """Tell whether an event need not be sent. A caller that then sends one calls
        `note_sent`."""
        entry = self._unheard.get((exchange, routing_key))
        return entry is not None and time.monotonic() < entry.probe_at

    def note_sent(self, exchange: str, routing_key: str, confirm: asyncio.Future[None]) -> None:
        """Note that an event is on its way now."""
        key = exchange, routing_key
        entry = self._unheard.get(key)
        if entry is not None:
            entry.probe_at = entry.until
        # From now, not from the answer: by then somebody may have begun to listen.
        until = time.monotonic() + NO_LISTENER_TTL
        confirm.add_done_callback(partial(self._store_answer, key, until))

    def _store_answer(
        self, key: tuple[str, str], until: float, confirm: asyncio.Future[None]
    ) -> None:
        if confirm.cancelled() or not isinstance(confirm.exception(), Unroutable):
            self._unheard.pop(key, None)
            return
        if len(self._unheard) >= MAX_KNOWN:
            self._unheard.clear()
        self._unheard[key] = _NoListener(until, min(until, time.monotonic() + PROBE_INTERVAL))
