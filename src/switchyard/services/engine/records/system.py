"""Which system a ledger, a broker, a file storage or an index belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemRecord:
    """The system of a ledger."""

    id: str
    """Twelve hexadecimal digits, drawn when the ledger was made."""
    name: str
    """For people: what the ledger was called, and where, when it was made."""
    generation: int
    """Seconds since the epoch when ledger and broker last agreed on it; 0 before the first time. It
    only grows, so a ledger that has been restored has an older one than its broker."""

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"
