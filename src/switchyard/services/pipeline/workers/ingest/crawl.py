"""Job type `crawl_page`: take in one page of a crawl, and claim the pages that it links to.

Pages are claimed before they have a job (services/pipeline/ledger/crawls.py). Nobody publishes them
from here: each is recorded with the time at which its host can be asked again, and the scheduler
publishes it then. So a crawl's lane only has pages that are visited soon.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from switchyard.broker import patterns
from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.lanes import BACKFILL
from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import UnsupportedDocument
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome, Snooze
from switchyard.services.engine.jobs.registry import Registry, job, job_type_of
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.records.states import Pressure
from switchyard.services.pipeline.crawls.crawl_bounds import host_of, is_on_hosts
from switchyard.services.pipeline.crawls.crawl_pages import (
    JOB_TYPE,
    SLOW_LANE_FACTOR,
    crawl_pressure,
    make_pages,
)
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.crawls import CrawlPage, CrawlRecord
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.source_errors import (
    SourceBusy,
    SourceNotFound,
    SourceRefused,
)
from switchyard.services.pipeline.sources.web.web_addresses import link_addresses, page_address
from switchyard.services.pipeline.sources.web.web_fetcher import WebFetcher
from switchyard.services.pipeline.text.web_page_text import MAX_LINKS, WebText
from switchyard.services.pipeline.workers.ingest.source_jobs import ingest_found, snooze_for_turn
from switchyard.services.pipeline.workers.ingest.web import SOURCE, document_on_page

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger

FULL_PAUSE = 60.0
"""Seconds for which a page waits when the lane is full; up to half as long again is added by
chance."""


class CrawlPagePayload(StrictModel):
    """Payload of `crawl_page`."""

    crawl_id: str = Field(pattern=patterns.CRAWL_ID)
    url: Annotated[str, AfterValidator(page_address)] = Field(min_length=1, max_length=2000)


@job(JOB_TYPE, worker="ingest", lanes=(BACKFILL.name,), timeout=300)
async def crawl_page(payload: CrawlPagePayload, ctx: JobContext) -> Outcome:
    """Take in a page of a crawl as `ingest_url` does, and claim the pages that it links to, within
    the crawl's bounds."""
    if ctx.ledger is None:
        raise PermanentError("a crawl needs a ledger: set JOBS_DATABASE_URL")
    crawls = PipelineLedger(ctx.ledger).crawls
    crawl = await crawls.crawl(payload.crawl_id)
    page = await crawls.crawl_page(payload.crawl_id, payload.url)
    if crawl is None or page is None or page.job_id != ctx.job_id:
        raise PermanentError("the job is of no crawl: start one with `jobctl crawl start`")
    now = ctx.ledger.clock.time()
    if (reason := crawl.end_reason(now)) is not None:
        return Done({"skipped": reason})
    pressure = await _lane_pressure(ctx)
    if pressure is Pressure.FULL:
        pause = FULL_PAUSE * (1 + random.random() / 2)
        return Snooze(pause, "the backfill lane is full: the crawl waits")
    fetcher = WebFetcher(ctx)
    try:
        visited = await fetcher.visit(page.url, may_follow=_redirect_check(crawl, page, ctx.ledger))
        document, page_text = await document_on_page(visited, visited.url, ctx)
    except SourceBusy as busy:
        return snooze_for_turn(busy, ctx)
    except (SourceNotFound, SourceRefused, UnsupportedDocument) as error:
        # Broken links are common, so they don't become dead letters.
        return Done({"skipped": str(error)[:300]})
    links = await _claim_links(crawl, page, page_text, visited.url, ctx.ledger, ctx, pressure)
    if document is None or (page_text is not None and not page_text.indexed):
        reason = "no readable text" if document is None else "the page asks not to be indexed"
        return Done({"skipped": reason, "links": links})
    return await ingest_found(document, f"{SOURCE}{visited.url}", ctx, asked_at=now)


async def _claim_links(
    crawl: CrawlRecord,
    page: CrawlPage,
    page_text: WebText | None,
    base: str,
    ledger: Ledger,
    ctx: JobContext,
    pressure: Pressure,
) -> int:
    """Claim the pages that this one links to for the crawl. Returns the number of new ones."""
    if page_text is None or page.depth >= crawl.max_depth:
        return 0
    urls = [
        each
        for each in link_addresses(base, page_text.links, max_links=MAX_LINKS)
        if is_on_hosts(each, crawl.hosts)
    ]
    registry = Registry([job_type_of(crawl_page)])
    ids = await ledger.system.job_ids()
    depth = page.depth + 1
    pages = list(make_pages(registry, ids, crawl.id, urls, depth, page.job_id, tags=ctx.tags))
    if not pages:
        return 0
    slow_down = SLOW_LANE_FACTOR if pressure is Pressure.SLOW else 1.0
    return await PipelineLedger(ledger).crawls.claim_pages(
        crawl.id, pages, ledger.clock.time(), interval=ctx.settings.web_interval * slow_down
    )


def _redirect_check(
    crawl: CrawlRecord, page: CrawlPage, ledger: Ledger
) -> Callable[[str], Awaitable[None]]:
    """Return the check of redirects: none may lead out of the crawl, or to another page of the
    crawl, which has a job of its own."""
    crawls = PipelineLedger(ledger).crawls

    async def may_follow(url: str) -> None:
        if not is_on_hosts(url, crawl.hosts):
            raise SourceRefused(
                f"the page redirects to {host_of(url)[:100]}, which is no host of the crawl"
            )
        if not await crawls.claim_address(crawl.id, page, url, host_of(url)):
            raise SourceRefused(f"the page redirects to another page of the crawl, {url[:200]}")

    return may_follow


async def _lane_pressure(ctx: JobContext) -> Pressure:
    """Return the pressure of the lane; OK where it is not known."""
    if ctx.shared is None or ctx.settings.amqp_url is None:
        return Pressure.OK
    lanes = await ctx.shared.get(
        LanePressure, lambda: LanePressure(ctx.settings, Registry(), ledger=ctx.ledger)
    )
    try:
        return crawl_pressure(await lanes.snapshot())
    except BrokerUnavailable:
        return Pressure.OK
