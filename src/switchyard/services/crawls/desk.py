"""What people do with crawls: start, look, cancel."""

from __future__ import annotations

from uuid import uuid4

from switchyard.services.crawls.bounds import CrawlBounds
from switchyard.services.crawls.pages import found_pages
from switchyard.services.errors import Unknown
from switchyard.services.jobs.registry import Registry
from switchyard.services.ledger import Ledger
from switchyard.services.records import Page
from switchyard.services.records.crawls import CrawlProgress, CrawlRecord, ListedPage
from switchyard.services.settings import Settings


class UnknownCrawl(Unknown):
    """There is no crawl of that id."""


class Crawls:
    """The crawls of one system. All raise LedgerError."""

    def __init__(self, settings: Settings, ledger: Ledger, registry: Registry) -> None:
        self._settings = settings
        self._ledger = ledger
        self._registry = registry

    async def start(self, bounds: CrawlBounds, *, created_by: str) -> CrawlRecord:
        """Record a crawl; the scheduler publishes its first pages."""
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
        )
        pages = list(found_pages(self._registry, crawl.id, bounds.start, 0, None))
        return await self._ledger.start_crawl(crawl, pages, interval=self._settings.web_interval)

    async def show(self, crawl_id: str) -> CrawlProgress:
        """Raises UnknownCrawl."""
        found = await self._ledger.crawl_progress(crawl_id)
        if found is None:
            raise UnknownCrawl(
                f"there is no crawl {crawl_id!r}: `jobctl crawl list` shows those there are"
            )
        return found

    async def all(self, *, limit: int = 50, cursor: str | None = None) -> Page[CrawlProgress]:
        """The newest first. Raises ValueError for a cursor that is none."""
        return await self._ledger.list_crawls(limit=limit, cursor=cursor)

    async def pages(
        self, crawl_id: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[ListedPage]:
        """Its pages, the last due first. Raises UnknownCrawl, ValueError as `all` does."""
        await self.show(crawl_id)
        return await self._ledger.crawl_pages(crawl_id, limit=limit, cursor=cursor)

    async def cancel(self, crawl_id: str) -> CrawlProgress:
        """Visit no more of its pages; documents that it has found stay. Raises UnknownCrawl."""
        if await self._ledger.cancel_crawl(crawl_id, self._ledger.clock.time()) is None:
            raise UnknownCrawl(
                f"there is no crawl {crawl_id!r}: `jobctl crawl list` shows those there are"
            )
        return await self.show(crawl_id)
