"""Pages of crawls in the ledger: each is claimed once, with its job."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import update

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.records.states import State
from switchyard.services.pipeline.crawls.crawl_pages import make_pages
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.crawls import CrawlRecord, CrawlState, FoundPage
from tests.support.small_steps import remove_in_steps

CRAWL = CrawlRecord(
    id="0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11",
    start=("https://example.org/",),
    hosts=("example.org",),
    max_pages=30,
    max_depth=3,
    deadline=2_000_000_000.0,
    created_by="test",
    created_at=1_000.0,
)
DAY = 86_400.0
REGISTRY = Registry.load(["switchyard.services.pipeline.workers.ingest.crawl"])


def make_found_pages(*paths: str, host: str = "example.org") -> list[FoundPage]:
    urls = [f"https://{host}/{path}" for path in paths]
    return list(make_pages(REGISTRY, PUBLIC_IDS, CRAWL.id, urls, 1, "parent", tags={}))


@pytest.fixture
async def crawl(ledger: Ledger) -> CrawlRecord:
    return await PipelineLedger(ledger).crawls.start_crawl(CRAWL, make_found_pages(""), interval=1)


async def test_concurrent_finders_claim_each_page_once_and_no_more_than_allowed(
    ledger: Ledger, crawl: CrawlRecord
) -> None:
    batches = [make_found_pages(*map(str, range(first, first + 20))) for first in range(0, 40, 5)]
    claims = [
        PipelineLedger(ledger).crawls.claim_pages(crawl.id, batch, 2_000.0, interval=1)
        for batch in batches
    ]
    claimed_counts = await asyncio.gather(*claims)
    assert sum(claimed_counts) == 29
    progress = await PipelineLedger(ledger).crawls.crawl_progress(crawl.id)
    assert progress is not None
    assert progress.crawl.claimed == 30
    assert progress.pages == {"scheduled": 30}
    assert progress.state is CrawlState.RUNNING
    assert (
        await PipelineLedger(ledger).crawls.claim_pages(
            crawl.id, make_found_pages("later"), 2_000.0, interval=1
        )
        == 0
    )


async def test_pages_of_a_host_are_due_one_after_the_other(
    ledger: Ledger, crawl: CrawlRecord
) -> None:
    await PipelineLedger(ledger).crawls.claim_pages(
        crawl.id, make_found_pages("a", "b"), 1_000.5, interval=2
    )
    await PipelineLedger(ledger).crawls.claim_pages(
        crawl.id, make_found_pages("c"), 1_000.6, interval=2
    )
    await PipelineLedger(ledger).crawls.claim_pages(
        crawl.id, make_found_pages("x", host="other.example"), 1_000.7, interval=2
    )
    due = {
        status.page.url.removeprefix("https://"): status.page.due_at
        for status in (await PipelineLedger(ledger).crawls.crawl_pages(crawl.id)).items
    }
    assert due == {
        "example.org/": 1_000.0,
        "example.org/a": 1_002.0,
        "example.org/b": 1_004.0,
        "example.org/c": 1_006.0,
        "other.example/x": 1_000.7,
    }
    due_jobs = await ledger.job_reads.due_scheduled(1_002.0, 10)
    assert {job.payload["url"] for job in due_jobs} == {
        "https://example.org/",
        "https://example.org/a",
        "https://other.example/x",
    }


async def test_a_crawl_that_is_over_claims_no_pages(ledger: Ledger, crawl: CrawlRecord) -> None:
    assert (
        await PipelineLedger(ledger).crawls.claim_pages(
            crawl.id, make_found_pages("a"), CRAWL.deadline, interval=1
        )
        == 0
    )
    assert await PipelineLedger(ledger).crawls.cancel_crawl(crawl.id, 1_001.0) == 1
    assert await PipelineLedger(ledger).crawls.cancel_crawl(crawl.id, 1_002.0) == 0
    assert (
        await PipelineLedger(ledger).crawls.claim_pages(
            crawl.id, make_found_pages("a"), 1_003.0, interval=1
        )
        == 0
    )
    (page,) = (await PipelineLedger(ledger).crawls.crawl_pages(crawl.id)).items
    assert await ledger.job_reads.states([page.page.job_id]) == {page.page.job_id: State.CANCELLED}
    assert await PipelineLedger(ledger).crawls.cancel_crawl("none", 1.0) is None


async def test_an_address_that_a_page_redirects_to_belongs_to_one_page(
    ledger: Ledger, crawl: CrawlRecord
) -> None:
    await PipelineLedger(ledger).crawls.claim_pages(
        crawl.id, make_found_pages("a", "b"), 1_001.0, interval=1
    )
    page = await PipelineLedger(ledger).crawls.crawl_page(crawl.id, "https://example.org/a")
    assert page is not None
    address = "https://example.org/new"
    assert await PipelineLedger(ledger).crawls.claim_address(crawl.id, page, address, "example.org")
    assert await PipelineLedger(ledger).crawls.claim_address(crawl.id, page, address, "example.org")
    assert not await PipelineLedger(ledger).crawls.claim_address(
        crawl.id, page, "https://example.org/b", "example.org"
    )
    assert (
        await PipelineLedger(ledger).crawls.claim_pages(
            crawl.id, make_found_pages("new"), 1_001.0, interval=1
        )
        == 0
    )
    assert len((await PipelineLedger(ledger).crawls.crawl_pages(crawl.id)).items) == 3


async def test_crawls_are_listed_newest_first_in_pages(ledger: Ledger) -> None:
    for number in range(3):
        record = replace(CRAWL, id=f"crawl-{number}", created_at=1_000.0 + number)
        await PipelineLedger(ledger).crawls.start_crawl(record, [], interval=1)
    page = await PipelineLedger(ledger).crawls.list_crawls(limit=2)
    assert [progress.crawl.id for progress in page.items] == ["crawl-2", "crawl-1"]
    assert [progress.state for progress in page.items] == [CrawlState.DONE] * 2
    second_page = await PipelineLedger(ledger).crawls.list_crawls(limit=2, cursor=page.next_cursor)
    assert [progress.crawl.id for progress in second_page.items] == ["crawl-0"]


async def test_old_crawls_are_dropped_once_no_page_of_them_can_still_be_visited(
    ledger: Ledger, crawl: CrawlRecord
) -> None:
    async def drop_old(age: float) -> int:
        crawls = PipelineLedger(ledger).crawls
        rows = await remove_in_steps(
            lambda limit: crawls.drop_old_crawls(age, limit=limit), limit=7
        )
        return rows["crawls"]

    await PipelineLedger(ledger).crawls.claim_pages(
        crawl.id, make_found_pages(*map(str, range(20))), 2_000.0, interval=1
    )
    assert await drop_old(DAY) == 0  # its pages wait
    await PipelineLedger(ledger).crawls.cancel_crawl(crawl.id, 3_000.0)
    assert await drop_old(ledger.clock.time()) == 0  # it is younger than that
    (job_id, *_) = [
        status.page.job_id
        for status in (await PipelineLedger(ledger).crawls.crawl_pages(crawl.id)).items
    ]

    async def let_job_die(died_at: float) -> None:
        change = (
            update(jobs).where(jobs.c.id == job_id).values(state=State.DEAD, updated_at=died_at)
        )
        await ledger.core.database.write(lambda connection: connection.execute(change).rowcount)

    await let_job_die(ledger.clock.time())
    assert await drop_old(DAY) == 0  # it can be redriven
    await let_job_die(4_000.0)
    assert await drop_old(DAY) == 1
    assert await PipelineLedger(ledger).crawls.crawl(crawl.id) is None
    assert (await PipelineLedger(ledger).crawls.crawl_pages(crawl.id)).items == ()
    assert await ledger.job_reads.get(job_id) is not None
