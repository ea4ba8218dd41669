"""Crawls: one job for each page found, within bounds, and nothing that robots.txt forbids."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.crawls.crawl_bounds import CrawlBounds
from switchyard.services.pipeline.crawls.crawl_service import Crawls
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.crawls import CrawlState
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.site import Site, fails, moved, says
from tests.support.system import System, open_system
from tests.support.worker_process import Processes

QUICK_INTERVALS = SchedulerIntervals(turn=0.1, lease=2.0, pending=0.5)
DAY = 86400.0
"""In seconds."""


def make_page(name: str, *links: str, head: str = "") -> Any:
    text = " ".join(f"The {name} says something of its own in sentence {n}." for n in range(12))
    anchors = "".join(f'<p>See <a href="{link}">this</a>.</p>' for link in links)
    return says(
        f"<html><head><title>{name}</title>{head}</head>"
        f"<body><article><h1>{name}</h1><p>{text}</p>{anchors}</article></body></html>",
        "text/html",
    )


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        site.pages["/robots.txt"] = says("User-agent: *\nDisallow: /private\n")
        yield site


@asynccontextmanager
async def open_crawling_system(
    broker: TestBroker, url: str, site: Site, **settings: Any
) -> AsyncIterator[System]:
    """Yield a system with a scheduler and without a worker, which may visit the site."""
    async with open_system(
        broker,
        url,
        modules=job_modules(),
        web_hosts=(site.origin.removeprefix("http://"),),
        web_interval=0.0,
        **settings,
    ) as system:
        scheduler = Scheduler(
            system.settings, system.registry, system.ledger, intervals=QUICK_INTERVALS
        )
        task = asyncio.create_task(scheduler.run())
        try:
            yield system
        finally:
            scheduler.stop()
            await asyncio.wait_for(task, 20)


def crawls_of(system: System) -> Crawls:
    return Crawls(system.settings, system.ledger, system.registry)


def make_bounds(site: Site, path: str = "/", **changes: Any) -> CrawlBounds:
    bound_values = {"max_pages": 50, "max_depth": 5, "within": DAY, "page_limit": 1000} | changes
    return CrawlBounds.from_request([f"{site.origin}{path}"], (), **bound_values)


async def wait_for_end(ledger: Ledger, crawl_id: str, timeout: float = 60) -> None:
    async def is_done() -> bool:
        progress = await PipelineLedger(ledger).crawls.crawl_progress(crawl_id)
        return progress is not None and progress.state is CrawlState.DONE

    await eventually(is_done, timeout, "the end of the crawl")


def has_visited_more_than(site: Site, number: int) -> bool:
    return len(set(site.paths)) > number


async def read_outcomes(system: System, site: Site, crawl_id: str) -> dict[str, str]:
    """Return the first word of each page's outcome, by its path."""
    page_list = await crawls_of(system).pages(crawl_id)
    return {
        each.page.url.removeprefix(site.origin): (each.outcome or "").partition(" ")[0]
        for each in page_list.items
    }


async def test_each_page_is_visited_once_and_a_forbidden_or_foreign_one_never(
    broker310: TestBroker, sqlite_url: str, site: Site
) -> None:
    with Site() as elsewhere:
        elsewhere.pages["/"] = make_page("elsewhere")
        site.pages["/"] = make_page(
            "start", "/a", "b#part", "/private/x", f"{elsewhere.origin}/", "/gone", "/away", "/"
        )
        site.pages["/a"] = make_page("first", "/b", "/", "/to-b")
        site.pages["/b"] = make_page("second", "/hidden")
        site.pages["/hidden"] = make_page(
            "third", "/a", "/c", head='<meta name="robots" content="noindex, nofollow">'
        )
        site.pages["/to-b"] = moved("/b")
        site.pages["/gone"] = fails(404)
        site.pages["/away"] = moved(f"{elsewhere.origin}/")
        async with open_crawling_system(broker310, sqlite_url, site) as system:
            await system.start_worker("ingest")
            tags = {"team": "search"}
            crawl = await crawls_of(system).start(make_bounds(site), created_by="test", tags=tags)
            await wait_for_end(system.ledger, crawl.id)
            visits = await system.ledger.job_reads.list_jobs(JobFilter(job_type="crawl_page"))
            assert len(visits.items) > 1
            assert all(job.tags == tags for job in visits.items)

            assert Counter(site.paths) == Counter(
                ["/robots.txt", "/", "/a", "/b", "/hidden", "/to-b", "/gone", "/away"]
            )
            assert elsewhere.paths == []
            assert await read_outcomes(system, site, crawl.id) == {
                "/": "document",
                "/a": "document",
                "/b": "document",
                "/hidden": "the",
                "/to-b": "the",
                "/private/x": "robots.txt",
                "/gone": "there",
                "/away": "the",
            }
            documents = await PipelineLedger(system.ledger).documents.list_documents()
            sources = {each.source for each in documents.items}
            assert sources == {f"url:{site.origin}{path}" for path in ("/", "/a", "/b")}
            assert await system.letters() == []  # a broken link is nobody's dead letter


