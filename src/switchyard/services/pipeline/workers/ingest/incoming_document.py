"""Take a document in: record it, keep its original, and start its pipeline.

What counts as the same document, and which content replaces which, depends on its kind: for a file,
its content decides (`documents`), for a paper, its source and version (`arxiv_documents`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchyard.services.common.files.storage_keys import content_hash, upload_key
from switchyard.services.common.files.uploads import FileIdentity
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Snooze
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import FINISHED_STATES
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles
from switchyard.services.pipeline.workers.stages import (
    EXTRACT,
    INGEST,
    at_stage,
    document_id_of,
    note_stage,
)

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.pipeline.records.documents import Document


RECHECK_INTERVAL = 1.0
"""Seconds until a job tries again to take in a document that another job is taking in."""


@dataclass(frozen=True, slots=True)
class IncomingDocument:
    """A document to be taken in: its bytes and its metadata."""

    data: bytes
    identity: FileIdentity
    source: str | None
    filename: str | None
    title: str | None
    pipeline: str
    """Id of the pipeline run that takes it in."""
    entry: Mapping[str, Any] | None = None
    """The metadata that its source gives, for its `result.json`."""

    async def upsert(
        self, ledger: Ledger, document_id: str, *, instead_of: Document | None = None
    ) -> tuple[Document, bool]:
        """Return the document with this content or source, or make one with that id; and return
        whether it was made."""
        return await PipelineLedger(ledger).documents.upsert_document(
            self.identity.sha256,
            source=self.source,
            document_id=document_id,
            instead_of=instead_of,
            **self._description(),
        )

    async def place(self, ctx: JobContext, claim: Document | None) -> Document | None:
        """Record the document of a source that has delivered it, in place of a `claim` to that
        source: a claim with other content loses the source, one with the same content becomes this
        document.

        Returns the document of another source where it has this very content, and None when another
        job was faster.
        """
        if ctx.ledger is None or self.source is None:
            raise ValueError("a source's document needs the ledger and the source")
        document_id = document_id_of(self.source)
        document, created = await self.upsert(ctx.ledger, document_id, instead_of=claim)
        if created or document.source != self.source:
            return document
        if not is_claim(document):
            return None
        present_fields = (document.filename, document.title, document.source)
        if present_fields == (self.filename, self.title, self.source) and await is_taken(
            ctx, document
        ):
            return document
        return await self.renew(ctx.ledger, document)

    async def renew(self, ledger: Ledger, document: Document) -> Document | None:
        """Give a document this content. Returns None when another run has taken it over since it
        was read."""
        return await PipelineLedger(ledger).documents.renew_document(
            document, self.identity.sha256, source=self.source, **self._description()
        )

    async def take_place(
        self, ctx: JobContext, ledger: Ledger, known: Document | None, claim: Document | None
    ) -> str | Done | Snooze:
        """Renew the `known` document of the source, or make it in place of a `claim`; then run the
        first stage. The caller holds the source's lease (`source_lease`) meanwhile.

        Returns the document's id; or the job's outcome where no stage is to follow.
        """
        if known is not None:
            document = await self.renew(ledger, known)
        else:
            document = await self.place(ctx, claim)
            if document is not None and document.pipeline != ctx.pipeline:
                return duplicate_outcome(document)
        if document is None:  # another job was faster, perhaps with an older version
            return taken_by_another(self.source)
        await self.store(ctx, document.id)
        return document.id

    def _description(self) -> dict[str, Any]:
        return {
            "filename": self.filename,
            "title": self.title,
            "media_type": self.identity.media_type,
            "size_bytes": self.identity.size,
            "pipeline": self.pipeline,
        }

    async def store(self, ctx: JobContext, document_id: str) -> None:
        """Run the first stage: keep the original and its metadata for the stages that follow."""
        files = DocumentFiles.for_document(ctx, document_id)
        async with at_stage(ctx, document_id, INGEST):
            key = upload_key(document_id, self.identity.media_type)
            await files.storage.put_async(key, self.data)
            result = {
                "key": key,
                "media_type": self.identity.media_type,
                "size": self.identity.size,
                "title": self.title,
                "filename": self.filename,
                "source": self.source,
            }
            if self.entry is not None:
                result["entry"] = self.entry

            async def first_stage_result() -> Mapping[str, Any]:
                return result

            input_hash = content_hash([self.identity.sha256, result])
            # Written although it may be there: no job names the document yet, so the cleanup could
            # delete an old output before the next stage reads it.
            await files.reuse_or_run_async(
                INGEST, input_hash, first_stage_result, content=None, force=True
            )
        await note_stage(ctx, document_id, EXTRACT, "queued")


async def document_of_source(
    ctx: JobContext, source: str
) -> tuple[Document | None, Document | None]:
    """Return the document that was taken in from a source, and the one that claims the source; one
    of them is None."""
    if ctx.ledger is None:
        return None, None
    page = await PipelineLedger(ctx.ledger).documents.list_documents(source=source, limit=1)
    if not page.items:
        return None, None
    document = page.items[0]
    return (None, document) if is_claim(document) else (document, None)


def is_claim(document: Document) -> bool:
    """Return whether a document is of its source only by its sender's word. A document that was
    taken in from the source has an id made of the source; an upload's id is made of its content."""
    return document.source is None or document.id != document_id_of(document.source)


async def is_taken(ctx: JobContext, document: Document) -> bool:
    """Return whether the document is finished, or a job of another run will still work on it."""
    from switchyard.services.engine.records.states import FINISHED

    if document.state in FINISHED_STATES:
        return True
    if ctx.ledger is None or document.pipeline in (None, ctx.pipeline):
        return False
    jobs = await ctx.ledger.job_reads.pipeline(document.pipeline)
    return any(job.state not in FINISHED for job in jobs)


def source_lease(ledger: Ledger, source: str) -> AbstractAsyncContextManager[None]:
    """Hold the lease of a source, so that its documents are taken in one at a time: otherwise the
    files of one version could end up with the record of another."""
    return ledger.leases.holding_lease(f"document {document_id_of(source)}")


def taken_by_another(source: str | None) -> Snooze:
    """Return the outcome of a job whose source another job is taking in: it tries again soon."""
    return Snooze(RECHECK_INTERVAL, f"{source} is being taken in by another job")


def duplicate_outcome(document: Document) -> Done:
    """Return the outcome for a document that exists already, with this content or source."""
    return Done({"document_id": document.id, "duplicate": True, "state": document.state})


def extract_next(document_id: str, *, force: bool, duplicate: bool, **details: Any) -> Next:
    """Return the outcome of a job that has taken a document in, with further `details` for its
    result."""
    next_payload = {"document_id": document_id} | ({"force": True} if force else {})
    result = {"document_id": document_id, "duplicate": duplicate, **details}
    return Next([Job(EXTRACT.name, next_payload)], result)
