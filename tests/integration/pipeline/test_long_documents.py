"""Drafts of long documents are stored, and the next attempt continues after the last draft."""

from __future__ import annotations

import json

import pytest

from switchyard.broker.message import JobMessage
from switchyard.services.common.files.storage_keys import page_key
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done
from switchyard.services.engine.records.progress import ReportedProgress
from switchyard.services.pipeline.text.partial_results import PAGES_PER_DRAFT, Drafts
from switchyard.services.pipeline.text.pdf import ExtractorName, read_pdf
from switchyard.services.pipeline.workers.ingest.documents import ExtractText, extract_text
from tests.integration.pipeline.conftest import Pipeline
from tests.support.pdfs import lines_of_text, with_a_broken_page

PAGES = 2 * PAGES_PER_DRAFT + 30
TEXTS = [f"This is page {number} of the book." for number in range(1, PAGES + 1)]


class Died(Exception):
    """Stands for the death of the process."""


@pytest.fixture(scope="module")
def book() -> bytes:
    return lines_of_text(TEXTS, lines=2)


def open_drafts(
    pipeline: Pipeline, input_hash: str = "content", *, min_pages: int = PAGES_PER_DRAFT + 1
) -> Drafts:
    return Drafts(pipeline.storage, "book", "extract_text", input_hash, min_pages=min_pages)


def read_until_death(data: bytes, drafts: Drafts, last_page: int, extractor: ExtractorName) -> None:
    def on_page(number: int, count: int) -> None:
        assert count == PAGES
        if number == last_page:
            raise Died

    with pytest.raises(Died):
        read_pdf(data, extractor=extractor, drafts=drafts, on_page=on_page)


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
def test_the_next_attempt_continues_after_the_last_draft_and_reads_the_same(
    pipeline: Pipeline, book: bytes, extractor: ExtractorName
):
    read_until_death(book, open_drafts(pipeline), 2 * PAGES_PER_DRAFT + 10, extractor)
    pages_read: list[int] = []
    drafts = open_drafts(pipeline)
    document = read_pdf(
        book,
        extractor=extractor,
        drafts=drafts,
        on_page=lambda number, _: pages_read.append(number),
    )
    assert pages_read == [
        PAGES_PER_DRAFT,
        2 * PAGES_PER_DRAFT,
        *range(2 * PAGES_PER_DRAFT + 1, PAGES + 1),
    ]
    assert drafts.reused_pages == 2 * PAGES_PER_DRAFT
    assert document == read_pdf(book, extractor=extractor)
    assert [page.text.splitlines()[0] for page in document.pages] == TEXTS


def test_pages_of_a_damaged_draft_or_one_of_other_content_are_read_again(
    pipeline: Pipeline, book: bytes
):
    read_until_death(book, open_drafts(pipeline, "older content"), PAGES, "pymupdf")
    drafts = open_drafts(pipeline)
    read_pdf(book, drafts=drafts)
    assert drafts.reused_pages == 0
    key = page_key("book", "extract_text", PAGES_PER_DRAFT + 1)
    stored_draft = json.loads(pipeline.storage.get(key))
    stored_draft["pages"] = stored_draft["pages"][:5]
    pipeline.storage.put(key, json.dumps(stored_draft).encode())
    pipeline.storage.put(page_key("book", "extract_text", 1), b"{")
    drafts = open_drafts(pipeline)
    assert len(read_pdf(book, drafts=drafts).pages) == PAGES
    assert drafts.reused_pages == PAGES - 2 * PAGES_PER_DRAFT


def test_broken_pages_stay_broken_in_drafts(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("switchyard.services.pipeline.text.pdf.PAGES_PER_DRAFT", 2)
    data = with_a_broken_page(5)
    document = read_pdf(data, drafts=open_drafts(pipeline, min_pages=5))
    drafts = open_drafts(pipeline, min_pages=5)
    assert read_pdf(data, drafts=drafts) == document
    assert drafts.reused_pages == 5
    assert [page.number for page in document.pages if page.error is not None] == [2]


async def test_the_job_reports_progress_and_leaves_no_drafts_behind(
    pipeline: Pipeline, book: bytes
):
    key = "uploads/incoming/book"
    pipeline.storage.put(key, book)
    message = JobMessage(job_type="extract_text", payload={"key": key})
    ctx = JobContext(message, "hot", "test", pipeline.settings)
    outcome = extract_text(ExtractText(key=key), ctx)
    assert isinstance(outcome, Done)
    assert (outcome.result or {})["pages_read"] == PAGES
    reported = ctx.progress_buffer.take()
    assert reported is not None
    assert reported.progress == ReportedProgress(1.0, f"page {PAGES} of {PAGES}")
    remaining_keys = [stored.key async for stored in pipeline.storage.list_async("intermediate")]
    assert remaining_keys == []
