"""Keys of the HTTP API: create them, and find the owner of a presented one.

A key is 32 random bytes behind a prefix that secret scanners can look for. Only its SHA-256 is
kept: with so many bits nothing slower is needed, and nobody can read keys out of the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

from switchyard.services.common.errors import Misconfigured
from switchyard.services.common.shared_calls import SharedCalls
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.system import MIN_KEY_LENGTH, ApiKeyRecord, KeyLimits

PREFIX = "swy_"
KEY_BYTES = 32
CACHE_TTL = 1.0
"""Seconds for which a key that was found is not looked up again: a revoked key may work so much
longer."""
MAX_CACHED = 1_000
USE_RECORD_INTERVAL = 60.0
"""Seconds after which a key's use is recorded in the ledger again."""


class Scope(StrEnum):
    """Permission of a key."""

    PUBLISH = "publish"
    """Publish and cancel jobs."""
    READ = "read"
    """Read jobs, results, events."""
    ADMIN = "admin"
    """Everything, workers and dead letters included."""


class InvalidKeySetting(Misconfigured):
    """A key in the settings can't be used; the text says why, without the key."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller of the API."""

    id: str
    """Public, for logs and limits."""
    scopes: frozenset[Scope]
    limits: KeyLimits | None = None
    """Limits for the OpenAI-compatible API; with any, only that API may be used."""

    def may(self, scope: Scope) -> bool:
        """Tell whether the caller has this permission."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. It can't be read again later."""

    id: str
    key: str = field(repr=False)


def hash_of(key: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal: the only form in which a key is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


async def create_key(
    ledger: Ledger, name: str, scopes: Iterable[Scope], limits: KeyLimits | None = None
) -> NewKey:
    """Make a key and keep its hash. Raises LedgerError."""
    new_key = NewKey(id=secrets.token_hex(4), key=PREFIX + secrets.token_urlsafe(KEY_BYTES))
    await ledger.api_keys.add_api_key(
        new_key.id,
        name=name,
        key_hash=hash_of(new_key.key),
        scopes=sorted(set(scopes)),
        now=ledger.clock.time(),
        limits=limits,
    )
    return new_key


def configured_keys(text: str) -> dict[str, Principal]:
    """Return the keys of JOBS_API_KEYS by their hashes: `KEY` (every scope) or `KEY:read+publish`,
    separated by commas. Raises InvalidKeySetting."""
    principals: dict[str, Principal] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, colon, names = entry.partition(":")
        if len(key) < MIN_KEY_LENGTH:
            raise InvalidKeySetting(
                f"a key in JOBS_API_KEYS is shorter than {MIN_KEY_LENGTH} characters: make one "
                "with `jobctl keys create`, or with `openssl rand -base64 32`"
            )
        try:
            scopes = frozenset(map(Scope, names.split("+"))) if colon else frozenset(Scope)
        except ValueError as error:
            raise InvalidKeySetting(
                f"a scope in JOBS_API_KEYS is unknown: use {', '.join(Scope)}, joined by +"
            ) from error
        key_hash = hash_of(key)
        principals[key_hash] = Principal(f"env-{key_hash[:8]}", scopes)
    return principals


@dataclass(slots=True)
class _CachedKey:
    principal: Principal
    expires_at: float
    """Monotonic time."""


class ApiKeyStore:
    """Finds the owner of a key, from the settings or from the ledger."""

    def __init__(self, ledger: Ledger, configured: dict[str, Principal]) -> None:
        self._ledger = ledger
        self._configured = configured
        self._cache: dict[str, _CachedKey] = {}
        """Keys of the ledger, by hash."""
        self._use_recorded_at: dict[str, float] = {}
        """Monotonic time at which a key's use was last recorded, by id."""
        self._has_keys = bool(configured)
        self._has_keys_expires_at = 0.0
        # Every open stream checks its key again and again: many find a cached answer expired.
        self._key_lookups = SharedCalls(self._find)
        self._has_keys_lookups = SharedCalls(self._look_for_keys)
        self._log = structlog.get_logger("api keys")

    async def identify(self, key: str) -> Principal | None:
        """Return the owner of a key; None for a key that is unknown or revoked. Raises
        LedgerError."""
        return await self.identify_hash(hash_of(key))

    async def identify_hash(self, key_hash: str) -> Principal | None:
        """Return the owner of the key with that hash; None for one that is unknown or revoked.
        Raises LedgerError."""
        for configured, principal in self._configured.items():
            if hmac.compare_digest(configured, key_hash):
                return principal
        now = time.monotonic()
        cached = self._cache.get(key_hash)
        if cached is not None and now < cached.expires_at:
            return cached.principal
        self._cache.pop(key_hash, None)
        return await self._key_lookups.result(key_hash)

    async def _find(self, key_hash: str) -> Principal | None:
        now = time.monotonic()
        record = await self._ledger.api_keys.find_api_key(key_hash)
        if record is None or record.revoked_at is not None:
            return None
        if not hmac.compare_digest(record.key_hash, key_hash):
            return None
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        principal = _principal(record)
        self._cache[key_hash] = _CachedKey(principal, now + CACHE_TTL)
        await self._record_use(record, now)
        return principal

    async def has_keys(self) -> bool:
        """Tell whether there is any key, also a revoked one: then every request needs one. The
        answer is at most a second old; once True, it stays True. Raises LedgerError."""
        if not self._has_keys and time.monotonic() >= self._has_keys_expires_at:
            await self._has_keys_lookups.result(None)
        return self._has_keys

    async def _look_for_keys(self, _: None) -> None:
        self._has_keys = await self._ledger.api_keys.has_api_keys()
        self._has_keys_expires_at = time.monotonic() + CACHE_TTL

    async def has_usable_keys(self) -> bool:
        """Tell whether any key is in force. Raises LedgerError."""
        if self._configured:
            return True
        return any(key.revoked_at is None for key in await self._ledger.api_keys.list_api_keys())

    async def _record_use(self, record: ApiKeyRecord, now: float) -> None:
        recorded_at = self._use_recorded_at.get(record.id)
        if recorded_at is not None and now - recorded_at < USE_RECORD_INTERVAL:
            return
        self._use_recorded_at[record.id] = now
        try:
            await self._ledger.api_keys.note_api_key_used(record.id, self._ledger.clock.time())
        except LedgerError as error:  # the key is valid all the same
            self._log.warning("API key use not recorded", key=record.id, error=str(error))


def _principal(record: ApiKeyRecord) -> Principal:
    scopes = {scope.value for scope in Scope}
    known = frozenset(Scope(name) for name in record.scopes if name in scopes)
    return Principal(record.id, known, record.limits)
