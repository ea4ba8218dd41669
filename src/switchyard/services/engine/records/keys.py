"""What the ledger keeps of the API's keys."""

from __future__ import annotations

from dataclasses import dataclass


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
