"""Start, list, show and cancel crawls, for the API and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from switchyard.services.common.errors import ConflictError, NotFoundError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import plain_key
from switchyard.services.engine.records.results import Page
from switchyard.services.pipeline.crawls.crawl_bounds import CrawlBounds
from switchyard.services.pipeline.crawls.crawl_pages import make_pages
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.crawls import CrawlProgress, CrawlRecord, ListedPage

_ROUNDING_ERROR = 0.01
"""Seconds by which two equal durations may differ, as sums of times are rounded."""


class UnknownCrawl(NotFoundError):
    """There is no crawl of that id."""

    def __init__(self, crawl_id: str) -> None:
        super().__init__(
            f"there is no crawl {crawl_id!r}: `jobctl crawl list` shows those there are"
        )


class CrawlKeyTaken(ConflictError):
    """The idempotency key was used before, for a crawl with other bounds."""

    def __init__(self, key: str, crawl_id: str) -> None:
        super().__init__(
            f"idempotency key {plain_key(key)!r} belongs to crawl {crawl_id}, which has other "
            "bounds: choose another key"
        )


class Crawls:
    """The crawls of one system. All methods raise LedgerError."""

    def __init__(self, settings: Settings, ledger: Ledger, registry: Registry) -> None:
        self._settings = settings
        self._ledger = ledger
        self._crawls = PipelineLedger(ledger).crawls
        self._registry = registry

    async def start(
        self,
        bounds: CrawlBounds,
        *,
        created_by: str,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> CrawlRecord:
        """Record a crawl; the scheduler publishes its first pages. The jobs of all pages, and all
        jobs that follow from them, have the tags. With the same idempotency key and bounds, return
        the existing crawl. Raises CrawlKeyTaken."""
        now = self._ledger.clock.time()
        crawl = CrawlRecord(
            id=str(uuid4()),
            start=bounds.start,
            hosts=bounds.hosts,
            max_pages=bounds.max_pages,
            max_depth=bounds.max_depth,
            deadline=now + bounds.within,
            created_by=created_by,
            created_at=now,
            idempotency_key=key,
        )
        ids = await self._ledger.system.job_ids()
        pages = list(
            make_pages(self._registry, ids, crawl.id, bounds.start, 0, None, tags=tags or {})
        )
        interval = self._settings.web_interval
        recorded = await self._crawls.start_crawl(crawl, pages, interval=interval)
        return _require_same_bounds(recorded, bounds)

    async def find_by_key(self, bounds: CrawlBounds, key: str) -> CrawlRecord | None:
        """Return the crawl that was started under the key. Raises CrawlKeyTaken for one that has
        other bounds."""
        known = await self._crawls.crawl_of_key(key)
        return None if known is None else _require_same_bounds(known, bounds)

    async def show(self, crawl_id: str) -> CrawlProgress:
        """Return a crawl and its progress; the beginning of its id is enough. Raises UnknownCrawl,
        AmbiguousId."""
        progress = await self._crawls.crawl_progress(await self._crawls.full_id(crawl_id))
        if progress is None:
            raise UnknownCrawl(crawl_id)
        return progress

    async def all(self, *, limit: int = 50, cursor: str | None = None) -> Page[CrawlProgress]:
        """List the crawls, the newest first. Raises ValueError for an invalid cursor."""
        return await self._crawls.list_crawls(limit=limit, cursor=cursor)

    async def pages(
        self, crawl_id: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[ListedPage]:
        """List a crawl's pages, those due last come first. Raises what `show` raises, and
        ValueError as `all` does."""
        crawl = (await self.show(crawl_id)).crawl
        return await self._crawls.crawl_pages(crawl.id, limit=limit, cursor=cursor)

    async def cancel(self, crawl_id: str) -> CrawlProgress:
        """Cancel a crawl: it visits no more pages, and its documents stay. Raises what `show`
        raises."""
        crawl_id = await self._crawls.full_id(crawl_id)
        if await self._crawls.cancel_crawl(crawl_id, self._ledger.clock.time()) is None:
            raise UnknownCrawl(crawl_id)
        return await self.show(crawl_id)


def _require_same_bounds(known: CrawlRecord, bounds: CrawlBounds) -> CrawlRecord:
    requested = (bounds.start, bounds.hosts, bounds.max_pages, bounds.max_depth)
    has_same_bounds = (known.start, known.hosts, known.max_pages, known.max_depth) == requested
    duration = known.deadline - known.created_at
    if not has_same_bounds or abs(duration - bounds.within) > _ROUNDING_ERROR:
        raise CrawlKeyTaken(known.idempotency_key or "", known.id)
    return known
