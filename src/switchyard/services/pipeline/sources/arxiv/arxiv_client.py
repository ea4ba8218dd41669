"""The arXiv API: entries by id, searches, and all entries of a range of dates.

    async with ArxivClient.connect(settings, ledger) as arxiv:
        [entry] = await arxiv.entries(["1605.08386"])
        async for page in arxiv.pages("cat:cs.DB", from_date=a, to_date=b):
            ...  # page.entries; keep page.cursor to go on from there

Requests are sent by services/pipeline/sources/source_client.py, as to every server. Only a page
that is empty without reason is requested again here; otherwise the job is retried.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.sources.arxiv.arxiv_feed import ArxivId, Entry, Feed, parse_feed
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger

SortBy = Literal["relevance", "submittedDate", "lastUpdatedDate"]
Order = Literal["ascending", "descending"]

MAX_PAGE = 2000
"""Entries in one answer at most: arXiv's limit."""
MAX_SEARCH_RESULTS = 10_000
"""Results of a query that are read at most. The manual says 30,000, but arXiv's search does not
answer reliably beyond this."""
PAGE_SIZE = 100
EMPTY_TRIES = 3
"""Most requests for a page that is empty although there are more results."""
THROTTLED_PAUSE = 30.0
"""Seconds of pause after a 429 without Retry-After."""
ATOM = "application/atom+xml"
FIRST_DAY = datetime(1991, 8, 1, tzinfo=UTC)
"""The day of the oldest paper on arXiv."""
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ListingCursor:
    """Where the next page of a listing begins: an offset into a window of dates. `str` makes text
    of it that `parse` reads."""

    since: datetime
    until: datetime
    """Last minute of the window."""
    start: int = 0

    def __str__(self) -> str:
        return f"{_stamp(self.since)}-{_stamp(self.until)}+{self.start}"

    @classmethod
    def parse(cls, text: str) -> ListingCursor:
        """Read a cursor. Raises ValueError."""
        match = re.fullmatch(r"(\d{12})-(\d{12})\+(\d{1,9})", text)
        if match is None:
            raise ValueError(f"{text!r} is no cursor of a listing")
        since, until = (
            datetime.strptime(each, "%Y%m%d%H%M").replace(tzinfo=UTC) for each in match.group(1, 2)
        )
        return cls(since, until, int(match[3]))


@dataclass(frozen=True, slots=True)
class FeedPage:
    """A piece of a listing, oldest submission first."""

    entries: tuple[Entry, ...]
    """The entries of the page, without damaged records of arXiv."""
    cursor: ListingCursor | None
    """Where the next page begins; None after the last."""
    total: int
    """Entries of this page's window of dates."""
    window: ListingCursor
    """Where this page began."""


