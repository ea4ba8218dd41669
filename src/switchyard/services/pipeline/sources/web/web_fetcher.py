"""Fetch other people's web pages: robots.txt first, one request at a time for each host, and
nothing from our own network, whatever a name or a redirect says
(services/common/files/safe_http.py)."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchyard.services.common.files.charsets import charset_of, decode
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.safe_http import host_and_port
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.engine.jobs.context import JobContext, ProcessCrashed
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceBusy,
    SourceNotFound,
    SourceRefused,
    SourceUnavailable,
)
from switchyard.services.pipeline.sources.throttle import (
    FleetThrottle,
    LocalThrottle,
    RequestThrottle,
)
from switchyard.services.pipeline.sources.web.robots import MAX_BYTES, RobotsVerdict, judge
from switchyard.services.pipeline.sources.web.web_addresses import origin_of, page_address

if TYPE_CHECKING:
    from switchyard.services.common.files.safe_http import FetchedResponse, SsrfGuard

MAX_HOPS = 5
"""Most redirects on the way to a page."""
ROBOTS_TTL = 3600.0
"""Seconds for which a robots.txt is kept."""
MAX_PAGE_BYTES = 10 * 1024 * 1024
"""Bytes of the largest page; a PDF or an image may be as large as any document."""
ROBOTS_TIMEOUT = 30.0
JUDGE_TIMEOUT = 10.0
JUDGE_MEMORY_MB = 1024
"""Address space for reading a robots.txt."""
THROTTLED_PAUSE = 60.0
"""Seconds of a pause when a host refuses a request for now without saying until when."""
TURN_TIMEOUT = 5.0
"""Seconds that a job waits for its turn before it snoozes."""
PAGE_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """The page at an address."""

    url: str
    """The address where all redirects end, in the form of `page_address`."""
    status: int
    """304 where the page has not changed."""
    headers: Mapping[str, str]
    body: bytes


class WebFetcher:
    """Fetches web pages for one job."""

    def __init__(self, ctx: JobContext) -> None:
        self._ctx = ctx
        self._storage = Storage(ctx.settings.files_url)

    async def visit(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        may_follow: Callable[[str], Awaitable[None]] | None = None,
    ) -> FetchedPage:
        """Fetch the page at an address, and follow redirects. `headers` are conditions, such as
        If-None-Match; `may_follow` is called before each redirect, and raises SourceRefused for one
        that must not be followed.

        Raises SourceBusy (no turn now), SourceRefused (robots.txt, our own network, a status),
        SourceNotFound, SourceUnavailable, InvalidSourceResponse, LedgerUnavailable.
        """
        from switchyard.services.common.files.safe_http import FetchMoved

        for _ in range(MAX_HOPS + 1):
            verdict = await self._verdict(url)
            if not verdict.allowed:
                raise SourceRefused(f"robots.txt of {origin_of(url)} forbids {url[:300]}")
            try:
                return await self._get(url, verdict.delay, headers or {})
            except FetchMoved as moved:
                try:
                    url = page_address(moved.target)
                except ValueError as error:
                    raise SourceRefused(
                        f"{url[:300]} redirects to an invalid address: {error}"
                    ) from error
                if may_follow is not None:
                    await may_follow(url)
        raise SourceRefused(f"more than {MAX_HOPS} redirects")

    async def _get(self, url: str, delay: float, headers: Mapping[str, str]) -> FetchedPage:
        limit = self._ctx.settings.max_document_bytes
        async with (
            self._turn(url, delay, PAGE_TIMEOUT),
            self._fetch(url, limit, PAGE_TIMEOUT, headers) as fetched,
        ):
            body = await _read_body(fetched, limit)
            return FetchedPage(url, fetched.status, fetched.headers, body)

    @asynccontextmanager
    async def _turn(self, url: str, delay: float, timeout: float) -> AsyncIterator[None]:
        """Wait for a turn at the server, and pause where its answer asks for it. Raises
        SourceBusy."""
        async with self._throttle(url, delay).turn(takes=timeout) as turn:
            try:
                yield
            except SourceUnavailable as error:
                if error.after is None:  # the server asks for no pause
                    raise
                wait = await turn.pause(error.after)
                raise SourceBusy(f"{error}: pause for {wait:.0f} s", wait=wait) from error

    def _fetch(
        self, url: str, limit: int, timeout: float, headers: Mapping[str, str]
    ) -> _TranslatedFetch:
        request_headers = {"User-Agent": self._ctx.settings.user_agent, "Accept": "*/*", **headers}
        return _TranslatedFetch(url, limit, timeout, request_headers, self._guard())

    def _guard(self) -> SsrfGuard:
        from switchyard.services.common.files.safe_http import SsrfGuard

        trusted_hosts = self._ctx.settings.web_hosts
        return SsrfGuard(
            trusted=frozenset(host_and_port(f"http://{each}") for each in trusted_hosts)
        )

    def _throttle(self, url: str, delay: float) -> RequestThrottle:
        host, _ = host_and_port(url)
        interval = max(self._ctx.settings.web_interval, delay)
        max_wait = max(TURN_TIMEOUT, interval + 1)
        if self._ctx.ledger is None:
            return LocalThrottle(label=host, interval=interval, max_wait=max_wait)
        return FleetThrottle(
            self._ctx.ledger,
            f"web.{content_hash(host.encode())[:32]}",
            label=host,
            interval=interval,
            max_wait=max_wait,
            waits_for_place=False,
            lane=self._ctx.lane,
        )

    # --- robots.txt -------------------------------------------------------------------------

    async def _verdict(self, url: str) -> RobotsVerdict:
        robots = await self._robots(origin_of(url))
        if not robots.strip():
            return RobotsVerdict(allowed=True)
        try:
            verdict = await self._ctx.in_process(
                judge, robots, url, timeout=JUDGE_TIMEOUT, memory_limit_mb=JUDGE_MEMORY_MB
            )
        except (TimeoutError, MemoryError, ProcessCrashed) as error:
            raise SourceRefused(
                f"robots.txt of {origin_of(url)} can't be read: {type(error).__name__}"
            ) from error
        return verdict if isinstance(verdict, RobotsVerdict) else RobotsVerdict(allowed=False)

    async def _robots(self, origin: str) -> str:
        """Return the site's robots.txt; empty where it has none. Raises SourceUnavailable for a
        site that does not answer, as we do not know what it allows."""
        key = f"sources/robots/{content_hash(origin.encode())}"
        stored = await self._stored_robots(key)
        if stored is not None:
            return stored
        url = f"{origin}/robots.txt"
        async with self._turn(url, 0, ROBOTS_TIMEOUT):
            text = await self._fetch_robots(url)
        raw = json.dumps({"at": time.time(), "robots": text}).encode()
        await self._storage.put_async(key, raw)
        return text

    async def _fetch_robots(self, url: str) -> str:
        from switchyard.services.common.files.safe_http import FetchMoved

        for _ in range(MAX_HOPS + 1):
            try:
                # A longer file is not refused but read up to the limit, as the RFC says.
                async with self._fetch(url, 10**12, ROBOTS_TIMEOUT, {}) as fetched:
                    body = bytearray()
                    async for part in fetched.parts:
                        body += part
                        if len(body) >= MAX_BYTES:
                            break
                    return decode(bytes(body[:MAX_BYTES]), charset_of(fetched.content_type))
            except FetchMoved as moved:
                url = moved.target
            except SourceNotFound:
                return ""
            except SourceRefused as error:
                if isinstance(error, _StatusRefused):
                    return ""  # a site that answers 4xx has no rules
                raise
        return ""  # the RFC: after five redirects, the site counts as one without robots.txt

    async def _stored_robots(self, key: str) -> str | None:
        try:
            stored: Any = json.loads(await self._storage.get_async(key))
            age = time.time() - float(stored["at"])
            return str(stored["robots"]) if 0 <= age < ROBOTS_TTL else None
        except (NotStored, ValueError, KeyError, TypeError):
            return None


class _StatusRefused(SourceRefused):
    """The server's answer is a status of 400 to 499."""


