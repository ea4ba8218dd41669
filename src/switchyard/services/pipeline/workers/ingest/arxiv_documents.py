"""Take in a paper of arXiv as one document for all its versions, made of its abstract or its
PDF."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from switchyard.services.common.files.errors import UnsupportedDocument
from switchyard.services.common.files.media_types import MARKDOWN, PDF
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.files.uploads import FileIdentity, identify
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Outcome
from switchyard.services.pipeline.sources.arxiv.arxiv_client import ArxivClient
from switchyard.services.pipeline.sources.arxiv.arxiv_feed import ArxivId, Entry
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse
from switchyard.services.pipeline.workers.ingest.incoming_document import (
    IncomingDocument,
    document_of_source,
    duplicate_outcome,
    extract_next,
    is_taken,
    source_lease,
)
from switchyard.services.pipeline.workers.stages import document_id_of

DOWNLOAD_TIMEOUT = 180.0
"""Seconds for the download of a PDF."""


@dataclass(frozen=True, slots=True)
class IngestedVersion:
    """The version of a paper that a document has, and whether it has the full text."""

    version: int
    full_text: bool

    def filename(self, arxiv_id: ArxivId) -> str:
        """Return the document's filename, which tells version and kind: `1605.08386v2.pdf`."""
        kind = "pdf" if self.full_text else "md"
        return f"{arxiv_id.base.replace('/', '.')}v{self.version}.{kind}"

    @classmethod
    def from_filename(cls, filename: str | None) -> IngestedVersion | None:
        """Read a filename; None when `filename` has not made it."""
        match = re.fullmatch(r".+v(\d{1,4})\.(pdf|md)", filename or "", re.ASCII)
        return cls(int(match[1]), match[2] == "pdf") if match else None


def takes_over(known: IngestedVersion | None, offered: IngestedVersion) -> bool:
    """Return whether the offered version replaces the known one: a newer version does, and so does
    the full text of the same version."""
    if known is None:
        return False
    if offered.version != known.version:
        return offered.version > known.version
    return offered.full_text and not known.full_text


async def ingest_paper(entry: Entry, ctx: JobContext, *, full_text: bool, force: bool) -> Outcome:
    """Make the paper's document, or bring it up to date, and start the pipeline.

    A version that the document has, or an older one, is a duplicate: nothing runs then, unless
    its pipeline has not come to an end. A document that was made of a PDF is made of PDFs later,
    too.
    """
    source = entry.arxiv_id.source
    known_document, claim = await document_of_source(ctx, source)
    known_version = (
        IngestedVersion.from_filename(known_document.filename) if known_document else None
    )
    wants_full_text = full_text or (known_version is not None and known_version.full_text)
    offered = IngestedVersion(
        entry.version, wants_full_text and not entry.withdrawn and entry.pdf_url is not None
    )
    is_renewal = known_document is not None and takes_over(known_version, offered)
    if known_document is not None and not is_renewal and not force:
        is_same = known_version is not None and known_version.version == offered.version
        if not is_same or await is_taken(ctx, known_document):
            return duplicate_outcome(known_document)
    data, identity = await _paper_content(entry, ctx, offered)
    incoming = IncomingDocument(
        data,
        identity,
        source=source,
        filename=offered.filename(entry.arxiv_id),
        title=entry.title[:1000],
        pipeline=ctx.pipeline,
        entry=entry.model_dump(mode="json")
        | {"withdrawn": entry.withdrawn, "full_text": offered.full_text},
    )
    document_id = document_id_of(source)
    if ctx.ledger is None:
        await incoming.store(ctx, document_id)
    else:
        async with source_lease(ctx.ledger, source):
            id_or_outcome = await incoming.take_place(ctx, ctx.ledger, known_document, claim)
        if not isinstance(id_or_outcome, str):
            return id_or_outcome
        document_id = id_or_outcome
    belongs_to_other_run = known_document is not None and known_document.pipeline != ctx.pipeline
    return extract_next(
        document_id,
        force=force,
        duplicate=belongs_to_other_run and not is_renewal and not force,
        source=source,
        version=entry.version,
        full_text=offered.full_text,
        updated=is_renewal,
    )


async def _paper_content(
    entry: Entry, ctx: JobContext, offered: IngestedVersion
) -> tuple[bytes, FileIdentity]:
    """Return the content of a paper's document: title and abstract, or the PDF. Raises what
    `_download_pdf` raises."""
    if not offered.full_text or entry.pdf_url is None:
        data = f"# {entry.title}\n\n{entry.abstract}\n".encode()
        return data, FileIdentity(content_hash(data), MARKDOWN, len(data))
    data = await _download_pdf(entry.pdf_url, ctx)
    try:
        identity = await asyncio.to_thread(identify, data, None)
    except UnsupportedDocument as error:
        raise InvalidSourceResponse(
            f"arXiv's PDF of {entry.arxiv_id} is not a PDF: {error}"
        ) from error
    if identity.media_type != PDF:  # a page that says that the PDF is still being made
        raise InvalidSourceResponse(
            f"arXiv's PDF of {entry.arxiv_id} is not a PDF: {identity.media_type}"
        )
    return data, identity


async def _download_pdf(url: str, ctx: JobContext) -> bytes:
    """Download a PDF, in turn. Raises FetchRefused, FetchFailed, SourceBusy."""
    limit = ctx.settings.max_document_bytes
    async with ArxivClient.connect(ctx.settings, ctx.ledger, lane=ctx.lane) as arxiv:
        return await arxiv.client.download(url, max_bytes=limit, timeout=DOWNLOAD_TIMEOUT)
