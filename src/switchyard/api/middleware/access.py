"""Who may do what: API keys, scopes, and the limit for each key."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Annotated, Any, Self, TypeVar, get_args
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials
from pydantic import BaseModel

from switchyard.api.addresses import is_loopback
from switchyard.api.http.event_stream import StreamAdmission
from switchyard.api.http.problems import OPENAI_PREFIX, Problem, try_later
from switchyard.api.state import ApiState, state_of
from switchyard.services.common.errors import Misconfigured
from switchyard.services.engine.access.api_keys import ApiKeyStore, Principal, Scope, hash_of
from switchyard.services.engine.access.rate_limit import Allowance
from switchyard.services.engine.publishing.requests import check_source
from switchyard.services.engine.records.errors import LedgerError, LedgerUnavailable
from switchyard.services.engine.records.requests import namespaced_key

BEARER = HTTPBearer(auto_error=False, scheme_name="bearer", description="An API key.")
HEADER = APIKeyHeader(
    name="X-API-Key", auto_error=False, scheme_name="header", description="An API key."
)
RECEIPT_FIELDS = frozenset({"id", "document_id", "job_id", "state", "duplicate"})
"""Fields of an answer that everyone who may publish can see."""
V = TypeVar("V", bound=BaseModel)
ANYBODY = Principal("anybody", frozenset(Scope))
"""Everyone on this machine, as long as there are no keys."""
MAX_UNCONFIRMED_SECONDS = 60.0
"""Seconds for which a stream goes on while the ledger, which has the keys, does not answer."""


class KeysMissing(Misconfigured):
    """The service would listen beyond this machine, although there are no keys."""


async def check_keys(state: ApiState) -> None:
    """Raise KeysMissing where everybody could use the service."""
    host = state.settings.api_host
    if not is_loopback(host) and not await _somebody_has_a_key(state):
        raise KeysMissing(
            f"without an API key the service listens on this machine only, not on {host}: make "
            "one with `jobctl keys create`, or set JOBS_API_KEYS or JOBS_API_HOST=127.0.0.1"
        )


async def _somebody_has_a_key(state: ApiState) -> bool:
    try:
        return await state.keys.has_usable_keys()
    except LedgerUnavailable:
        # The answer is not needed now: without the ledger, nobody is let in, and without keys,
        # nobody from beyond this machine (`identify`).
        return True


async def documented_principal(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)] = None,
    header: Annotated[str | None, Security(HEADER)] = None,
) -> Principal:
    """`identify` as a dependency, whose parameters tell OpenAPI how keys are sent."""
    return await identify(request)


PrincipalOf = Annotated[Principal, Depends(documented_principal)]


async def identify(request: Request) -> Principal:
    """Return who makes this request; this is found out once for each request. Raises Problem (401,
    403, 429), LedgerError."""
    identified: Principal | None = getattr(request.state, "principal", None)
    if identified is not None:
        return identified
    state = state_of(request)
    key = key_in(request)
    if (key is None or must_send_key(request.url.path)) and not await state.keys.has_keys():
        require_this_machine(request)
        key = None
    principal = await _principal_of(state.keys, key)
    admit_principal(request, principal, KeyAdmission(state.keys, key))
    return principal


def admit_principal(request: Request, principal: Principal, admission: StreamAdmission) -> None:
    """Record in the request who makes it, and what lets it in. Raises Problem (403, 429)."""
    if principal.limits is not None and not request.url.path.startswith(OPENAI_PREFIX):
        raise Problem("forbidden", f"this key has limits, and is for {OPENAI_PREFIX} alone")
    request.state.principal_id = principal.id
    request.state.principal = principal
    request.state.admission = admission
    request.state.admission_watch = state_of(request).admissions
    if principal is not ANYBODY:
        limit(request, state_of(request).key_limiter.take(principal.id))


def must_send_key(path: str) -> bool:
    """Return whether the clients of a path always send a key, as OpenAI's clients do. Where no key
    is needed, theirs is ignored."""
    return path.startswith(OPENAI_PREFIX)


async def _principal_of(keys: ApiKeyStore, key: str | None) -> Principal:
    """Return whose key this is; without one, ANYBODY, as long as no keys exist. Raises Problem
    (401), LedgerError."""
    if key is not None:
        principal = await keys.identify(key)
        if principal is None:
            raise _unauthorized_problem("the API key is unknown or revoked")
        return principal
    if await keys.has_keys():
        raise _unauthorized_problem(
            "send an API key: `Authorization: Bearer KEY` or `X-API-Key: KEY`"
        )
    return ANYBODY


class KeyAdmission:
    """Checks whether a request that was let in would be let in again: while it is answered, its key
    may be revoked, or the first key be made."""

    def __init__(self, keys: ApiKeyStore, key: str | None) -> None:
        self._keys = keys
        self._key = key
        self._confirmed_at = time.monotonic()

    @property
    def identity(self) -> Hashable:
        return "key", None if self._key is None else hash_of(self._key)

    async def check(self) -> None:
        """Raise Problem (401) if the request would not be let in, LedgerError if that could not be
        checked for a minute."""
        try:
            await _principal_of(self._keys, self._key)
        except LedgerError:
            if time.monotonic() - self._confirmed_at > MAX_UNCONFIRMED_SECONDS:
                raise
        else:
            self._confirmed_at = time.monotonic()


class StreamSlot:
    """One of the slots for streams and waiting requests, held until `leave`."""

    def __init__(self, request: Request) -> None:
        """Take a slot. Raises Problem (503) where none is left for this key."""
        self._streams = state_of(request).streams
        self._principal_id: str = request.state.principal_id
        if not self._streams.take(self._principal_id, 1):
            raise try_later("too-many-streams")
        self._is_held = True

    def leave(self) -> None:
        if self._is_held:
            self._is_held = False
            self._streams.give_back(self._principal_id, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def source_of(request: Request, requested: str | None) -> str:
    """Return the source of a request's jobs: the requested one, or that of the API key. Raises
    InvalidRequest for the source of another key."""
    principal_id: str = request.state.principal_id
    if principal_id == ANYBODY.id:
        return requested or "api"
    own = f"api:{principal_id}"
    if requested is not None:
        check_source(requested, own)
    return requested or own


def own_key(request: Request, idempotency_key: str | None) -> str | None:
    """Return the idempotency key in the namespace of the API key that sends it. Without API keys,
    all clients can also use the ledger, and share the namespace of its programs."""
    principal_id = request.state.principal_id
    if idempotency_key is None or principal_id == ANYBODY.id:
        return idempotency_key
    return namespaced_key(f"api:{principal_id}", idempotency_key)


def starter_of(request: Request) -> str:
    """Return the name under which an operation that this request starts is recorded."""
    return f"api: {request.state.principal_id}"


def may(request: Request, scope: Scope) -> bool:
    """Return whether the request's key has the scope."""
    principal: Principal = request.state.principal
    return principal.may(scope)


