"""Sessions of the dashboard: signed in with an API key, kept by a cookie that scripts can't read.

The ledger keeps a session under the hash of its token, with the hash of its key: it is over for all
processes when somebody signs out, when its key is revoked, or after twelve hours. Where nobody has
a key, everybody on this machine is let in, as by the rest of the API.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Hashable
from urllib.parse import parse_qs, urlsplit

from fastapi import Request
from starlette.responses import Response

from switchyard.api.http.problems import Problem
from switchyard.api.middleware.access import (
    ANYBODY,
    MAX_UNCONFIRMED_SECONDS,
    admit_principal,
    require_scope,
    require_this_machine,
)
from switchyard.api.state import ApiState, state_of
from switchyard.services.common.shared_calls import SharedCalls
from switchyard.services.engine.access.api_keys import CACHE_TTL, Principal, Scope, hash_of
from switchyard.services.engine.records.errors import LedgerError, LedgerReadOnly

COOKIE = "switchyard_session"
PATH = "/dashboard"
"""Address of the dashboard. The cookie is sent to it and to what is below it, and nowhere else."""
SESSION_SECONDS = 12 * 3600.0
TOKEN_BYTES = 32
MAX_CACHED = 1_000
CSRF_FIELD, CSRF_HEADER = "csrf", "X-CSRF-Token"
MAX_FIELDS = 1_000
FORM_TYPE = "application/x-www-form-urlencoded"


class SessionStore:
    """Begins, finds and ends sessions."""

    def __init__(self, state: ApiState) -> None:
        self._state = state
        self._secret = secrets.token_bytes(TOKEN_BYTES)
        """Key of the form tokens where nobody signs in."""
        self._remembered: dict[str, tuple[str, float]] = {}
        """Hash of the key, and until when it is cached, by the hash of the token."""
        self._kept_here: dict[str, tuple[str, float]] = {}
        """Hash of the key, and when it ends (monotonic), by the hash of the token: sessions that
        began while the ledger took no writes."""
        # The open pages of a browser have the same token: their requests share one query.
        self._finding = SharedCalls(self._find_key_hash)

    async def begin(self, key: str) -> str | None:
        """Begin a session with an API key, and return its token; None for an unknown key. Where the
        ledger takes no writes, the session is kept by this process alone: somebody wants to see
        what is wrong. Raises LedgerError."""
        if await self._state.keys.identify(key) is None:
            return None
        token = secrets.token_urlsafe(TOKEN_BYTES)
        now = self._state.ledger.clock.time()
        try:
            await self._state.ledger.api_keys.add_session(
                hash_of(token), key_hash=hash_of(key), now=now, expires_at=now + SESSION_SECONDS
            )
        except LedgerReadOnly:
            if len(self._kept_here) >= MAX_CACHED:
                self._kept_here.clear()
            ends_at = time.monotonic() + SESSION_SECONDS
            self._kept_here[hash_of(token)] = (hash_of(key), ends_at)
        return token

    async def principal(self, token: str | None) -> Principal | None:
        """Return the principal of a session; None when it is over. Raises LedgerError."""
        if not token:
            return None
        token_hash = hash_of(token)
        key_hash, until = self._remembered.get(token_hash, (None, 0.0))
        if time.monotonic() >= until:
            self._remembered.pop(token_hash, None)
            key_hash = await self._finding.result(token_hash)
        return None if key_hash is None else await self._state.keys.identify_hash(key_hash)

    async def _find_key_hash(self, token_hash: str) -> str | None:
        kept_hash, ends_at = self._kept_here.get(token_hash, (None, 0.0))
        if time.monotonic() < ends_at:
            return kept_hash
        key_hash = await self._state.ledger.api_keys.session_key_hash(
            token_hash, self._state.ledger.clock.time()
        )
        if key_hash is not None:
            if len(self._remembered) >= MAX_CACHED:
                self._remembered.clear()
            self._remembered[token_hash] = (key_hash, time.monotonic() + CACHE_TTL)
        return key_hash

    async def end(self, token: str | None) -> None:
        """End a session. Raises LedgerError."""
        if token:
            self._remembered.pop(hash_of(token), None)
            if self._kept_here.pop(hash_of(token), None) is not None:
                return
            await self._state.ledger.api_keys.end_session(hash_of(token))

    def csrf_token(self, request: Request) -> str:
        """Return the token in the forms of this session. It proves that the dashboard made a form:
        it is derived from the cookie, which no other site can read."""
        token = request.cookies.get(COOKIE, "")
        if request.state.principal is ANYBODY:
            return hmac.new(self._secret, b"anybody", hashlib.sha256).hexdigest()
        return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


class SessionAdmission:
    """Checks that the session of a stream has not ended."""

    def __init__(self, store: SessionStore, state: ApiState, token: str | None) -> None:
        self._store = store
        self._state = state
        self._token = token
        self._confirmed_at = time.monotonic()

    @property
    def identity(self) -> Hashable:
        return "session", None if self._token is None else hash_of(self._token)

    async def check(self) -> None:
        """Check the session. Raises Problem (401) when it has ended, and LedgerError when it could
        not be checked for a minute."""
        try:
            needs_key = await self._state.keys.has_keys()
            if needs_key and await self._store.principal(self._token) is None:
                raise signed_out()
        except LedgerError:
            if time.monotonic() - self._confirmed_at > MAX_UNCONFIRMED_SECONDS:
                raise
        else:
            self._confirmed_at = time.monotonic()


def signed_out() -> Problem:
    return Problem("unauthorized", "sign in first, with an API key")


def sessions_of(request: Request) -> SessionStore:
    sessions: SessionStore = request.app.state.sessions
    return sessions


class SessionGuard:
    """Admits sessions of keys with a scope; changes only by forms with the session's token."""

    def __init__(self, scope: Scope | None) -> None:
        """Without a scope, any session is admitted."""
        self.scope = scope

    async def admit(self, request: Request) -> None:
        """Check the session of a request, and the token of a form. Raises Problem (401, 403, 429),
        LedgerError."""
        if getattr(request.state, "principal", None) is None:
            await _identify(request)
        if self.scope is not None:
            require_scope(request.state.principal, self.scope)
        if request.method not in {"GET", "HEAD"}:
            require_same_origin(request)
            await _require_csrf_token(request)

    async def __call__(self) -> None:
        """Do nothing: the route has called `admit` already."""


