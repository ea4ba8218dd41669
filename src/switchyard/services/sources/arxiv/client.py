"""The arXiv API: entries by id, searches, and all entries of a range of dates.

    async with ArxivClient.connect(settings, ledger) as arxiv:
        [entry] = await arxiv.entries(["1605.08386"])
        async for page in arxiv.pages("cat:cs.DB", from_date=a, to_date=b):
            ...  # page.entries; keep page.cursor to go on from there

Every request waits for its turn in the whole fleet (services/sources/arxiv/pace.py). Nothing is
asked twice here but for a page that comes empty without reason: the job's retries do the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from switchyard.services.jobs.retry import parse_retry_after
from switchyard.services.settings import Settings
from switchyard.services.sources.arxiv.errors import (
    ArxivBusy,
    ArxivNonsense,
    ArxivRefused,
    ArxivUnavailable,
)
from switchyard.services.sources.arxiv.feed import (
    ArxivId,
    Entry,
    Feed,
    parse_feed,
)
from switchyard.services.sources.arxiv.pace import FleetPace, LocalPace, RequestPace

if TYPE_CHECKING:
    import httpx

    from switchyard.services.ledger import Ledger

SortBy = Literal["relevance", "submittedDate", "lastUpdatedDate"]
Order = Literal["ascending", "descending"]

MAX_PAGE = 2000
"""Entries in one answer; arXiv's limit."""
DEEPEST = 10_000
"""How far into a query's results pages are asked for. The manual says 30,000, but arXiv's search
does not answer reliably beyond this."""
PAGE_SIZE = 100
MAX_BYTES = 20 * 1024 * 1024
"""Longest answer that is read."""
REQUEST_TIMEOUT = 60.0
"""Seconds for one request, all of its answer."""
LONGEST_WAIT = 10.0
"""Seconds that a job waits for its turn, in one of the two places for that, before it snoozes."""
EMPTY_TRIES = 3
"""How often a page is asked for that comes empty although there is more."""
THROTTLED_PAUSE = 30.0
"""Seconds of pause after a 429 without Retry-After."""
FIRST_DAY = datetime(1991, 8, 1, tzinfo=UTC)
"""Nothing on arXiv is older."""
_MINUTE = timedelta(minutes=1)
_USER_AGENT = "switchyard (job system; one request at a time)"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next page of a listing begins: an offset into a window of dates. Text that
    `parse` reads again, so it can be kept anywhere."""

    since: datetime
    until: datetime
    """Last minute of the window."""
    start: int = 0

    def __str__(self) -> str:
        return f"{_stamp(self.since)}-{_stamp(self.until)}+{self.start}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises ValueError."""
        found = re.fullmatch(r"(\d{12})-(\d{12})\+(\d{1,9})", text)
        if found is None:
            raise ValueError(f"{text!r} is no cursor of a listing")
        since, until = (
            datetime.strptime(each, "%Y%m%d%H%M").replace(tzinfo=UTC) for each in found.group(1, 2)
        )
        return cls(since, until, int(found[3]))


@dataclass(frozen=True, slots=True)
class FeedPage:
    """A piece of a listing, oldest submission first."""

    entries: tuple[Entry, ...]
    """May be fewer than arXiv sent: damaged records are left out."""
    cursor: Cursor | None
    """Where the next page begins; None after the last."""
    total: int
    """Entries of this page's window of dates."""
    window: Cursor
    """Where this page began."""