def may_see_content(request: Request, *, is_own: bool) -> bool:
    """Return whether the answer may have content. This rule holds for everything that a key may
    change.

    A key without the scope `read` only sees what it has sent itself, and what was made of that
    (`is_own`). Of everything else it gets a `receipt`.
    """
    return is_own or may(request, Scope.READ)


def receipt(request: Request, view: V, *, is_own: bool) -> V:
    """Return the view as the request's key may see it: complete, or only ids and state."""
    if may_see_content(request, is_own=is_own):
        return view
    fields = type(view).model_fields
    hidden = {
        name: _empty_value(fields[name].annotation, value)
        for name, value in view
        if name not in RECEIPT_FIELDS
    }
    return view.model_copy(update=hidden)


def _empty_value(annotation: Any, value: Any) -> Any:
    """Return an empty value of the same type, in place of a hidden one."""
    if value is None or type(None) in get_args(annotation):
        return None
    return type(value)() if isinstance(value, (str, int, float, list, dict)) else value


def key_in(request: Request) -> str | None:
    """Return the key that was sent, in either header; None when neither was.

    Raises Problem (401) for a key of another form: a key that can't be right is never ignored, even
    where none is needed. So is a second key: a proxy in front may have checked the other one.
    """
    headers = request.headers
    sent = [*headers.getlist("authorization"), *headers.getlist("x-api-key")]
    if len(sent) > 1:
        raise _unauthorized_problem("send one API key, in one header: more than one was sent")
    if "authorization" in headers:
        scheme, _, credentials = headers["authorization"].partition(" ")
        if scheme.lower() != "bearer" or not credentials.strip():
            raise _unauthorized_problem("`Authorization` must be `Bearer KEY`")
        return credentials.strip()
    if "x-api-key" in headers and not headers["x-api-key"].strip():
        raise _unauthorized_problem("the API key in `X-API-Key` is empty")
    return headers.get("x-api-key")


def limit(request: Request, allowance: Allowance) -> None:
    """Record the rest of the client's allowance. Raises Problem (429) when it is used up."""
    request.state.allowance = allowance
    if not allowance.allowed:
        raise rate_limited(allowance)


def rate_limited(allowance: Allowance) -> Problem:
    return Problem("rate-limited", "slow down", retry_after=allowance.retry_after)


def needs(*scopes: Scope) -> Any:
    """Return a dependency that requires a key with one of these scopes, or `admin`."""
    return Depends(_KeyGuard(scopes))


def require_scope(principal: Principal, *scopes: Scope) -> None:
    """Raise Problem (403) for a key that has none of these scopes."""
    if not any(principal.may(scope) for scope in scopes):
        raise Problem("forbidden", f"this needs the scope {' or '.join(scopes)}")


class _KeyGuard:
    """Lets in requests whose key has one of some scopes. A dependency, so that the OpenAPI document
    names the key; `Routes` calls `admit` before the body of a request is read."""

    def __init__(self, scopes: tuple[Scope, ...]) -> None:
        self._scopes = scopes

    async def admit(self, request: Request) -> None:
        """Require a key with one of the scopes. Raises Problem (401, 403, 429), LedgerError."""
        require_scope(await identify(request), *self._scopes)

    async def __call__(self, principal: PrincipalOf) -> None:
        """Do nothing: the route has called `admit` already. The parameter is for OpenAPI."""


def _unauthorized_problem(detail: str) -> Problem:
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def require_this_machine(request: Request) -> None:
    """Raise Problem (403) unless a request without a key comes from a program on this machine,
    whatever address the server is bound to. This also refuses web pages: those whose own name
    resolves to loopback, and those that let the browser send a form here (by `Origin`, also if that
    is `null`)."""
    client = request.client.host if request.client is not None else ""
    if not is_loopback(client) or not is_loopback(request.url.hostname or ""):
        raise Problem("forbidden", "without API keys only this machine is served, by its own name")
    origin = request.headers.get("origin")
    if origin is not None and not is_loopback(_host_of(origin)):
        raise Problem("forbidden", "without API keys no web page of another machine is served")


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
