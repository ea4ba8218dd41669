"""Job types of the ingest worker that take in documents and extract their text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from switchyard.broker import patterns
from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash, extraction_key, job_folder
from switchyard.services.common.files.uploads import identify, read_path, read_upload
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.local_fields import LocalOnly
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.records.requests import MAX_SOURCE, checked_source
from switchyard.services.pipeline.records.documents import NEEDS_OCR
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.workers.ingest.incoming_document import (
    IncomingDocument,
    duplicate_outcome,
    extract_next,
    is_claim,
    is_taken,
)
from switchyard.services.pipeline.workers.ocr import pages_for_ocr
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles, drafts_of
from switchyard.services.pipeline.workers.stages import (
    EXTRACT,
    INGEST,
    OCR,
    ContentReplaced,
    DocumentId,
    DocumentJob,
    document_id_of,
    ends_when_superseded,
    note_stage,
    superseded_outcome,
)

_SEND_DOCUMENT = "send the file to POST /documents"
_SEND_TEXT = "send the file to POST /extract/text"


class IngestDocument(StrictModel):
    """A file to take in: the `key` of an upload in storage, or a `path` on the worker's machine."""

    path: Annotated[str | None, LocalOnly(_SEND_DOCUMENT)] = Field(
        default=None, min_length=1, max_length=4096
    )
    key: Annotated[str | None, LocalOnly(_SEND_DOCUMENT)] = Field(
        default=None, pattern=patterns.INCOMING_KEY
    )
    source: Annotated[str, AfterValidator(checked_source)] | None = Field(
        default=None, min_length=1, max_length=MAX_SOURCE
    )
    """Where the file comes from, for example its address. Files of one source are the same
    document, whatever their content."""
    title: str | None = Field(default=None, max_length=1000)
    filename: str | None = Field(default=None, max_length=1000)
    """The file's name, for display and to tell Markdown from plain text."""
    force: bool = False
    """Run the stages again although the document is finished."""

    @model_validator(mode="after")
    def _check_one_given(self) -> IngestDocument:
        if (self.path is None) == (self.key is None):
            raise ValueError("give either path or key")
        return self


@job("ingest_document", worker="ingest", lanes=("hot", "backfill"), timeout=120)
async def ingest_document(payload: IngestDocument, ctx: JobContext) -> Outcome:
    """Check a file, keep it under its document's id, and start the pipeline.

    A file with the content or the source of an existing document is a duplicate: nothing runs then,
    unless that document's pipeline has stopped before its end. In that case the same content goes
    on under its id, and other content from its source becomes a document of its own, which takes
    over the source.
    """
    storage = Storage(ctx.settings.files_url)
    filename = (
        payload.filename or (payload.path or "").replace("\\", "/").rpartition("/")[2] or None
    )
    if payload.key is not None:
        max_bytes = ctx.settings.max_document_bytes
        data = await read_upload(storage, payload.key, max_bytes=max_bytes)
    else:
        data = await asyncio.to_thread(
            read_path,
            payload.path or "",
            max_bytes=ctx.settings.max_document_bytes,
            below=ctx.settings.ingest_paths,
        )
    identity = await asyncio.to_thread(identify, data, filename)
    incoming = IncomingDocument(
        data,
        identity,
        source=payload.source,
        filename=filename,
        title=payload.title,
        pipeline=ctx.pipeline,
    )
    document_id, duplicate = document_id_of(identity.sha256), False
    if ctx.ledger is not None:
        document, created = await incoming.upsert(ctx.ledger, document_id)
        if document.content_hash != identity.sha256:
            if await is_taken(ctx, document):
                return duplicate_outcome(document)
            earlier_claim = document if is_claim(document) else None
            if earlier_claim is None:  # the source keeps its own document, although that has failed
                incoming = replace(incoming, source=None)
            document, created = await incoming.upsert(
                ctx.ledger, document_id, instead_of=earlier_claim
            )
            if not created:
                return duplicate_outcome(document)
        elif not created:
            if not payload.force and await is_taken(ctx, document):
                return duplicate_outcome(document)
            # A redelivery finds the document that it made itself.
            duplicate = document.pipeline != ctx.pipeline
            is_paper = document.id != document_id  # its filename says its version
            incoming = replace(
                incoming,
                filename=document.filename if is_paper else filename or document.filename,
                title=document.title if is_paper else payload.title or document.title,
            )
            if duplicate:
                renewed_document = await incoming.renew(ctx.ledger, document)
                if renewed_document is None:
                    return duplicate_outcome(document)
                document = renewed_document
            document_id, incoming = document.id, replace(incoming, source=document.source)
    await incoming.store(ctx, document_id)
    return extract_next(document_id, force=payload.force, duplicate=duplicate)


class ExtractText(StrictModel):
    """Payload of `extract_text`: a document, or the `key` of an upload whose text alone is
    wanted."""

    document_id: DocumentId | None = None
    force: bool = False
    """As in DocumentJob."""
    key: Annotated[str | None, LocalOnly(_SEND_TEXT)] = Field(
        default=None, pattern=patterns.INCOMING_KEY
    )
    title: str | None = Field(default=None, max_length=1000)
    filename: str | None = Field(default=None, max_length=1000)

    @model_validator(mode="after")
    def _check_one_given(self) -> ExtractText:
        if (self.document_id is None) == (self.key is None):
            raise ValueError("give either document_id or key")
        return self


