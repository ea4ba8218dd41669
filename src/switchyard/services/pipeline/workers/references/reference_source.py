"""Read the text that a job's references are in: of a document, of the payload, or of an upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.media_types import PDF
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash, job_folder
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.pipeline.text.plain_text import clean
from switchyard.services.pipeline.workers.references.payloads import FindReferences, ParseReferences
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles, StageOutput, drafts_of
from switchyard.services.pipeline.workers.stages import EXTRACT, INGEST

READING_TIMEOUT = 120.0
"""Seconds that reading a file may take."""
MEMORY_MB = 2048


class NoText(PermanentError):
    """The file has no text, but consists of pictures."""


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """The text in which references are, and the files of the job's stages."""

    files: DocumentFiles
    text: StageOutput

    @property
    def pages(self) -> list[str]:
        return [page["text"] for page in self.text.result["pages"]]


def files_of(payload: FindReferences | ParseReferences, ctx: JobContext) -> DocumentFiles:
    """Return the files of the job's stages: the document's, else files under the job's id."""
    document_id = payload.document_id if isinstance(payload, FindReferences) else None
    return DocumentFiles.for_document(ctx, document_id or job_folder(ctx.job_id))


async def source_of(payload: FindReferences | ParseReferences, ctx: JobContext) -> ReferenceSource:
    """Read the text in which the job's references stand. Raises NoText, MissingOutput,
    ContentReplaced, and what reading a file raises."""
    files = files_of(payload, ctx)
    if isinstance(payload, FindReferences) and payload.document_id is not None:
        return ReferenceSource(files, await files.output_of_async(EXTRACT))

    async def read_text() -> Mapping[str, Any]:
        if payload.text is not None:
            return {"pages": [{"page": 1, "text": clean(payload.text)}]}
        extracted: Mapping[str, Any] = await ctx.in_process(
            read_file,
            ctx.settings.files_url,
            payload.key,
            payload.filename,
            ctx.settings.pdf_extractor,
            job_folder(ctx.job_id),
            timeout=READING_TIMEOUT,
            memory_limit_mb=MEMORY_MB,
        )
        return extracted

    input_hash = content_hash([payload.key, payload.text, ctx.settings.pdf_extractor])
    text = await files.reuse_or_run_async(EXTRACT, input_hash, read_text, content=None)
    if text.result.get("needs_ocr"):
        raise NoText(
            "the file consists of pictures, whose text is only read for documents: send it as one "
            "(POST /documents, `jobctl documents upload FILE --wait`), then publish "
            "hot.process_references with its document_id"
        )
    return ReferenceSource(files, text)


def read_file(
    files_url: str, key: str, filename: str | None, extractor: Any, folder: str
) -> Mapping[str, Any]:
    """Read the text of an upload; runs in a process that can be killed. The lines of its pages are
    kept below `folder`, for `boxes_in_pdf`. Raises PermanentError."""
    from switchyard.services.common.files.uploads import identify
    from switchyard.services.pipeline.text.extraction import extract

    storage = Storage(files_url)
    try:
        data = storage.get(key)
    except NotStored as error:
        raise PermanentError(f"the upload {key!r} is gone: send it again") from error
    media_type = identify(data, filename).media_type
    drafts = drafts_of(storage, folder, key, extractor, keep_short=True)
    return extract(
        data, media_type, title=None, filename=filename, extractor=extractor, drafts=drafts
    )


async def pdf_key_of(source: ReferenceSource, payload: FindReferences) -> str | None:
    """Return the key of the PDF in which the references are; None where the file is no PDF, or was
    deleted."""
    if source.text.result.get("media_type") != PDF:
        return None
    key = payload.key
    if payload.document_id is not None:
        key = str((await source.files.output_of_async(INGEST)).result["key"])
    is_stored = key is not None and await source.files.storage.exists_async(key)
    return key if is_stored else None


def boxes_in_pdf(
    files_url: str,
    key: str,
    extractor: Any,
    folder: str,
    content: str | None,
    references: Sequence[tuple[int, str]],
) -> list[list[dict[str, Any]]]:
    """Return the boxes of each reference (page and text) in a PDF; runs in a process that can be
    killed. Pages whose lines were kept when the text was read are not read again: `content`
    identifies the content that they were read from."""
    from switchyard.services.pipeline.citations.reference_boxes import boxes_of
    from switchyard.services.pipeline.text.pdf import read_pages
    from switchyard.services.pipeline.text.pdf_pages import Limits

    storage = Storage(files_url)
    drafts = drafts_of(storage, folder, content, extractor, keep_short=True)
    pdf = read_pages(storage.get(key), Limits(), extractor, drafts=drafts)
    drafts.delete()
    return [[asdict(box) for box in boxes] for boxes in boxes_of(pdf.pages, references)]
