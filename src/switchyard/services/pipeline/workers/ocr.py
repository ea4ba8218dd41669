"""Job types of the OCR worker: the text of pages that are pictures."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from pydantic import Field

from switchyard.broker import patterns
from switchyard.broker.lanes import BACKFILL
from switchyard.broker.message import MAX_FIRST_STAGE_PRIORITY
from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import NotStored, PageTooCostly, UnsupportedDocument
from switchyard.services.common.files.media_types import IMAGES, PDF
from switchyard.services.common.files.storage_keys import content_hash, page_key
from switchyard.services.engine.jobs.bounded_gather import gather_bounded
from switchyard.services.engine.jobs.context import JobContext, ProcessCrashed
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles, StageOutput
from switchyard.services.pipeline.workers.stages import (
    EXTRACT,
    INGEST,
    OCR,
    DocumentJob,
    at_stage,
    ends_when_superseded,
)

PAGE_TIMEOUT = 120.0
"""Seconds that one page may take; a dense page of A4 takes some 6 s on one core."""
TIME_BUDGET = 120.0
"""Seconds after which a job leaves the remaining pages to a new job, at the end of the queue."""
OCR_TIMEOUT = TIME_BUDGET + 3 * PAGE_TIMEOUT
MAX_UNDIVIDED_PAGES = 20
"""A document with no more pages than these is read by one job; a longer one by several jobs."""
MIN_RANGE = 10
"""Fewest pages that each of several jobs reads."""
MAX_RANGES = 20
"""Most jobs for one document: their lane holds 100 jobs, and other documents need it, too."""


class NoTextFound(PermanentError):
    """OCR has read all pages of a document, and there are no words on them."""


def pages_for_ocr(extracted: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the pages that OCR has yet to read: scans, and pages whose text can't
    be read. `extracted` is the result of `extract_text`."""
    return sorted({*extracted.get("scanned_pages", ()), *extracted.get("unreadable_pages", ())})


class OcrPdf(DocumentJob):
    """Read the pages of a document that have no text, or none that can be read; with `force`, all
    of them."""

    language: str | None = Field(default=None, pattern=patterns.LANGUAGE)
    """A code such as `de` or `ar`; None stands for any language that the package's model reads."""
    scanned: bool = False
    """Read only pages that are pictures or unreadable, of a document that has text as well. Empty
    pages are not read; nor are pages whose text can be read, even with `force`. Where no OCR is
    installed, the document goes on without the text of these pages."""
    divided: bool = False
    """Whether other jobs have read the pages: this job puts them into the document, and reads those
    that are still missing."""

    def as_payload(self) -> dict[str, Any]:
        """Return the payload of a job that does the same."""
        return self.model_dump(exclude_defaults=True)

    def pages_to_read(self, extracted: Mapping[str, Any]) -> list[int]:
        """Return the numbers of the pages to read; `extracted` is the result of `extract_text`."""
        unread = pages_for_ocr(extracted)
        if self.scanned:
            return unread
        return [
            page["page"]
            for page in extracted["pages"]
            if self.force or not page["text"] or page["page"] in unread
        ]


class OcrPages(DocumentJob):
    """Read these pages of a document, and keep their text for the job that waits for it."""

    language: str | None = Field(default=None, pattern=patterns.LANGUAGE)
    pages: list[int] = Field(min_length=1, max_length=10_000)


@job("ocr_pdf", worker="ocr", lanes=("vlm_ocr",), timeout=OCR_TIMEOUT)
@ends_when_superseded
async def ocr_pdf(payload: OcrPdf, ctx: JobContext) -> Outcome:
    """Read pages, several at once, and put their text into the document.

    Each page is stored when it is read. So it is not read again by a worker that takes over from
    one that died, or by the next job, which goes on when TIME_BUDGET is used up. The pages of a
    long document are read by jobs `ocr_pages`, as many at once as there are workers for, and put
    together by another job of this type, which waits for them.
    """
    from switchyard.services.pipeline.text.ocr import OcrNotInstalled

    document_id = payload.document_id
    files = DocumentFiles.for_document(ctx, document_id)
    async with at_stage(ctx, document_id, OCR) as stage:
        extracted = await files.output_of_async(EXTRACT)
        ingest_result = (await files.output_of_async(INGEST)).result
        page_numbers = payload.pages_to_read(extracted.result)
        try:
            reader = _PageReader(ctx, payload, files, ingest_result, extracted.content)
        except OcrNotInstalled as error:
            if not payload.scanned:
                raise
            result_without_ocr = {
                "document_id": document_id,
                "pages_left": len(page_numbers),
                "error": str(error),
            }
            return Next([_next_stage(payload, ctx)], result_without_ocr)
        if len(page_numbers) > MAX_UNDIVIDED_PAGES and not payload.divided:
            stage.continues = True
            return _divide(payload, page_numbers, ctx.message.priority)
        pages = await reader.read(page_numbers)
        result: dict[str, Any] = {"document_id": document_id, "pages_read": reader.read_count}
        if len(pages) < len(page_numbers):
            stage.continues = True
            result |= {"pages_done": len(pages), "pages": len(page_numbers)}
            return Next([Job("ocr_pdf", payload.as_payload())], result)
        output = await _insert_texts(files, extracted, ingest_result, pages)
    result |= {
        "page_count": output.result["page_count"],
        "word_count": output.result["word_count"],
        "broken_pages": output.result["broken_pages"],
    }
    return Next([_next_stage(payload, ctx)], result)


