"""Crawls and their pages, as the ledger keeps them. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from switchyard.services.engine.records.requests import NewJob

MAX_STARTS = 100
MAX_HOSTS = 100
MAX_DEPTH = 100
MAX_CRAWL_SECONDS = 30 * 24 * 3600.0
"""Longest duration of a crawl, in seconds."""


class CrawlState(StrEnum):
    """The state of a crawl."""

    RUNNING = "running"
    """Some of its pages wait or are being visited."""
    DONE = "done"
    """All its pages have ended."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class CrawlRecord:
    """A crawl: where it begins, and how far it may go."""

    id: str
    start: tuple[str, ...]
    hosts: tuple[str, ...]
    """Hosts whose pages belong to it, as `services.pipeline.crawls.crawl_bounds` reads them."""
    max_pages: int
    max_depth: int
    """Links on the way from a start address to a page."""
    deadline: float
    """The time from which it visits no more pages."""
    created_by: str
    created_at: float
    claimed: int = 0
    """Number of pages that have a job."""
    cancelled_at: float | None = None
    idempotency_key: str | None = None

    def end_reason(self, now: float) -> str | None:
        """Return why the crawl visits no more pages; None while it does."""
        if self.cancelled_at is not None:
            return "the crawl was cancelled"
        return "the crawl's time is up" if now >= self.deadline else None


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page that a crawl may visit, and the job that would visit it."""

    url: str
    host: str
    depth: int
    job: NewJob
    found_by: str | None = None
    """The job of the page that has the link; None for a start address."""


@dataclass(frozen=True, slots=True)
class CrawlPage:
    """A page that belongs to one job of a crawl, so that it is visited once."""

    url: str
    depth: int
    job_id: str
    found_by: str | None
    due_at: float
    """The page is not visited before that time."""


@dataclass(frozen=True, slots=True)
class CrawlProgress:
    """A crawl, and the states of its pages."""

    crawl: CrawlRecord
    pages: Mapping[str, int]
    """Number of pages by the state of their jobs; states that no page is in are left out."""
    state: CrawlState


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page in a listing."""

    page: CrawlPage
    state: str
    """State of the page's job."""
    outcome: str | None
    """The result of the visit in words; None until there is one."""
