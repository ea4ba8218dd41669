"""Keeps an operation's rate: how many jobs may be published at a moment."""

from __future__ import annotations

import time
from dataclasses import dataclass

BURST = 0.25
"""Seconds of unused time that are kept: a rate is no average over an hour."""


@dataclass(slots=True)
class RateSlots:
    """One operation's slots. Its rate, in jobs a second, may be another one at each call."""

    _next: float | None = None
    """When the next slot is, by the monotonic clock; None before the first."""

    def take(self, wanted: int, rate: float | None) -> tuple[int, float]:
        """Take up to `wanted` slots; or 0, and the seconds until there is one."""
        if rate is None:
            self._next = None
            return wanted, 0.0
        now = time.monotonic()
        if self._next is None:
            self._next = now - BURST
        # Unused time is kept for a moment, or one job and a half, only.
        self._next = max(self._next, now - max(BURST, 1.5 / rate))
        ready = int((now - self._next) * rate)
        # Several at once, where the rate is high: each step costs a round trip.
        least = max(1, min(wanted, int(rate * BURST / 2)))
        if ready < least:
            return 0, self._next + least / rate - now
        taken = min(wanted, ready)
        self._next += taken / rate
        return taken, 0.0

    def wait(self, rate: float | None) -> float:
        """Return the seconds until something may be published, as far as is known."""
        if rate is None or self._next is None:
            return 0.0
        return max(0.0, self._next + 1 / rate - time.monotonic())
