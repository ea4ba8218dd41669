"""What goes in and out of `/crawl`, as JSON."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from switchyard.api.models.base import ApiModel, Timestamp
from switchyard.api.models.request_model import RequestModel
from switchyard.broker.message import Tags
from switchyard.services.pipeline.records.crawls import (
    MAX_CRAWL_SECONDS,
    MAX_DEPTH,
    MAX_HOSTS,
    MAX_STARTS,
    CrawlState,
)


class NewCrawl(RequestModel):
    """Start and bounds of a crawl."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"start": ["https://example.org/"], "max_pages": 200, "max_depth": 3}
        },
    )

    start: list[str] = Field(
        min_length=1, max_length=MAX_STARTS, description="Addresses of the first pages."
    )
    hosts: list[str] = Field(
        default_factory=list,
        max_length=MAX_HOSTS,
        description="Additional hosts to visit: `docs.example.org`, `*.example.org`, "
        "`example.org:8443`. Default: only those of the start addresses.",
    )
    max_pages: int = Field(default=100, ge=1)
    max_depth: int = Field(
        default=3,
        ge=0,
        le=MAX_DEPTH,
        description="Maximum number of links from a start address to a page.",
    )
    within: float = Field(
        default=86400,
        ge=1,
        le=MAX_CRAWL_SECONDS,
        description="Seconds after which the crawl stops.",
    )
    tags: Tags = Field(
        default_factory=dict,
        description="Tags of the jobs of all pages and of their follow-up jobs; at most 16.",
        examples=[{"team": "search"}],
    )


class CrawlView(ApiModel):
    """A crawl, with its progress."""

    id: str
    state: CrawlState = Field(
        description="`running`; `done`: all its pages have ended; `cancelled`."
    )
    start: list[str]
    hosts: list[str]
    max_pages: int
    max_depth: int
    deadline: Timestamp
    created_by: str
    created_at: Timestamp
    claimed: int = Field(description="Number of pages found so far, at most `max_pages`.")
    pages: dict[str, int] = Field(
        description="Its pages by the state of their jobs.",
        examples=[{"scheduled": 12, "succeeded": 30}],
    )


class CrawlList(ApiModel):
    """Crawls, the newest first."""

    crawls: list[CrawlView]
    next_cursor: str | None = None


class CrawlPageView(ApiModel):
    """A page of a crawl."""

    url: str
    depth: int
    job_id: str
    found_by: str | None = Field(description="Id of the job of the page that links to it.")
    due_at: Timestamp
    state: str = Field(description="State of its job.")
    outcome: str | None = Field(description="Result: a document, or why there is none.")


class CrawlDetails(CrawlView):
    """A crawl with the last of its pages, as `jobctl crawl show` prints it."""

    last_pages: list[CrawlPageView] = Field(description="The last due first.")


class CrawlPages(ApiModel):
    """Pages of a crawl, the last due first."""

    pages: list[CrawlPageView]
    next_cursor: str | None = None