async def test_a_crawl_keeps_its_bounds(broker310: TestBroker, sqlite_url: str, site: Site) -> None:
    site.pages["/"] = make_page("start", "/1", "/2", "/3", "/4")
    for number in range(1, 5):
        site.pages[f"/{number}"] = make_page(f"page {number}", f"/{number}/below")
        site.pages[f"/{number}/below"] = make_page(f"below {number}")
    async with open_crawling_system(broker310, sqlite_url, site) as system:
        await system.start_worker("ingest")
        shallow_crawl = await crawls_of(system).start(
            make_bounds(site, max_depth=1), created_by="test"
        )
        crawl_of_few_pages = await crawls_of(system).start(
            make_bounds(site, max_pages=3), created_by="test"
        )
        crawl_of_one_second = await crawls_of(system).start(
            make_bounds(site, within=1), created_by="test"
        )
        for crawl in (shallow_crawl, crawl_of_few_pages, crawl_of_one_second):
            await wait_for_end(system.ledger, crawl.id)
        assert set(await read_outcomes(system, site, shallow_crawl.id)) == {
            "/",
            "/1",
            "/2",
            "/3",
            "/4",
        }
        assert len(await read_outcomes(system, site, crawl_of_few_pages.id)) == 3
        system.ledger.clock.offset += 2
        later_crawl = await crawls_of(system).start(make_bounds(site, within=1), created_by="test")
        assert later_crawl.end_reason(system.ledger.clock.time() + 1) is not None


async def test_pages_wait_while_the_lane_is_full_and_are_cancelled_with_their_crawl(
    broker310: TestBroker, sqlite_url: str, site: Site
) -> None:
    site.pages["/"] = make_page("start", "/a")
    site.pages["/a"] = make_page("first")
    async with open_crawling_system(broker310, sqlite_url, site) as system:
        worker = await system.start_worker("ingest", pressure_full_at=0.0)
        crawl = await crawls_of(system).start(make_bounds(site), created_by="test")

        (first_page,) = (await crawls_of(system).pages(crawl.id)).items

        async def is_snoozed() -> bool:
            record = await system.ledger.job_reads.get(first_page.page.job_id)
            return record is not None and "lane is full" in (record.error_message or "")

        await eventually(is_snoozed, what="a snooze")
        assert site.paths == []
        progress = await crawls_of(system).cancel(crawl.id)
        assert progress.state is CrawlState.CANCELLED

        # Its job may just be asking again whether the lane has room.
        async def is_cancelled() -> bool:
            crawl_progress = await crawls_of(system).show(crawl.id)
            return crawl_progress.pages == {"cancelled": 1}

        await eventually(is_cancelled, what="the end of its page")
        await worker.stop()
        assert (
            await PipelineLedger(system.ledger).crawls.claim_pages(crawl.id, [], 0.0, interval=0)
            == 0
        )
        assert site.paths == []


async def test_a_job_for_a_page_outside_of_the_crawl_visits_nothing(
    broker310: TestBroker, sqlite_url: str, site: Site
) -> None:
    async with open_crawling_system(broker310, sqlite_url, site) as system:
        crawl = await crawls_of(system).start(make_bounds(site), created_by="test")
        await crawls_of(system).cancel(crawl.id)
        await system.start_worker("ingest")
        payload = {"crawl_id": crawl.id, "url": f"{site.origin}/secret"}
        job_id = await system.publish("backfill.crawl_page", payload)

        async def is_dead() -> bool:
            return await system.state(job_id) is State.DEAD

        await eventually(is_dead)
        assert site.paths == []


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(600)  # a host is left alone until the request of a killed worker is over
async def test_workers_that_are_killed_lose_no_page_and_claim_none_twice(
    broker310: TestBroker, sqlite_url: str, site: Site, tmp_path: Path
) -> None:
    paths = [f"/{number}" for number in range(12)]
    for number, path in enumerate(paths):
        site.pages[path] = make_page(f"page {number}", *paths[number : number + 4])
    async with (
        open_crawling_system(broker310, sqlite_url, site) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        worker = await processes.start("worker", kind="ingest")
        crawl = await crawls_of(system).start(
            make_bounds(site, "/0", max_depth=50), created_by="test"
        )
        await eventually(partial(has_visited_more_than, site, 3), 90, "some visits")
        worker.kill()
        await worker.ended()
        await processes.start("worker", kind="ingest")
        await wait_for_end(system.ledger, crawl.id, 400)
        progress = await crawls_of(system).show(crawl.id)
        assert progress.pages == {"succeeded": 12}
        assert progress.crawl.claimed == 12
        assert set(site.paths) == {"/robots.txt", *paths}
        documents = await PipelineLedger(system.ledger).documents.list_documents()
        assert len(documents.items) == 12
        jobs = (await system.ledger.job_reads.list_jobs(limit=1000)).items
        assert Counter(each.job_type for each in jobs)["crawl_page"] == 12
