"""The papers of arXiv as a source: those that were submitted between two dates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, date, datetime, time, timedelta
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from switchyard.services.engine.backfill.sources import (
    Cursor,
    Item,
    Source,
    Unusable,
)
from switchyard.services.pipeline.sources.arxiv.arxiv_client import (
    FIRST_DAY,
    ArxivClient,
    payload_of,
)
from switchyard.services.pipeline.sources.arxiv.arxiv_client import (
    ListingCursor as ListingCursor,
)
from switchyard.services.pipeline.sources.paged_backfill import backfill_errors

PAGE_SIZE = 200


class ArxivOptions(BaseModel):
    """Options of the source `arxiv`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    query: str = Field(default="", max_length=2000)
    """A query in arXiv's syntax: `cat:cs.DB AND ti:index`; all papers where empty."""
    from_: date | None = Field(default=None, alias="from")
    """The first day of submission; arXiv's first day where unset."""
    to: date | None = None
    """The last day; the day on which the backfill starts where unset."""
    full_text: bool = False
    """Take in the PDF, instead of title and abstract."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.from_ is not None and self.to is not None and self.from_ > self.to:
            raise ValueError("from must not be later than to")
        return self


class ArxivSource(Source):
    """Papers by their first submission, oldest first. The cursor is a page and a place in it."""

    name: ClassVar[str] = "arxiv"
    Options = ArxivOptions
    options: ArxivOptions
    job_type: ClassVar[str | None] = "ingest_arxiv"
    vouches: ClassVar[bool] = True

    @property
    def title(self) -> str:
        query = self.options.query or "everything"
        return f"arxiv {query}, {self.options.from_ or 'the beginning'} to {self._last_day}"

    @property
    def _last_day(self) -> date:
        return self.options.to or datetime.fromtimestamp(self.context.started_at, UTC).date()

    @property
    def _dates(self) -> tuple[datetime, datetime]:
        """Return the first and the last minute of submission."""
        first_day = self.options.from_
        begin = FIRST_DAY if first_day is None else datetime.combine(first_day, time(), UTC)
        end = datetime.combine(self._last_day, time(), UTC) + timedelta(days=1, minutes=-1)
        return begin, end

    async def total(self) -> int | None:
        begin, end = self._dates
        with backfill_errors():
            async with self._client() as client:
                feed = await client.search(self.options.query, 0, 1, since=begin, until=end)
        return feed.total

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        begin, end = self._dates
        listing_cursor = ListingCursor.parse(cursor["page"]) if cursor else None
        entries_done = cursor["done"] if cursor else 0
        options = {"full_text": True} if self.options.full_text else {}
        with backfill_errors():
            async with self._client() as client:
                pages = client.pages(
                    self.options.query,
                    from_date=begin,
                    to_date=end,
                    cursor=listing_cursor,
                    page_size=PAGE_SIZE,
                )
                async for page in pages:
                    for number, entry in enumerate(page.entries, start=1):
                        if number <= entries_done:
                            continue
                        values = payload_of(entry, **options)
                        yield Item(entry.id, values, {"page": str(page.window), "done": number})
                    entries_done = 0

    def _client(self) -> AbstractAsyncContextManager[ArxivClient]:
        context = self.context
        return ArxivClient.connect(context.settings, context.ledger, max_wait=context.max_wait)