class _TranslatedFetch:
    """The context `fetching`, with its errors translated to those of sources."""

    def __init__(
        self, url: str, limit: int, timeout: float, headers: Mapping[str, str], guard: SsrfGuard
    ) -> None:
        from switchyard.services.common.files.safe_http import fetching

        self._url = url
        self._open = fetching(
            url, max_bytes=limit, timeout=timeout, guard=guard, headers=headers, max_redirects=0
        )

    async def __aenter__(self) -> FetchedResponse:
        try:
            return await self._open.__aenter__()
        except Exception as error:
            raise self._translate(error) from error

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> bool | None:
        try:
            return await self._open.__aexit__(kind, error, traceback)
        except Exception as raised:
            if (translated := self._translate(raised)) is raised:
                raise
            raise translated from raised

    def _translate(self, error: Exception) -> Exception:
        from switchyard.services.common.files.safe_http import (
            FetchFailed,
            FetchMoved,
            FetchRefused,
            NotPublic,
        )

        host, port = host_and_port(self._url)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        match error:
            case FetchMoved():
                return error
            case FetchFailed(status=429, after=after):
                return _unavailable_for(host, error, THROTTLED_PAUSE if after is None else after)
            case FetchFailed(status=503, after=after) if after is not None:
                return _unavailable_for(host, error, after)
            case FetchFailed():
                return SourceUnavailable(f"{host}: {error}")
            case NotPublic():
                # The message names the host, not its robots.txt, which is fetched first.
                return SourceRefused(
                    f"{error}; if the host is yours and may be fetched from, "
                    f"name it in JOBS_WEB_HOSTS of the ingest workers, as {address}"
                )
            case FetchRefused(status=404 | 410):
                return SourceNotFound(f"there is no page {self._url[:300]} ({error})")
            case FetchRefused(status=int()):
                return _StatusRefused(f"{self._url[:300]}: {error}")
            case FetchRefused():
                return SourceRefused(f"{self._url[:300]}: {error}")
        return error


def _unavailable_for(host: str, error: Exception, seconds: float) -> SourceUnavailable:
    return SourceUnavailable(f"{host}: {error}", after=seconds)


async def _read_body(fetched: FetchedResponse, limit: int) -> bytes:
    """Read the whole body. Raises InvalidSourceResponse for one that is too large for its kind."""
    body = bytearray()
    is_file = False
    async for part in fetched.parts:
        body += part
        if not is_file and len(body) > MAX_PAGE_BYTES:
            is_file = b"%PDF-" in body[:1024] or fetched.content_type.startswith("image/")
            if not is_file:
                raise InvalidSourceResponse(f"the page exceeds {MAX_PAGE_BYTES:,} bytes")
    return bytes(body)
