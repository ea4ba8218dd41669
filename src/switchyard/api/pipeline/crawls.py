"""`/crawl`: pages found by following links, each a job of its own."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request, Response

from switchyard.api.engine.job_publishing import ACCEPTED_HEADERS, IdempotencyKey
from switchyard.api.http.problems import Problem, invalid, responses
from switchyard.api.http.routing import Cursor, Limit, Routes
from switchyard.api.middleware.access import needs, own_key, receipt, starter_of
from switchyard.api.models import crawls as models
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.pipeline import view_crawl, view_crawl_page
from switchyard.broker import patterns
from switchyard.broker.errors import BrokerUnavailable
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.engine.records.states import Pressure
from switchyard.services.pipeline.crawls.crawl_bounds import CrawlBounds, InvalidCrawl
from switchyard.services.pipeline.crawls.crawl_pages import crawl_pressure
from switchyard.services.pipeline.crawls.crawl_service import CrawlKeyTaken, Crawls
from switchyard.services.pipeline.records.crawls import CrawlProgress, CrawlRecord

router = Routes(prefix="/crawl", tags=["crawls"])

FULL_RETRY_AFTER = 60
"""Seconds after which a crawl may be asked for again when the lane is full."""
CrawlId = Annotated[
    str,
    Path(
        pattern=patterns.CRAWL_ID_START,
        description="Id of the crawl, or its first characters, at least six.",
        examples=["0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11"],
    ),
]
READS, CHANGES = [needs(Scope.READ)], [needs(Scope.PUBLISH)]


@router.post(
    "",
    status_code=202,
    dependencies=CHANGES,
    responses={
        202: {
            "description": "Recorded; its first pages are published soon.",
            "headers": {
                **{
                    name: ACCEPTED_HEADERS[name]
                    for name in ("Location", "X-Lane-Pressure", "Idempotency-Replayed")
                }
            },
        },
        **responses("invalid", "idempotency-conflict", "lane-full", "no-broker", "ledger-away"),
    },
)
async def start(
    body: models.NewCrawl,
    request: Request,
    response: Response,
    state: Shared,
    idempotency_key: IdempotencyKey = None,
) -> models.CrawlView:
    """Start a crawl: one job for each page found. It respects robots.txt and JOBS_WEB_INTERVAL.

    503 with `Retry-After: 60` while the backfill lane is full.
    """
    bounds = _make_bounds(body, state)
    service = _crawls_of(state)
    idempotency_key = own_key(request, idempotency_key)
    try:
        existing = (
            None if idempotency_key is None else await service.find_by_key(bounds, idempotency_key)
        )
        if existing is not None:
            response.headers["Idempotency-Replayed"] = "true"
            return await _accept(request, service, existing, response)
        pressure = await _require_free_lane(state)
        starter = starter_of(request)
        crawl = await service.start(bounds, created_by=starter, key=idempotency_key, tags=body.tags)
    except CrawlKeyTaken as error:
        raise Problem("idempotency-conflict", str(error)) from error
    if pressure is not None:
        response.headers["X-Lane-Pressure"] = pressure
    return await _accept(request, service, crawl, response)


async def _accept(
    request: Request, service: Crawls, crawl: CrawlRecord, response: Response
) -> models.CrawlView:
    response.headers["Location"] = f"/crawl/{crawl.id}"
    return _crawl_view(request, await service.show(crawl.id))


def _crawl_view(request: Request, progress: CrawlProgress) -> models.CrawlView:
    """Return the crawl as the key that has changed it may see it."""
    is_own = progress.crawl.created_by == starter_of(request)
    return receipt(request, view_crawl(progress), is_own=is_own)


async def _require_free_lane(state: ApiState) -> Pressure | None:
    """Return how full the lane is. Raises Problem where it has no room."""
    pressure = await _read_pressure(state)
    if pressure is Pressure.FULL:
        raise Problem(
            "lane-full",
            "the backfill lane is full: no crawl was started; try again later",
            retry_after=FULL_RETRY_AFTER,
        )
    return pressure


def _make_bounds(body: models.NewCrawl, state: ApiState) -> CrawlBounds:
    try:
        return CrawlBounds.from_request(
            body.start,
            body.hosts,
            max_pages=body.max_pages,
            max_depth=body.max_depth,
            within=body.within,
            page_limit=state.settings.crawl_max_pages,
        )
    except InvalidCrawl as error:
        raise invalid(RequestFieldError((error.field,), str(error))) from error


@router.get("", dependencies=READS, responses=responses("ledger-away"))
async def list_crawls(state: Shared, limit: Limit = 50, cursor: Cursor = None) -> models.CrawlList:
    """List crawls, newest first."""
    page = await _crawls_of(state).all(limit=limit, cursor=cursor)
    return models.CrawlList(
        crawls=[view_crawl(each) for each in page.items], next_cursor=page.next_cursor
    )


@router.get("/{crawl_id}", dependencies=READS, responses=responses("not-found", "ledger-away"))
async def show(crawl_id: CrawlId, state: Shared) -> models.CrawlView:
    """Show the progress of a crawl."""
    return view_crawl(await _crawls_of(state).show(crawl_id))


@router.get(
    "/{crawl_id}/pages", dependencies=READS, responses=responses("not-found", "ledger-away")
)
async def pages(
    crawl_id: CrawlId, state: Shared, limit: Limit = 50, cursor: Cursor = None
) -> models.CrawlPages:
    """List the pages of a crawl with their results, latest first."""
    page = await _crawls_of(state).pages(crawl_id, limit=limit, cursor=cursor)
    return models.CrawlPages(
        pages=[view_crawl_page(each) for each in page.items], next_cursor=page.next_cursor
    )


@router.delete("/{crawl_id}", dependencies=CHANGES, responses=responses("not-found", "ledger-away"))
async def cancel(crawl_id: CrawlId, request: Request, state: Shared) -> models.CrawlView:
    """Cancel a crawl: it visits no more pages. Results are kept."""
    return _crawl_view(request, await _crawls_of(state).cancel(crawl_id))


async def _read_pressure(state: ApiState) -> Pressure | None:
    """Return how full the lane is. None where it is not known: a crawl is recorded all the same,
    and published later."""
    try:
        return crawl_pressure(await state.require_broker().pressure.snapshot())
    except BrokerUnavailable:
        return None


def _crawls_of(state: ApiState) -> Crawls:
    return Crawls(state.settings, state.ledger, state.registry)
