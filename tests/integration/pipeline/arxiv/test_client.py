"""The client of arXiv's API: answers, errors, and waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.sources.arxiv import arxiv_client
from switchyard.services.pipeline.sources.arxiv.arxiv_client import (
    ArxivClient,
    FeedPage,
    ListingCursor,
    payload_of,
)
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceBusy,
    SourceRefused,
    SourceUnavailable,
)
from tests.support import arxiv_server as server
from tests.support.arxiv_server import ArxivServer, Paper, make_papers

MARCH = datetime(2024, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def site() -> Iterator[ArxivServer]:
    with ArxivServer(make_papers(7)) as site:
        yield site


@pytest.fixture
def unthrottled_settings(settings: Settings, site: ArxivServer) -> Settings:
    """Return settings for the test's server, without arXiv's limits on requests."""
    return settings.model_copy(update={"arxiv_base_url": site.url, "arxiv_interval": 0.0})


@pytest.fixture
async def client(unthrottled_settings: Settings) -> AsyncIterator[ArxivClient]:
    async with ArxivClient.connect(unthrottled_settings) as client:
        yield client


async def list_pages(client: ArxivClient, **options: Any) -> list[FeedPage]:
    return [page async for page in client.pages("cat:physics.ao-ph", **options)]


def ids_of(pages: list[FeedPage]) -> list[str]:
    return [entry.id for page in pages for entry in page.entries]


# --- entries and searches -----------------------------------------------------------------------


async def test_an_entry_has_all_fields_of_the_feed(client: ArxivClient, site: ArxivServer) -> None:
    site.papers = [
        Paper(
            "1605.08386",
            title="Heat <and>\n   baths",
            abstract="Graphs &\n are studied.",
            version=3,
            published=MARCH,
            updated=MARCH + timedelta(days=1),
            categories=("math.CO", "math.ST"),
            comment="20 pages",
            journal_ref="J. Heat 7",
            doi="10.1000/182",
        )
    ]
    [entry] = await client.entries(["1605.08386"])
    assert entry.model_dump() == {
        "id": "1605.08386",
        "version": 3,
        "title": "Heat <and> baths",
        "abstract": "Graphs & are studied.",
        "authors": ("Ada Tide", "Müller, J."),
        "primary_category": "math.CO",
        "categories": ("math.CO", "math.ST"),
        "published": MARCH,
        "updated": MARCH + timedelta(days=1),
        "comment": "20 pages",
        "journal_ref": "J. Heat 7",
        "doi": "10.1000/182",
        "abs_url": "http://arxiv.org/abs/1605.08386v3",
        "pdf_url": f"{site.origin}/pdf/1605.08386v3",
    }
    assert site.requests[0].parameters["id_list"] == "1605.08386"


async def test_several_ids_are_one_request_and_unknown_ones_are_left_out(
    client: ArxivClient, site: ArxivServer
) -> None:
    entries = await client.entries(["2403.00003", "9999.99999", "arXiv:2403.00001"])
    assert [entry.id for entry in entries] == ["2403.00003", "2403.00001"]
    assert len(site.requests) == 1


async def test_a_damaged_record_is_left_out_and_does_not_shift_the_pages(
    client: ArxivClient, site: ArxivServer
) -> None:
    site.replace("2403.00001", damaged=True)
    pages = await list_pages(
        client, from_date=MARCH, to_date=MARCH + timedelta(days=1), page_size=2
    )
    assert ids_of(pages) == [f"2403.{number:05}" for number in (0, 2, 3, 4, 5, 6)]


async def test_an_entry_fits_into_a_payload_unless_it_has_thousands_of_authors(
    client: ArxivClient, site: ArxivServer
) -> None:
    site.replace("2403.00002", authors=tuple(f"Author {number}" for number in range(3000)))
    short_entry, long_entry = await client.entries(["2403.00001", "2403.00002"])
    assert payload_of(short_entry, full_text=True)["entry"]["title"] == "Paper number 1"
    assert payload_of(short_entry, full_text=True)["full_text"] is True
    assert payload_of(long_entry) == {"id": "2403.00002v1"}


# --- listings -----------------------------------------------------------------------------------


async def test_a_listing_has_every_paper_of_its_dates_once_oldest_first(
    client: ArxivClient,
) -> None:
    pages = await list_pages(
        client,
        from_date=MARCH + timedelta(hours=1),
        to_date=MARCH + timedelta(hours=5),
        page_size=2,
    )
    assert ids_of(pages) == [f"2403.{number:05}" for number in range(1, 6)]
    assert [len(page.entries) for page in pages] == [2, 2, 1]
    assert pages[0].total == 5
    assert pages[-1].cursor is None


async def test_a_listing_continues_from_the_cursor_of_any_page(client: ArxivClient) -> None:
    end = MARCH + timedelta(days=1)
    pages = await list_pages(client, from_date=MARCH, to_date=end, page_size=2)
    saved_cursor = str(pages[1].cursor)
    remaining = await list_pages(
        client, cursor=ListingCursor.parse(saved_cursor), to_date=end, page_size=2
    )
    assert ids_of(remaining) == ids_of(pages[2:])


async def test_a_range_with_too_many_papers_is_listed_in_windows(
    client: ArxivClient, site: ArxivServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.papers = make_papers(60, apart=timedelta(minutes=7))
    site.max_start = 10
    monkeypatch.setattr(arxiv_client, "MAX_SEARCH_RESULTS", 10)
    end = MARCH + timedelta(days=30)
    pages = await list_pages(client, from_date=MARCH, to_date=end, page_size=4)
    assert ids_of(pages) == [paper.id for paper in site.papers]
    middle = pages[len(pages) // 2]
    remaining = await list_pages(client, cursor=middle.cursor, to_date=end, page_size=4)
    assert ids_of(pages[: len(pages) // 2 + 1]) + ids_of(remaining) == ids_of(pages)


async def test_an_empty_page_in_the_middle_is_requested_again(
    client: ArxivClient, site: ArxivServer
) -> None:
    site.next(server.empty_page(), server.empty_page())
    pages = await list_pages(client, from_date=MARCH, to_date=MARCH + timedelta(days=1))
    assert len(ids_of(pages)) == 7
    site.always(server.empty_page())
    with pytest.raises(InvalidSourceResponse, match="came empty 3 times"):
        await list_pages(client, from_date=MARCH, to_date=MARCH + timedelta(days=1))


async def test_a_range_without_papers_ends_at_once(client: ArxivClient, site: ArxivServer) -> None:
    pages = await list_pages(client, from_date=MARCH, to_date=MARCH - timedelta(days=1))
    assert (pages, site.requests) == ([], [])


# --- errors -------------------------------------------------------------------------------------


async def test_a_refusal_quotes_arxiv_s_message(client: ArxivClient, site: ArxivServer) -> None:
    refusal = server.refusal("incorrect id format for 1605.0838x")
    for status in (200, 400):
        site.next(server.answers(status, refusal))
        with pytest.raises(SourceRefused, match="incorrect id format for 1605"):
            await client.entries(["1605.08386"])


ENTITY_BOMB = b"""<?xml version="1.0"?><!DOCTYPE feed [<!ENTITY a "aaaaaaaaaa">
<!ENTITY b "&a;&a;&a;&a;">]><feed xmlns="http://www.w3.org/2005/Atom"><id>&b;</id></feed>"""


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        (server.cut(), SourceUnavailable, "can't be reached"),
        (server.cut_in_the_middle(), SourceUnavailable, "can't be reached"),
        (server.fails(500), SourceUnavailable, "answers 500"),
        (server.fails(502), SourceUnavailable, "answers 502"),
        (server.fails(503), SourceUnavailable, "answers 503"),
        (server.fails(301), SourceUnavailable, "answers 301"),
        (server.fails(403), SourceRefused, "with 403"),
        (server.says(b"<html>", "text/html"), InvalidSourceResponse, "text/html"),
        (server.says(b"<feed"), InvalidSourceResponse, "no XML"),
        (server.says(b""), InvalidSourceResponse, "no XML"),
        (server.says(b"\xff\xfe<feed/>"), InvalidSourceResponse, "no XML"),
        (server.says(b"<rss/>"), InvalidSourceResponse, "no Atom feed"),
        (server.says(b"<a>" * 100_000), InvalidSourceResponse, "nested too deeply"),
        (server.says(ENTITY_BOMB), InvalidSourceResponse, "DOCTYPE"),
        (
            server.says(b'<feed xmlns="http://www.w3.org/2005/Atom"/>'),
            InvalidSourceResponse,
            "startIndex",
        ),
    ],
)
async def test_each_kind_of_invalid_answer_raises_its_own_error(
    client: ArxivClient,
    site: ArxivServer,
    behaviour: server.Behaviour,
    error: type[Exception],
    message: str,
) -> None:
    site.next(behaviour)
    with pytest.raises(error, match=message):
        await client.entries(["1605.08386"])
    assert len(site.requests) == 1


async def test_an_answer_without_an_end_is_not_read_to_its_end(
    client: ArxivClient, site: ArxivServer
) -> None:
    client.client.server = replace(client.client.server, max_bytes=10_000)
    site.next(server.says(b"<a>" + b"a" * 100_000))
    with pytest.raises(InvalidSourceResponse, match="exceeds 10,000 bytes"):
        await client.entries(["1605.08386"])


async def test_a_server_that_is_too_slow_is_given_up(
    client: ArxivClient, site: ArxivServer
) -> None:
    client.client.server = replace(client.client.server, timeout=0.2)
    site.next(server.slow(30))
    with pytest.raises(SourceUnavailable, match="did not answer within"):
        await client.entries(["1605.08386"])


# --- arXiv's rules ------------------------------------------------------------------------------


async def test_requests_keep_their_distance_in_all_processes_together(
    unthrottled_settings: Settings, ledger: Ledger, site: ArxivServer
) -> None:
    """Two ledgers stand for two processes."""
    throttled_settings = unthrottled_settings.model_copy(update={"arxiv_interval": 1.0})
    async with (
        await Ledger.open(throttled_settings.ledger_url) as other_ledger,
        ArxivClient.connect(throttled_settings, ledger, max_wait=30) as first,
        ArxivClient.connect(throttled_settings, other_ledger, max_wait=30) as second,
    ):
        site.always(server.slow(0.05))
        await asyncio.gather(
            *(
                each.entries([f"2403.0000{number}"])
                for number in range(2)
                for each in (first, second)
            )
        )
    arrival_times = sorted(request.at for request in site.requests)
    assert len(arrival_times) == 4
    # The interval is kept between the sending times, and measured between those of arrival.
    assert min(b - a for a, b in pairwise(arrival_times)) > 0.8
    assert site.most_at_once == 1


async def test_requests_never_overlap_however_long_one_takes(
    unthrottled_settings: Settings, ledger: Ledger, site: ArxivServer
) -> None:
    async with ArxivClient.connect(unthrottled_settings, ledger, max_wait=30) as client:
        site.always(server.slow(0.1))
        await asyncio.gather(*(client.entries(["2403.00001"]) for _ in range(4)))
    assert site.most_at_once == 1


async def test_two_callers_wait_for_a_turn_and_others_get_source_busy(
    unthrottled_settings: Settings, ledger: Ledger, site: ArxivServer
) -> None:
    """Jobs that wait so take two slots of all workers together, and no turn is lost."""
    throttled_settings = unthrottled_settings.model_copy(update={"arxiv_interval": 0.5})
    async with ArxivClient.connect(throttled_settings, ledger) as client:
        requested_at = time.monotonic()
        answers = await asyncio.gather(
            *(client.entries(["2403.00001"]) for _ in range(5)), return_exceptions=True
        )
        assert time.monotonic() - requested_at < 2
        busy = [answer for answer in answers if isinstance(answer, SourceBusy)]
        assert [each.wait for each in busy] == [0.5] * 3
        assert len(site.requests) == 2
        assert await client.entries(["2403.00001"])  # the places are free again


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_pauses_every_process(
    unthrottled_settings: Settings, ledger: Ledger, site: ArxivServer, status: int
) -> None:
    async with (
        await Ledger.open(unthrottled_settings.ledger_url) as other_ledger,
        ArxivClient.connect(unthrottled_settings, ledger) as first,
        ArxivClient.connect(unthrottled_settings, other_ledger) as second,
    ):
        site.next(server.throttled(100, status))
        with pytest.raises(SourceBusy) as busy:
            await first.entries(["2403.00001"])
        assert busy.value.wait == 100
        for client in (first, second):
            with pytest.raises(SourceBusy, match="whole fleet") as busy:
                await client.entries(["2403.00001"])
            assert 90 < busy.value.wait <= 100
    assert len(site.requests) == 1


async def test_a_short_pause_is_waited_for(
    unthrottled_settings: Settings, ledger: Ledger, site: ArxivServer
) -> None:
    async with ArxivClient.connect(unthrottled_settings, ledger, max_wait=5) as client:
        site.next(server.throttled(1))
        with pytest.raises(SourceBusy):
            await client.entries(["2403.00001"])
        began = time.monotonic()
        assert await client.entries(["2403.00001"])
        assert time.monotonic() - began > 0.8


async def test_a_429_without_retry_after_pauses_for_a_while(
    client: ArxivClient, site: ArxivServer
) -> None:
    site.next(server.throttled(None))
    with pytest.raises(SourceBusy, match="429"):
        await client.entries(["2403.00001"])
    with pytest.raises(SourceBusy):
        await client.entries(["2403.00001"])
    assert len(site.requests) == 1
