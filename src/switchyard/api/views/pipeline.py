"""Crawls, documents, graph and index as the API answers and `jobctl … --json` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from switchyard.api.models.crawls import CrawlDetails, CrawlPageView, CrawlView
from switchyard.api.models.lanes import GenerationView, IndexView

if TYPE_CHECKING:
    from switchyard.services.pipeline.index.open_index import GenerationReport, OpenIndex
    from switchyard.services.pipeline.records.crawls import CrawlProgress, ListedPage


def view_crawl(progress: CrawlProgress) -> CrawlView:
    """Show a crawl, and how far it is."""
    return CrawlView.from_record(progress.crawl, state=progress.state, pages=progress.pages)


def view_crawl_details(progress: CrawlProgress, pages: Sequence[ListedPage]) -> CrawlDetails:
    """Show a crawl with the last of its pages."""
    last_pages = [view_crawl_page(each) for each in pages]
    return CrawlDetails.from_record(view_crawl(progress), last_pages=last_pages)


def view_crawl_page(page: ListedPage) -> CrawlPageView:
    """Show a page of a crawl."""
    return CrawlPageView.from_record(page.page, state=page.state, outcome=page.outcome)


def view_index(index: OpenIndex, generations: Iterable[GenerationReport]) -> IndexView:
    """Show where the index is, its embedder, and the progress of a rebuild."""
    return IndexView(
        where=index.store.location,
        wanted=index.configured.embedder,
        generations=[
            GenerationView.from_record(each.generation, role=each.role, chunks=each.chunks)
            for each in generations
        ],
    )