async def _identify(request: Request) -> None:
    state, store = state_of(request), sessions_of(request)
    token = request.cookies.get(COOKIE)
    if await state.keys.has_keys():
        principal = await store.principal(token)
        if principal is None:
            raise signed_out()
    else:
        require_this_machine(request)
        principal = ANYBODY
    admit_principal(request, principal, SessionAdmission(store, state, token))


def require_same_origin(request: Request) -> None:
    """Raise Problem (403) for a request that a page of another site has sent."""
    origin = request.headers.get("origin")
    if origin is not None:
        try:
            host = urlsplit(origin).netloc
        except ValueError:
            host = ""
        same = bool(host) and host == request.headers.get("host")
    else:
        same = request.headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}
    if not same:
        raise Problem("forbidden", "this form was sent by a page of another site")


async def _require_csrf_token(request: Request) -> None:
    """Raise Problem (403) without the session's token: in a header (of a script), in the form, or
    in the query of a form with files, which is read piece by piece."""
    sent = request.headers.get(CSRF_HEADER) or request.query_params.get(CSRF_FIELD)
    if sent is None and request.headers.get("content-type", "").startswith(FORM_TYPE):
        sent = (await form_fields(request)).get(CSRF_FIELD)
    if not hmac.compare_digest(
        (sent or "").encode(), sessions_of(request).csrf_token(request).encode()
    ):
        raise Problem("forbidden", "this form is too old: open its page again")


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, each with its first value. Raises Problem (400) for more than
    MAX_FIELDS."""
    text = (await request.body()).decode("utf-8", "replace")
    try:
        lists = parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise Problem("malformed-request", "the form has too many fields") from error
    return {name: values[0] for name, values in lists.items()}


def set_cookie(request: Request, response: Response, token: str) -> None:
    """Send the token of a session, for the dashboard alone, out of reach of scripts."""
    response.set_cookie(
        COOKIE,
        token,
        max_age=round(SESSION_SECONDS),
        path=PATH,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