class ArxivClient:
    """Sends requests to arXiv. Open it with `ArxivClient.connect`."""

    def __init__(self, client: SourceClient) -> None:
        self.client = client

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        settings: Settings,
        ledger: Ledger | None = None,
        *,
        max_wait: float | None = None,
        lane: str = "",
    ) -> AsyncIterator[ArxivClient]:
        """Open a client for the address and the interval of the settings. Parameters are as in
        `SourceClient.connect`."""
        server = SourceServer(
            "arxiv",
            label="arXiv",
            base_url=settings.arxiv_base_url,
            interval=settings.arxiv_interval,
            throttled_pause=THROTTLED_PAUSE,
        )
        opening = SourceClient.connect(server, settings, ledger, max_wait=max_wait, lane=lane)
        async with opening as client:
            yield cls(client)

    async def entries(self, ids: Iterable[ArxivId | str]) -> list[Entry]:
        """Return the entries of these ids that arXiv has, in its order.

        Raises ValueError for a malformed id, and what `search` raises.
        """
        arxiv_ids = [ArxivId.parse(str(each)) for each in ids]
        if not arxiv_ids:
            return []
        if len(arxiv_ids) > MAX_PAGE:
            raise ValueError(f"at most {MAX_PAGE:,} ids at once")
        feed = await self._get(
            {
                "id_list": ",".join(map(str, arxiv_ids)),
                "start": "0",
                "max_results": str(len(arxiv_ids)),
            }
        )
        if feed.total and not feed.entries:
            raise InvalidSourceResponse("arXiv counts an entry with these ids, but returned none")
        return list(feed.entries)

    async def search(
        self,
        query: str,
        start: int = 0,
        max_results: int = PAGE_SIZE,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        date: Literal["submittedDate", "lastUpdatedDate"] = "submittedDate",
        sort_by: SortBy = "submittedDate",
        order: Order = "descending",
    ) -> Feed:
        """Return one page of a query in arXiv's syntax (`cat:cs.DB AND ti:index`). With `since` or
        `until`, only papers that were submitted, or updated, in between, to the minute.

        Raises ValueError for numbers that arXiv does not take, SourceBusy, SourceUnavailable and
        InvalidSourceResponse (try again later), SourceRefused (do not).
        """
        if not 1 <= max_results <= MAX_PAGE or start < 0:
            raise ValueError(f"start is 0 or more, max_results 1 to {MAX_PAGE:,}")
        if since is not None or until is not None:
            last_minute = until or datetime.now(UTC) + timedelta(days=1)
            query = _in_dates(query, date, since or FIRST_DAY, last_minute)
        parameters = {
            "search_query": query,
            "start": str(start),
            "max_results": str(max_results),
            "sortBy": sort_by,
            "sortOrder": order,
        }
        for _ in range(EMPTY_TRIES):
            feed = await self._get(parameters)
            if feed.count or start >= feed.total:
                return feed
        raise InvalidSourceResponse(
            f"arXiv's page from {start:,} of {feed.total:,} came empty {EMPTY_TRIES} times"
        )

    async def pages(
        self,
        query: str = "",
        *,
        from_date: datetime | None = None,
        to_date: datetime | None = None,
        cursor: ListingCursor | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[FeedPage]:
        """Yield all that was submitted from `from_date` to `to_date`, oldest first, to the minute.

        With a page's `cursor`, goes on behind that page; query and `to_date` must be the same (so
        name a `to_date`, which is the present by default). What is submitted meanwhile does not
        shift the pages. A range with more than MAX_SEARCH_RESULTS entries is listed in windows that
        have fewer. Raises what `search` raises; after any of these the listing can be taken up
        again from the last cursor.
        """
        end = _minute(to_date or datetime.now(UTC))
        position: ListingCursor | None = cursor
        if position is None:
            first_minute = _minute(from_date or FIRST_DAY)
            position = ListingCursor(first_minute, end) if first_minute <= end else None
        while position is not None:
            feed = await self.search(
                query,
                position.start,
                page_size,
                since=position.since,
                until=position.until,
                order="ascending",
            )
            if position.start == 0 and feed.total > MAX_SEARCH_RESULTS:
                position = ListingCursor(position.since, _middle(position))
                continue
            next_position = _next_cursor(position, feed, end)
            yield FeedPage(feed.entries, next_position, feed.total, position)
            position = next_position

    # --- one request ------------------------------------------------------------------------

    async def _get(self, parameters: Mapping[str, str]) -> Feed:
        response = await self.client.ask(params=parameters, accept=ATOM)
        is_xml = "xml" in response.headers.get("content-type", "")
        if is_xml and 400 <= response.status < 500:
            # Raises SourceRefused with arXiv's message.
            await asyncio.to_thread(parse_feed, response.body, response.charset)
        response.require_success()
        if not is_xml:
            content_type = response.headers.get("content-type", "no content type")[:100]
            raise InvalidSourceResponse(f"arXiv returned no XML but {content_type}")
        return await asyncio.to_thread(parse_feed, response.body, response.charset)


def payload_of(entry: Entry, **options: Any) -> dict[str, Any]:
    """Return the payload of the `ingest_arxiv` job for an entry. It contains the entry, so that
    arXiv is not asked again, unless it is too large for a message: a few papers have thousands of
    authors."""
    payload: dict[str, Any] = {"id": str(entry.arxiv_id), **options}
    if len(entry.model_dump_json()) <= MAX_ENTRY_BYTES:
        payload["entry"] = entry.model_dump(mode="json", exclude_none=True)
    return payload


MAX_ENTRY_BYTES = 32 * 1024
"""Longest entry, as JSON, that a message carries."""


def _in_dates(query: str, date: str, since: datetime, until: datetime) -> str:
    dates = f"{date}:[{_stamp(since)} TO {_stamp(until)}]"
    return f"({query}) AND {dates}" if query.strip() else dates


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%d%H%M")


def _minute(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def _middle(window: ListingCursor) -> datetime:
    """Return the last minute of the window's first half."""
    middle = _minute(window.since + (window.until - window.since) / 2)
    if middle >= window.until:
        raise InvalidSourceResponse(
            f"arXiv says that more than {MAX_SEARCH_RESULTS:,} papers were submitted in the minute "
            f"{_stamp(window.since)}"
        )
    return middle


def _next_cursor(position: ListingCursor, feed: Feed, end: datetime) -> ListingCursor | None:
    """Return the cursor of the next page."""
    start = position.start + feed.count
    if start < feed.total:
        return ListingCursor(position.since, position.until, start)
    since = position.until + _MINUTE
    if since > end:
        return None
    # Twice as long as the previous window, which was not too long.
    return ListingCursor(
        since, min(end, since + 2 * (position.until - position.since + _MINUTE) - _MINUTE)
    )
