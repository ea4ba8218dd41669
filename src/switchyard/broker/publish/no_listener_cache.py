"""Remember which events nobody listens to, so that they need not be sent.

Half of a worker's publishes are events, and often nobody listens: the broker then returns the
event. A new listener may miss events in its first NO_LISTENER_TTL seconds, and none after them;
`services.engine.monitoring.job_events` waits that long before it reports that it listens.
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
MAX_ENTRIES = 1_000
"""Routing keys that are remembered, at most."""


@dataclass(slots=True)
class _NoListener:
    until: float
    """Seconds, on the monotonic clock."""
    probe_at: float
    """When the next event is sent as a probe; equals `until` while a probe is unanswered."""


class NoListenerCache:
    """Remembers, per exchange and routing key, that nobody listens, so that events are not sent."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _NoListener] = {}
        """By exchange and routing key."""

    def has_no_listener(self, exchange: str, routing_key: str) -> bool:
        """Tell whether an event need not be sent. A caller that then sends one calls
        `note_sent`."""
        entry = self._entries.get((exchange, routing_key))
        return entry is not None and time.monotonic() < entry.probe_at

    def note_sent(self, exchange: str, routing_key: str, confirm: asyncio.Future[None]) -> None:
        """Note that an event is on its way now."""
        key = exchange, routing_key
        entry = self._entries.get(key)
        if entry is not None:
            entry.probe_at = entry.until
        # From now, not from the answer: by then somebody may have begun to listen.
        until = time.monotonic() + NO_LISTENER_TTL
        confirm.add_done_callback(partial(self._store_answer, key, until))

    def _store_answer(
        self, key: tuple[str, str], until: float, confirm: asyncio.Future[None]
    ) -> None:
        if confirm.cancelled() or not isinstance(confirm.exception(), Unroutable):
            self._entries.pop(key, None)
            return
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        self._entries[key] = _NoListener(until, min(until, time.monotonic() + PROBE_INTERVAL))
