"""Errors below `/v1` as OpenAI's API writes them, so that its clients raise the right exceptions.

The outermost layer: every problem, whether a route, a limit or a defect causes it, is rewritten
here, and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard.api.http.openai_errors import error_of
from switchyard.api.http.problems import MEDIA_TYPE, OPENAI_PREFIX

LIMIT_HEADERS_KEY = "openai_limits"
"""Key in the state of a request: the headers of its answer with the limits of its API key."""
MAX_PROBLEM = 1_000_000
"""Bytes of a problem that is rewritten."""
_OPENAI_NAMES = {
    "RateLimit-Limit": "x-ratelimit-limit-requests",
    "RateLimit-Remaining": "x-ratelimit-remaining-requests",
    "RateLimit-Reset": "x-ratelimit-reset-requests",
}


class OpenAiErrors:
    """Rewrites problems, and names the limits of requests as OpenAI does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(OPENAI_PREFIX):
            send = _ErrorRewriter(send, scope.setdefault("state", {}))
        await self._app(scope, receive, send)


class _ErrorRewriter:
    """The `send` of one request, which rewrites a problem as OpenAI's API says it."""

    def __init__(self, send: Send, state: Mapping[str, Any]) -> None:
        self._send = send
        self._state = state
        self._head: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, openai_name in _OPENAI_NAMES.items():
                if name in headers:
                    unit = "s" if name == "RateLimit-Reset" else ""
                    headers[openai_name] = headers[name] + unit
            for name, value in self._state.get(LIMIT_HEADERS_KEY, {}).items():
                headers[name] = value  # the key's own limits, which are tighter than the API's
            if headers.get("content-type", "").startswith(MEDIA_TYPE):
                self._head = message
                return
        elif self._head is not None:
            self._body += message.get("body", b"")
            if message.get("more_body", False) and len(self._body) <= MAX_PROBLEM:
                return
            head, self._head = self._head, None
            await self._send_error(head)
            return
        await self._send(message)

    async def _send_error(self, head: Message) -> None:
        status, error = error_of(json.loads(self._body))
        body = json.dumps(error).encode()
        headers = MutableHeaders(scope=head)
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(body))
        await self._send({**head, "status": status.value})
        await self._send({"type": "http.response.body", "body": body})
