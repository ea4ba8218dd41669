"""Give every request an id, check the rate limit of its client's address, add headers, log it.

It is plain ASGI, around all other layers except `openai_error_rewriter`, so that a defect is
answered as a problem, too.
"""

from __future__ import annotations

import re
import secrets
import time
from contextlib import AbstractContextManager

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard.api.addresses import client_at
from switchyard.api.http.problems import Problem, render
from switchyard.api.middleware.access import rate_limited
from switchyard.api.middleware.connections import BODY_PENDING
from switchyard.services.common.tracing import SpanHandle, span, tracing_by
from switchyard.services.engine.access.rate_limit import Allowance, RateLimiter

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
PROBES = frozenset({"/health", "/health/live", "/health/ready"})
"""Paths with a rate limit of their own: a health check is answered even if its address has used up
the general limit."""
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


class RequestMiddleware:
    """The layer around all requests. Bodies, queries and API keys never reach the log, only the
    keys' ids. `trouble` in the log is the cause of an error if the answer does not name it."""

    def __init__(
        self, app: ASGIApp, limiter: RateLimiter, probes: RateLimiter, tracer: object = None
    ) -> None:
        self._app = app
        self._tracer = tracer
        self._limiter = limiter
        self._probes = probes
        self._log = structlog.get_logger("access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._tracer is None:
            await self._serve(scope, receive, send)
            return
        with tracing_by(self._tracer), _request_span(scope) as request_span:

            async def send_and_name(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _name_span(request_span, scope, int(message["status"]))
                await send(message)

            await self._serve(scope, receive, send_and_name)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(Headers(scope=scope))
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                headers = MutableHeaders(scope=message)
                _add_headers(headers, request_id, state.get("allowance"))
                if BODY_PENDING in state and state[BODY_PENDING]():
                    # The rest of the request's body is not read: RFC 9112, 9.3 and 9.6.
                    headers["Connection"] = "close"
            await send(message)

        try:
            problem = self._over_limit(scope)
            if problem is not None:
                await render(problem, request_id)(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        except Exception:
            self._log.exception("unhandled exception", request_id=request_id, path=scope["path"])
            if status:
                raise  # the answer has begun: the server cuts it off
            await render(Problem("internal-error"), request_id)(scope, receive, answer)
        finally:
            self._log.info(
                "request",
                request_id=request_id,
                method=scope["method"],
                path=scope["path"],
                status=status,
                milliseconds=round((time.perf_counter() - began) * 1000, 1),
                client=_address(scope),
                key=state.get("principal_id"),
                trouble=state.get("trouble"),
            )

    def _over_limit(self, scope: Scope) -> Problem | None:
        limiter = self._probes if scope["path"] in PROBES else self._limiter
        allowance = limiter.take(client_at(_address(scope)))
        scope["state"]["allowance"] = allowance
        return None if allowance.allowed else rate_limited(allowance)


def _request_span(scope: Scope) -> AbstractContextManager[SpanHandle]:
    # `_name_span` later names the span by its route: paths contain ids, and are too many.
    method = scope["method"]
    parent = Headers(scope=scope).get("traceparent")
    return span(method, kind="server", parent=parent, http__request__method=method)


def _name_span(request_span: SpanHandle, scope: Scope, status: int) -> None:
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        request_span.rename(f"{scope['method']} {route}")
    request_span.note(http__route=route, http__response__status_code=status)
    if status >= 500:
        request_span.failed(str(status))


def _request_id(headers: Headers) -> str:
    sent_id = headers.get("x-request-id", "")
    return sent_id if REQUEST_ID.fullmatch(sent_id) else secrets.token_hex(8)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "unknown"


def _add_headers(headers: MutableHeaders, request_id: str, allowance: Allowance | None) -> None:
    headers["X-Request-ID"] = request_id
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    if allowance is not None:
        headers["RateLimit-Limit"] = str(allowance.limit)
        headers["RateLimit-Remaining"] = str(allowance.remaining)
        headers["RateLimit-Reset"] = str(round(allowance.reset_after + 0.5))
