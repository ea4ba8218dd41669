"""Send HTTP requests to document sources, with pace, pauses, ETags, bounds and errors in common.

    SERVER = SourceServer("zenodo", label="Zenodo", base_url="https://zenodo.org/api", interval=1)

    async with SourceClient.connect(SERVER, ctx.settings, ctx.ledger, lane=ctx.lane) as client:
        record = (await client.get("/records/7", {"all": "1"})).json()

- Every request waits for its turn in the whole fleet (throttle.py). A job that gets no turn gets
  SourceBusy and snoozes; a program that can wait says how long by `max_wait`.
- When a server asks for a pause (`Retry-After`, rate limits: rate_headers.py), the whole fleet
  sends it nothing until the pause is over.
- With `conditional=True`, the last answer is kept with its ETag, and only fetched again if it has
  changed.
- Bodies are bounded in size, requests in time; redirects are followed within the server only.
- Errors (source_errors.py) say whether to try again. No request is repeated here: the job's
  retries do the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.library_loading import load
from switchyard.services.pipeline.sources.rate_headers import demanded_pause, pause_when_used_up
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceBusy,
    SourceUnavailable,
)
from switchyard.services.pipeline.sources.source_response import (
    SourceResponse,
    SourceResponseCache,
    conditional_headers,
)
from switchyard.services.pipeline.sources.throttle import (
    FleetThrottle,
    LocalThrottle,
    RequestThrottle,
)

if TYPE_CHECKING:
    import httpx

    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.ledger import Ledger

MAX_TURN_WAIT = 10.0
"""Seconds that a job waits for its turn, as one of two waiting jobs (`throttle`), before it
snoozes."""
MAX_REDIRECTS = 3
"""Most redirects of one request, all within its server: GitHub redirects from names that have
changed."""
_REDIRECTS = frozenset({301, 302, 307, 308})
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class SourceServer:
    """A server, and the bounds of requests to it."""

    name: str
    """Names its leases in the ledger and its answers in the storage: lower-case letters, digits,
    `_` and `-`; the same in all processes."""
    label: str
    """Name in messages for people: `arXiv`."""
    base_url: str
    interval: float
    """Fewest seconds from the beginning of one request to that of the next one, of all processes
    together."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of each request, for example an authorization."""
    secret_params: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secret parameters of each request: no address in an error, a log or the storage has them."""
    timeout: float = 60.0
    """Seconds for one request and its whole answer."""
    max_bytes: int = 20 * 1024 * 1024
    """Bytes of the largest answer."""
    throttled_pause: float = 60.0
    """Seconds of the pause where the server refuses requests without saying until when."""


class SourceClient:
    """Sends requests to one server. Open it with `SourceClient.connect`."""

    def __init__(
        self,
        server: SourceServer,
        http: httpx.AsyncClient,
        throttle: RequestThrottle,
        cache: SourceResponseCache,
    ) -> None:
        self.server = server
        self.throttle = throttle
        self._http = http
        self._cache = cache

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        server: SourceServer,
        settings: Settings,
        ledger: Ledger | None = None,
        *,
        max_wait: float | None = None,
        lane: str = "",
    ) -> AsyncIterator[SourceClient]:
        """Open a client. With a ledger, the whole fleet takes turns; without it, this client alone.

        A request whose turn is more than `max_wait` seconds away raises SourceBusy. Jobs leave
        `max_wait` out: then a request waits for two turns at most, and not at all if others are
        waiting already. `lane` is the job's; requests of the hot lane come before others."""
        await load("switchyard.services.common.files.safe_http")
        from switchyard.services.common.files.safe_http import uncompressed_client

        interval = server.interval
        throttle: RequestThrottle
        turn_timeout = min(2 * interval + 2, MAX_TURN_WAIT) if max_wait is None else max_wait
        if ledger is not None:
            throttle = FleetThrottle(
                ledger,
                server.name,
                label=server.label,
                interval=interval,
                max_wait=turn_timeout,
                waits_for_place=max_wait is not None,
                lane=lane,
            )
        else:
            throttle = LocalThrottle(label=server.label, interval=interval, max_wait=turn_timeout)
        headers = {"User-Agent": settings.user_agent}
        cache = SourceResponseCache(Storage(settings.files_url), server.name)
        async with uncompressed_client(
            timeout=server.timeout, headers={**headers, **server.headers}
        ) as http:
            yield cls(server, http, throttle, cache)

    def reserve(self, requests: int) -> AbstractAsyncContextManager[None]:
        """Reserve turns for up to `requests` requests that belong together, without requests of
        other callers in between: `async with client.reserve(3):`. Raises SourceBusy."""
        return self.throttle.reserve(takes=requests * (self.server.timeout + self.server.interval))

    async def get(
        self,
        path: str = "",
        params: Mapping[str, str] | None = None,
        *,
        accept: str = "application/json",
        conditional: bool = False,
    ) -> SourceResponse:
        """Fetch what is at a path below the server's address, or at a whole address of the server.

        Raises what `ask` and `SourceResponse.require_success` raise.
        """
        answer = await self.ask(path, params, accept=accept, conditional=conditional)
        return answer.require_success()

    async def ask(
        self,
        path: str = "",
        params: Mapping[str, str] | None = None,
        *,
        accept: str = "application/json",
        conditional: bool = False,
    ) -> SourceResponse:
        """Do what `get` does, but return an answer of any status.

        Raises SourceBusy, SourceUnavailable, InvalidSourceResponse, LedgerUnavailable; ValueError
        for an address of another server.
        """
        url = requested_url = self._url(path, params)
        stored = await self._cache.find(requested_url, accept) if conditional else None
        headers = {"Accept": accept, **conditional_headers(stored.headers if stored else {})}
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._fetch_in_turn(url, headers)
            target = answer.headers.get("location", "")
            if answer.status not in _REDIRECTS or not target:
                break
            url = self._without_secrets(_join_url(url, target))
            if _origin(url) != _origin(self.server.base_url):
                return answer
        if answer.status == 304:
            if stored is None:
                raise InvalidSourceResponse(
                    f"{self.server.label} answered 304 to a request without conditions"
                )
            return stored
        if conditional and answer.status == 200:
            await self._cache.keep(answer, requested_url, accept)
        return answer

    async def download(self, url: str, *, max_bytes: int, timeout: float) -> bytes:
        """Download a file that the server names, in turn, from the open internet or from the
        server's own host. Raises FetchRefused, FetchFailed, SourceBusy."""
        from switchyard.services.common.files.safe_http import FetchFailed, SsrfGuard, fetching

        guard = SsrfGuard(trusted=frozenset({_host_and_port(self.server.base_url)}))
        async with self.throttle.turn(takes=timeout) as turn:
            try:
                async with fetching(
                    url, max_bytes=max_bytes, timeout=timeout, guard=guard
                ) as fetched:
                    return b"".join([part async for part in fetched.parts])
            except FetchFailed as error:
                if error.after is None:
                    raise
                wait = await turn.pause(error.after)
                message = f"{self.server.label}'s files: {error}: pause for {wait:.0f} s"
                raise SourceBusy(message, wait=wait) from error

    async def _fetch_in_turn(self, url: str, headers: Mapping[str, str]) -> SourceResponse:
        server = self.server
        async with self.throttle.turn(takes=server.timeout) as turn:
            answer = await self._fetch(url, headers)
            now = time.time()
            wait = demanded_pause(
                answer.status,
                answer.headers,
                answer.body,
                otherwise=server.throttled_pause,
                now=now,
            )
            if wait is not None:
                wait = await turn.pause(wait)
                message = f"{server.label} answers {answer.status}: pause for {wait:.0f} s"
                raise SourceBusy(message, wait=wait)
            quota_pause = pause_when_used_up(answer.headers, now=now)
            if quota_pause is not None:
                await turn.pause(quota_pause)
        return answer

    async def _fetch(self, url: str, headers: Mapping[str, str]) -> SourceResponse:
        import httpx

        server = self.server
        timeout = asyncio.timeout(server.timeout)
        try:
            extensions = {}
            if server.secret_params:  # beside the URL, which httpx logs
                secret_url = httpx.URL(url).copy_merge_params(dict(server.secret_params))
                extensions["target"] = secret_url.raw_path
            async with (
                timeout,
                self._http.stream(
                    "GET", url, headers=dict(headers), extensions=extensions
                ) as response,
            ):
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > server.max_bytes:
                        raise InvalidSourceResponse(
                            f"{server.label}'s answer exceeds {server.max_bytes:,} bytes"
                        )
                response_headers = {name.lower(): value for name, value in response.headers.items()}
                return SourceResponse(
                    server.label, url, response.status_code, response_headers, bytes(body)
                )
        except httpx.HTTPError as error:
            raise SourceUnavailable(_describe(server.label, error)) from error
        except TimeoutError as error:
            if timeout.expired():
                raise SourceUnavailable(
                    f"{server.label} did not answer within {server.timeout:g} s"
                ) from error
            raise

    def _url(self, path: str, params: Mapping[str, str] | None) -> str:
        import httpx

        base = self.server.base_url
        url = path if "://" in path else base + path
        if _origin(url) != _origin(base):
            raise ValueError(f"{url[:200]!r} is no address of {self.server.label}")
        return str(httpx.URL(url, params=dict(params))) if params else url

    def _without_secrets(self, url: str) -> str:
        """Remove secret parameters from the address of a redirect, which may repeat what was
        sent."""
        import httpx

        if not url or not self.server.secret_params:
            return url
        cleaned = httpx.URL(url)
        for name in self.server.secret_params:
            cleaned = cleaned.copy_remove_param(name)
        return str(cleaned)


def _join_url(url: str, target: str) -> str:
    import httpx

    try:
        return str(httpx.URL(url).join(target))
    except (httpx.InvalidURL, ValueError):
        return ""


def _origin(url: str) -> tuple[str, str, int]:
    return (urlsplit(url).scheme, *_host_and_port(url))


def _host_and_port(url: str) -> tuple[str, int]:
    """Return host and port of an address."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return "", 0


def _describe(label: str, error: httpx.HTTPError) -> str:
    detail = f": {error}" if str(error) else ""
    return f"{label} can't be reached ({type(error).__name__}{detail})"[:500]
