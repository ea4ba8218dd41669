"""Records of the system itself: its identity and its API keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Self

MIN_KEY_LENGTH = 24
"""Characters that a key of JOBS_API_KEYS needs to be hard to guess."""


@dataclass(frozen=True, slots=True)
class SystemRecord:
    """The system of a ledger."""

    id: str
    """Twelve random hexadecimal digits, made with the ledger."""
    name: str
    """Name for people: those of the ledger and its host when it was made."""
    generation: int
    """Seconds since the epoch at which ledger and broker last agreed on a generation; 0 before the
    first time. It only grows, so a restored ledger has an older one than its broker."""

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key of the OpenAI-compatible API; None: no limit. A key with any limit may use
    that API only."""

    models: tuple[str, ...] = ()
    """Patterns of the models that it may name (`*`, `?`, `[…]`); all where there is none."""
    max_priority: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_per_day: float | None = None
    """Budget in the currency of JOBS_LLM_PRICES; a day is one in UTC."""
    budget_per_month: float | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Parse stored limits; fields of later versions are left out."""
        known = {each.name for each in fields(cls)}
        known_values = {name: value for name, value in values.items() if name in known}
        return cls(**{**known_values, "models": tuple(known_values.get("models", ()))})

    def __str__(self) -> str:
        limits_text = {
            "models": ", ".join(self.models) or None,
            "priority at most": self.max_priority,
            "requests a minute": self.requests_per_minute,
            "tokens a minute": self.tokens_per_minute,
            "budget a day": self.budget_per_day,
            "budget a month": self.budget_per_month,
        }
        return "; ".join(
            f"{name}: {each}" for name, each in limits_text.items() if each is not None
        )

    def allows(self, model: str) -> bool:
        """Return whether the key may name that model."""
        return not self.models or any(fnmatchcase(model, each) for each in self.models)


@dataclass(frozen=True, slots=True)
class KeyAllowance:
    """What remains of a key's rates after a request or a refusal."""

    requests: float | None
    """Requests that remain; None without a limit."""
    tokens: float | None
    retry_after: float = 0.0
    """Seconds until the request is allowed; 0 when it was."""
    short_of: str | None = None
    """`requests` or `tokens`, where it was refused."""


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """An API key. Times are seconds since the epoch, UTC."""

    id: str
    """Public: it names the key in logs and commands."""
    name: str
    """Name for people, such as that of its user."""
    key_hash: str
    """SHA-256 of the key, hexadecimal."""
    scopes: tuple[str, ...]
    created_at: float
    last_used_at: float | None
    """Last use, to about a minute; None if never used."""
    revoked_at: float | None
    limits: KeyLimits | None = None