@job("ocr_pages", worker="ocr", lanes=("vlm_ocr",), timeout=OCR_TIMEOUT)
@ends_when_superseded
async def ocr_pages(payload: OcrPages, ctx: JobContext) -> Outcome:
    """Read some pages of a document. Another job reads the pages that are left when TIME_BUDGET is
    used up."""
    document_id = payload.document_id
    files = DocumentFiles.for_document(ctx, document_id)
    extracted = await files.output_of_async(EXTRACT)
    known_numbers = range(1, len(extracted.result["pages"]) + 1)
    unknown_number = next((number for number in payload.pages if number not in known_numbers), None)
    if unknown_number is not None:  # the page would be stored as one without words
        raise PermanentError(
            f"the document has {len(known_numbers):,} pages, and no page {unknown_number:,}"
        )
    ingest_result = (await files.output_of_async(INGEST)).result
    reader = _PageReader(ctx, payload, files, ingest_result, extracted.content)
    pages = await reader.read(payload.pages)
    result = {"document_id": document_id, "pages": len(pages), "pages_read": reader.read_count}
    unread = [number for number in payload.pages if number not in pages]
    if not unread:
        return Done(result)
    next_payload = payload.model_dump(exclude_none=True) | {"pages": unread}
    return Next([Job("ocr_pages", next_payload)], result)


def _divide(payload: OcrPdf, page_numbers: Sequence[int], priority: int) -> Next:
    """Return the jobs that read these pages, and the job that puts the pages together. The latter
    does not wait for dead jobs, and reads their pages itself. The priority of the jobs that read
    lets short documents go before long ones."""
    range_size = max(MIN_RANGE, ceil(len(page_numbers) / MAX_RANGES))
    shared_fields = payload.model_dump(
        include={"document_id", "force", "language"}, exclude_none=True
    )
    ranges = [
        Job(
            "ocr_pages",
            shared_fields | {"pages": list(page_numbers[start : start + range_size])},
            priority=max(0, min(priority, MAX_FIRST_STAGE_PRIORITY) - 1),
        )
        for start in range(0, len(page_numbers), range_size)
    ]
    result = {"document_id": payload.document_id, "pages": len(page_numbers), "jobs": len(ranges)}
    return Next(
        ranges,
        result,
        then=Job("ocr_pdf", payload.as_payload() | {"divided": True}),
        when_dead="go_on",
    )


def _next_stage(payload: OcrPdf, ctx: JobContext) -> Job:
    """Return the job of the next stage. A document whose priority is not above that of the backfill
    lane goes on in that lane."""
    lane = "backfill" if ctx.message.priority <= BACKFILL.default_priority else "hot"
    next_payload = {"document_id": payload.document_id, "force": payload.force}
    return Job("summarize_content", next_payload, lane=lane)


async def _insert_texts(
    files: DocumentFiles,
    extracted: StageOutput,
    ingest_result: Mapping[str, Any],
    pages: Mapping[int, Mapping[str, Any]],
) -> StageOutput:
    """Insert the texts of the pages that OCR has read into the document's text, from which the next
    stages work."""
    from switchyard.services.pipeline.text.extraction import with_ocr

    texts = {number: page["text"] for number, page in pages.items()}
    errors = {number: str(page["error"]) for number, page in pages.items() if page.get("error")}
    merged = with_ocr(
        extracted.result,
        texts,
        errors=errors,
        title=ingest_result["title"],
        filename=ingest_result["filename"],
    )
    if not merged["word_count"]:
        pages_text = "page" if merged["page_count"] == 1 else f"{merged['page_count']} pages"
        first_error = next(iter(errors.values()), "")
        reason = f"; {len(errors):,} can't be read: {first_error}" if errors else ""
        raise NoTextFound(f"OCR has found no words on the document's {pages_text}{reason}")
    return await files.replace_async(EXTRACT, extracted, merged)