class ArxivClient:
    """Asks arXiv. Open it with `ArxivClient.connect`."""

    def __init__(self, http: httpx.AsyncClient, base_url: str, pace: RequestPace) -> None:
        self._http = http
        self._base_url = base_url
        self.pace = pace

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, settings: Settings, ledger: Ledger | None = None, *, patience: float | None = None
    ) -> AsyncIterator[ArxivClient]:
        """A client for the address and the interval of the settings.

        `patience` is in seconds: a request whose turn is further off raises ArxivBusy. None is
        for jobs: they wait for two turns at most, and not at all where others wait already. With
        a ledger, turns are those of the whole fleet; without one, of this client alone.
        """
        import httpx

        interval = settings.arxiv_interval
        pace: RequestPace
        waits = min(2 * interval + 2, LONGEST_WAIT) if patience is None else patience
        if ledger is not None:
            pace = FleetPace(
                ledger, interval=interval, patience=waits, waits_for_place=patience is not None
            )
        else:
            pace = LocalPace(interval=interval, patience=waits)
        headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"}
        async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT, headers=headers) as http:
            yield cls(http, settings.arxiv_base_url, pace)

    async def entries(self, ids: Iterable[ArxivId | str]) -> list[Entry]:
        """The entries of these ids, in arXiv's order, as far as there are such.

        Raises ValueError for a malformed id, and what `search` raises.
        """
        wanted = [ArxivId.parse(str(each)) for each in ids]
        if not wanted:
            return []
        if len(wanted) > MAX_PAGE:
            raise ValueError(f"at most {MAX_PAGE:,} ids at once")
        feed = await self._get(
            {"id_list": ",".join(map(str, wanted)), "start": "0", "max_results": str(len(wanted))}
        )
        if feed.total and not feed.entries:
            raise ArxivNonsense("arXiv says that there is such an entry, and does not give it")
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
        """One page of a query in arXiv's language (`cat:cs.DB AND ti:index`). With `since` or
        `until`, only what was submitted, or updated, in between, to the minute.

        Raises ValueError for numbers that arXiv does not take, ArxivBusy, ArxivUnavailable and
        ArxivNonsense (try again later), ArxivRefused (do not).
        """
        if not 1 <= max_results <= MAX_PAGE or start < 0:
            raise ValueError(f"start is 0 or more, max_results 1 to {MAX_PAGE:,}")
        if since is not None or until is not None:
            last = until or datetime.now(UTC) + timedelta(days=1)
            query = _within(query, date, since or FIRST_DAY, last)
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
        raise ArxivNonsense(
            f"arXiv's page from {start:,} of {feed.total:,} came empty {EMPTY_TRIES} times"
        )

    async def pages(
        self,
        query: str = "",
        *,
        from_date: datetime | None = None,
        to_date: datetime | None = None,
        cursor: Cursor | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[FeedPage]:
        """All that was submitted from `from_date` to `to_date`, oldest first, to the minute.

        Goes on from a page's `cursor`, given the same query and `to_date` (name it, or it is the
        present); what is submitted meanwhile does not shift it. A range with more than DEEPEST
        entries is listed in windows that have fewer. Raises what `search` raises; after any of
        these the listing can be taken up again from the last cursor.
        """
        end = _minute(to_date or datetime.now(UTC))
        at: Cursor | None = cursor
        if at is None:
            first = _minute(from_date or FIRST_DAY)
            at = Cursor(first, end) if first <= end else None
        while at is not None:
            feed = await self.search(
                query, at.start, page_size, since=at.since, until=at.until, order="ascending"
            )
            if at.start == 0 and feed.total > DEEPEST:
                at = Cursor(at.since, _middle(at))
                continue
            following = _after(at, feed, end)
            yield FeedPage(feed.entries, following, feed.total, at)
            at = following

    # --- one request ------------------------------------------------------------------------

    async def _get(self, parameters: Mapping[str, str]) -> Feed:
        async with self.pace.turn(takes=REQUEST_TIMEOUT) as turn:
            status, headers, body = await self._fetch(parameters)
            after = parse_retry_after(headers.get("retry-after", ""))
            if status == 429 or (status == 503 and after is not None):
                wait = await turn.pause(THROTTLED_PAUSE if after is None else after)
                raise ArxivBusy(f"arXiv answers {status}: pause for {wait:.0f} s", wait=wait)
        is_xml = "xml" in headers.get("content-type", "")
        if status == 200:
            if not is_xml:
                kind = headers.get("content-type", "no content type")[:100]
                raise ArxivNonsense(f"arXiv's answer is no XML but {kind}")
            return await asyncio.to_thread(parse_feed, body)
        if 400 <= status < 500 and status not in (408, 425):
            if is_xml:
                await asyncio.to_thread(parse_feed, body)  # raises what arXiv says
            raise ArxivRefused(f"arXiv refuses the request with {status}")
        to = f" to {headers['location'][:200]}" if "location" in headers else ""
        raise ArxivUnavailable(f"arXiv answers {status}{to}", after=after)

    async def _fetch(self, parameters: Mapping[str, str]) -> tuple[int, httpx.Headers, bytes]:
        import httpx

        limit = asyncio.timeout(REQUEST_TIMEOUT)
        try:
            async with (
                limit,
                self._http.stream("GET", self._base_url, params=dict(parameters)) as response,
            ):
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_BYTES:
                        raise ArxivNonsense(f"arXiv's answer exceeds {MAX_BYTES:,} bytes")
                return response.status_code, response.headers, bytes(body)
        except httpx.HTTPError as error:
            raise ArxivUnavailable(_describe(error)) from error
        except TimeoutError as error:
            if limit.expired():
                raise ArxivUnavailable(
                    f"arXiv did not answer within {REQUEST_TIMEOUT:g} s"
                ) from error
            raise


def payload_of(entry: Entry, **options: Any) -> dict[str, Any]:
    """The payload of the `ingest_arxiv` job of an entry that is at hand. A few papers have
    thousands of authors: their job asks arXiv again, so that no message is large."""
    payload: dict[str, Any] = {"id": str(entry.arxiv_id), **options}
    if len(entry.model_dump_json()) <= MAX_ENTRY_BYTES:
        payload["entry"] = entry.model_dump(mode="json", exclude_none=True)
    return payload


MAX_ENTRY_BYTES = 32 * 1024
"""Longest entry, as JSON, that a message carries."""


def _within(query: str, date: str, since: datetime, until: datetime) -> str:
    dates = f"{date}:[{_stamp(since)} TO {_stamp(until)}]"
    return f"({query}) AND {dates}" if query.strip() else dates


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%d%H%M")


def _minute(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def _middle(window: Cursor) -> datetime:
    """The last minute of the window's first half."""
    half = _minute(window.since + (window.until - window.since) / 2)
    if half >= window.until:
        raise ArxivNonsense(
            f"arXiv says that more than {DEEPEST:,} papers were submitted in the minute "
            f"{_stamp(window.since)}"
        )
    return half


def _after(at: Cursor, feed: Feed, end: datetime) -> Cursor | None:
    """Where the next page begins."""
    start = at.start + feed.count
    if start < feed.total:
        return Cursor(at.since, at.until, start)
    since = at.until + _MINUTE
    if since > end:
        return None
    # As long as the window before, which fitted, and as much again.
    return Cursor(since, min(end, since + 2 * (at.until - at.since + _MINUTE) - _MINUTE))


def _describe(error: httpx.HTTPError) -> str:
    detail = f": {error}" if str(error) else ""
    return f"arXiv can't be reached ({type(error).__name__}{detail})"[:500]