@job(
    "extract_text",
    worker="ingest",
    lanes=("hot", "backfill"),
    timeout=120,
    isolation="process",
    memory_limit_mb=2048,
    cpu_limit=60,  # 2,000 pages of text take a tenth of it
)
def extract_text(payload: ExtractText, ctx: JobContext) -> Outcome:
    """Extract the text of a document, page by page. Documents of images go to OCR, and so do pages
    of other documents that are pictures.

    For an upload, the text is stored as the job's result, and no other job follows. Pages of a long
    document that were read before a process died are not read again.
    """
    from switchyard.services.pipeline.text.extraction import extract

    if payload.document_id is None:
        return _extract_upload(payload, ctx)
    next_payload = {"document_id": payload.document_id, "force": payload.force}
    files = DocumentFiles.for_document(ctx, payload.document_id)
    original = files.output_of(INGEST)
    ingested = original.result

    extractor = ctx.settings.pdf_extractor
    input_hash = content_hash(
        [original.input_hash, ingested["title"], ingested["filename"], extractor]
    )
    keeps_drafts = ctx.settings.document_references
    drafts = drafts_of(
        files.storage,
        payload.document_id,
        original.content,
        extractor,
        keep_short=keeps_drafts,
        run=ctx.pipeline if payload.force else "",
    )

    def extract_pages() -> dict[str, Any]:
        return extract(
            files.storage.get(ingested["key"]),
            ingested["media_type"],
            title=ingested["title"],
            filename=ingested["filename"],
            extractor=extractor,
            drafts=drafts,
            on_page=_page_progress(ctx),
        )

    try:
        output = files.reuse_or_run(
            EXTRACT, input_hash, extract_pages, content=original.content, force=payload.force
        )
    except ContentReplaced:
        return superseded_outcome(payload.document_id)
    if not keeps_drafts:
        drafts.delete()
    needs_ocr = output.result["needs_ocr"]
    result = {
        "document_id": payload.document_id,
        "title": output.result["title"],
        "page_count": output.result["page_count"],
        "pages_read": 0 if output.reused else output.result["page_count"] - drafts.reused_pages,
        "word_count": output.result["word_count"],
        "needs_ocr": needs_ocr,
        "reused": output.reused,
    }
    scanned = pages_for_ocr(output.result) if ctx.settings.ocr_scanned_pages else []
    if needs_ocr:
        next_job = Job("await_ocr", next_payload)
    elif scanned:
        result["scanned_pages"] = len(scanned)
        next_job = Job("await_ocr", next_payload | {"scanned": True})
    else:
        next_job = Job("summarize_content", next_payload)
    return Next([next_job], result)


def _page_progress(ctx: JobContext) -> Callable[[int, int], None]:
    return lambda number, count: ctx.progress(number / count, f"page {number} of {count}")


def _extract_upload(payload: ExtractText, ctx: JobContext) -> Done:
    """Extract the text of an upload that becomes no document."""
    from switchyard.services.pipeline.text.extraction import extract

    storage = Storage(ctx.settings.files_url)
    try:
        data = storage.get(payload.key or "")
    except NotStored as error:
        raise PermanentError(f"the upload {payload.key!r} is gone: send it again") from error
    identity = identify(data, payload.filename)
    extractor = ctx.settings.pdf_extractor
    folder = job_folder(ctx.job_id)
    drafts = drafts_of(storage, folder, identity.sha256, extractor, keep_short=False)
    text = extract(
        data,
        identity.media_type,
        title=payload.title,
        filename=payload.filename,
        extractor=extractor,
        drafts=drafts,
        on_page=_page_progress(ctx),
    )
    key = extraction_key(ctx.job_id)
    storage.put(key, json.dumps({"job_id": ctx.job_id, **text}, ensure_ascii=False).encode())
    drafts.delete()
    names = ("title", "page_count", "word_count", "needs_ocr")
    result = {name: text[name] for name in names}
    return Done(result | {"pages_read": text["page_count"] - drafts.reused_pages, "result": key})


class AwaitOcr(DocumentJob):
    """Payload of `await_ocr`."""

    scanned: bool = False
    """As in OcrPdf."""


@job("await_ocr", worker="ingest", lanes=("hot", "backfill"), timeout=60)
@ends_when_superseded
async def await_ocr(payload: AwaitOcr, ctx: JobContext) -> Outcome:
    """Send a document to OCR that has no text, or pages without text, and record that it waits.

    A job of its own because `extract_text` runs in a process that has no ledger.
    """
    await note_stage(ctx, payload.document_id, EXTRACT, NEEDS_OCR, completed=True)
    next_job = Job(OCR.name, payload.model_dump(exclude_defaults=True), lane="vlm_ocr")
    return Next([next_job], {"document_id": payload.document_id, "state": NEEDS_OCR})