class _PageReader:
    """Reads pages of one document, for one job."""

    def __init__(
        self,
        ctx: JobContext,
        payload: OcrPdf | OcrPages,
        files: DocumentFiles,
        ingest_result: Mapping[str, Any],
        content: str | None,
    ) -> None:
        from switchyard.services.pipeline.text.ocr import OCR_VERSION, require_ocr

        if ingest_result["media_type"] not in (PDF, *IMAGES):
            raise UnsupportedDocument("plain text has no pages that OCR could read")
        require_ocr(payload.language, ctx.settings.ocr_models)
        self._ctx = ctx
        self._payload = payload
        self._files = files
        self._content = content
        self._source_file = files.source_file(ingest_result, content, ctx.settings)
        self._hash = content_hash([content, OCR_VERSION, payload.language])
        self._time_budget_end = time.monotonic() + TIME_BUDGET
        self._costly_pages = 0
        self.read_count = 0
        """Number of pages that this job has read itself."""

    async def read(self, numbers: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Read the pages. Returns those that were read before the time was over, by number."""
        pages: dict[int, Mapping[str, Any]] = {}

        async def read_one(number: int) -> None:
            page = await self._stored_page(number)
            if page is None and not self._is_time_over():
                page = await self._read_and_store(number)
            if page is not None:
                pages[number] = page
                message = f"page {len(pages)} of {len(numbers)}"
                self._ctx.progress(len(pages) / len(numbers), message)

        await gather_bounded(map(read_one, numbers), at_once=self._concurrency())
        return pages

    def _concurrency(self) -> int:
        return min(self._ctx.settings.worker_concurrency, os.cpu_count() or 1)

    def _is_time_over(self) -> bool:
        return time.monotonic() > self._time_budget_end or self._ctx.is_cancelled()

    async def _stored_page(self, number: int) -> Mapping[str, Any] | None:
        """Return the page if it was read before; with `force`, only if this run has read it."""
        try:
            page = json.loads(await self._files.storage.get_async(self._key(number)))
            if page["input_hash"] == self._hash and (
                not self._payload.force or page["run"] == self._ctx.pipeline
            ):
                return dict(page)
        except NotStored:
            return None
        except (ValueError, KeyError, TypeError):  # changed by hand: the page is read again
            return None
        return None

    async def _read_and_store(self, number: int) -> Mapping[str, Any]:
        page = await self._recognise(number)
        page |= {"page": number, "input_hash": self._hash, "run": self._ctx.pipeline}
        page["content"] = self._content
        await self._files.require_content_async(self._content)
        await self._files.storage.put_async(
            self._key(number), json.dumps(page, ensure_ascii=False).encode()
        )
        self.read_count += 1
        return page

    async def _recognise(self, number: int) -> dict[str, Any]:
        """Recognise a page. If that fails, return no text and the reason, so that the other pages
        are still read."""
        from switchyard.services.pipeline.text.ocr import MEMORY_MB, OcrNotInstalled, read_page
        from switchyard.services.pipeline.text.pdf_pages import Limits

        ctx = self._ctx
        if self._costly_pages > Limits().lost_pages:
            error = f"not drawn, as {self._costly_pages} pages of the document take too long"
            return {"text": None, "error": error}
        try:
            page = await ctx.in_process(
                read_page,
                self._source_file,
                number,
                self._payload.language,
                ctx.settings.ocr_models,
                timeout=PAGE_TIMEOUT,
                memory_limit_mb=MEMORY_MB,
            )
        except OcrNotInstalled:
            raise
        except PageTooCostly as error:
            self._costly_pages += 1
            return {"text": None, "error": str(error)}
        except (TimeoutError, MemoryError, PermanentError) as error:
            return {"text": None, "error": f"{type(error).__name__}: {error}"}
        except ProcessCrashed as error:
            if ctx.attempt < ctx.message.metadata.max_attempts:
                raise  # it may have been killed from outside
            return {"text": None, "error": f"{type(error).__name__}: {error}"}
        return {
            "text": page.text,
            "certainty": page.certainty,
            "turned": page.turned,
            "lines": page.lines,
        }

    def _key(self, number: int) -> str:
        return page_key(self._files.document_id, OCR.name, number)
