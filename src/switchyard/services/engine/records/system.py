"""What the ledger keeps of the system itself: which one it is, and the keys of its API."""

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


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """What the ledger knows of a key. Times are seconds since the epoch, UTC."""

    id: str
    """Public: it names the key in logs and commands."""
    name: str
    """Who uses it, in somebody's words."""
    key_hash: str
    """SHA-256 of the key, hexadecimal."""
    scopes: tuple[str, ...]
    created_at: float
    last_used_at: float | None
    """To about a minute; None where it was never used."""
    revoked_at: float | None
