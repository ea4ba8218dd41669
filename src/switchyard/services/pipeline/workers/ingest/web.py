"""Job type `ingest_url`: take in a web page, or a file behind an address."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.charset_choice import choose_charset
from switchyard.services.common.files.charsets import Charset, charset_of
from switchyard.services.common.files.errors import NotStored, UnsupportedDocument
from switchyard.services.common.files.media_types import (
    IMAGES,
    PDF,
    SNIFF_BYTES,
    decode_text,
    media_type_of,
    refuse_unsupported,
    text_as_utf8,
)
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.document_source import FoundDocument
from switchyard.services.pipeline.sources.source_errors import SourceBusy
from switchyard.services.pipeline.sources.source_response import VALIDATORS, conditional_headers
from switchyard.services.pipeline.sources.web.web_addresses import page_address
from switchyard.services.pipeline.sources.web.web_fetcher import FetchedPage, WebFetcher
from switchyard.services.pipeline.text.web_page_text import MEMORY_MB, TIMEOUT, WebText, read_page
from switchyard.services.pipeline.workers.ingest.incoming_document import (
    document_of_source,
    duplicate_outcome,
    is_taken,
)
from switchyard.services.pipeline.workers.ingest.source_jobs import ingest_found, snooze_for_turn

SOURCE = "url:"
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|meta|p|div)\b", re.IGNORECASE)


class IngestUrl(StrictModel):
    """Payload of `ingest_url`."""

    url: Annotated[str, AfterValidator(page_address)] = Field(min_length=1, max_length=2000)
    force: bool = False
    """Run the stages again although the page has not changed."""


class UnreadablePage(PermanentError):
    """The page has no readable text."""


@job("ingest_url", worker="ingest", lanes=("hot", "backfill"), timeout=300)
async def ingest_url(payload: IngestUrl, ctx: JobContext) -> Outcome:
    """Take in what is at an address, if its robots.txt allows it: the readable text of a page, a
    PDF, an image or a text. Each address is one document, `url:ADDRESS`, which is renewed when the
    page has changed."""
    asked_at = ctx.ledger.clock.time() if ctx.ledger is not None else 0.0
    validators = PageValidators(ctx, payload.url)
    try:
        conditions = {} if payload.force else await validators.conditional_headers()
        page = await WebFetcher(ctx).visit(payload.url, conditions)
    except SourceBusy as busy:
        return snooze_for_turn(busy, ctx)
    if page.status == 304:
        known, _ = await document_of_source(ctx, f"{SOURCE}{payload.url}")
        if known is not None and await is_taken(ctx, known):
            return duplicate_outcome(known)
        try:
            page = await WebFetcher(ctx).visit(payload.url)
        except SourceBusy as busy:
            return snooze_for_turn(busy, ctx)
    document, _ = await document_on_page(page, payload.url, ctx)
    if document is None:
        raise UnreadablePage(f"there is no readable text at {payload.url[:300]}")
    outcome = await ingest_found(
        document, f"{SOURCE}{payload.url}", ctx, asked_at=asked_at, force=payload.force
    )
    await validators.keep(page)
    return outcome


async def document_on_page(
    page: FetchedPage, url: str, ctx: JobContext
) -> tuple[FoundDocument | None, WebText | None]:
    """Return a page as a document, None where nothing is readable; and its text, where it is HTML.
    Raises UnsupportedDocument, TimeoutError, MemoryError, ProcessCrashed."""
    content_type = page.headers.get("content-type", "").lower()
    charset = charset_of(content_type)
    if not is_html(page.body, content_type):
        # Decoding takes seconds where the file is as large as any document.
        return await asyncio.to_thread(_file_on_page, page, url, charset), None
    metadata: dict[str, Any] = {"url": page.url}
    page_text = await ctx.in_process(
        read_page,
        page.body,
        page.url,
        charset.name if charset else None,
        timeout=TIMEOUT,
        memory_limit_mb=MEMORY_MB,
    )
    metadata |= {
        name: value[:300]
        for name in ("author", "date", "language")
        if (value := getattr(page_text, name)) is not None
    }
    if not page_text.text.strip():
        return None, page_text
    title = page_text.title[:1000] or url[:1000]
    heading = "" if page_text.text.lstrip().startswith("# ") else f"# {title}\n\n"
    text = f"{heading}{page_text.text.strip()}\n"
    return FoundDocument(id=url, title=title, text=text, metadata=metadata), page_text


def _file_on_page(page: FetchedPage, url: str, charset: Charset | None) -> FoundDocument:
    metadata = {"url": page.url}
    body = text_as_utf8(page.body, choose_charset(page.body, [charset]))
    media_type = media_type_of(body, None)
    name = page.url.rsplit("/", 1)[-1].partition("?")[0][:200] or page.url[:200]
    if media_type == PDF or media_type in IMAGES:
        return FoundDocument(id=url, title=name, data=page.body, metadata=metadata)
    return FoundDocument(id=url, title=name, text=decode_text(body), metadata=metadata)


def is_html(body: bytes, content_type: str) -> bool:
    """Return whether the body is a web page. Its content decides; where that could be other text,
    too, the content type does."""
    try:
        refuse_unsupported(body[:SNIFF_BYTES])
    except UnsupportedDocument:
        return _HTML.search(body[:SNIFF_BYTES]) is not None or "html" in content_type
    return "html" in content_type and b"%PDF-" not in body[:1024]


class PageValidators:
    """The ETag or date of a page, kept in the storage to ask whether it has changed."""

    def __init__(self, ctx: JobContext, url: str) -> None:
        self._storage = Storage(ctx.settings.files_url)
        self._key = f"sources/web/{content_hash(url.encode())}"

    async def conditional_headers(self) -> dict[str, str]:
        """Return the headers that ask for a changed page only."""
        try:
            return conditional_headers(json.loads(await self._storage.get_async(self._key)))
        except (NotStored, ValueError, AttributeError):  # deleted, or changed by hand
            return {}

    async def keep(self, page: FetchedPage) -> None:
        validators = {name: page.headers[name] for name in VALIDATORS if name in page.headers}
        if validators:
            await self._storage.put_async(self._key, json.dumps(validators).encode())
