"""The stages of the document pipeline: their names, and their records in the ledger.

ingest_document → extract_text (→ ocr_pdf) → summarize_content → embed_content →
classify_document → link_content

Each stage's handler names the next stage in its outcome. The output of each, and when it is used
again, is in `stage_outputs`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Protocol, TypeVar
from uuid import UUID, uuid5

from pydantic import Field

from switchyard.broker import patterns
from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import (
    COMPLETED,
    FAILED,
    FINISHED_STATES,
    NEEDS_OCR,
)
from switchyard.services.pipeline.records.strict_model import StrictModel

_DOCUMENT_NAMESPACE = UUID("5d3f6c0e-3a0b-5f7e-8c55-0a7b6a1f4c21")

DocumentId = Annotated[str, Field(pattern=patterns.DOCUMENT_ID)]


class DocumentJob(StrictModel):
    """Payload of every stage after the first: all other input is in the stages' outputs."""

    document_id: DocumentId
    force: bool = False
    """Run the stage, and those after it, again even if their outputs are stored. LLM answers that
    were paid for are still reused."""


class _NamesDocument(Protocol):
    """A payload that may name a document."""

    @property
    def document_id(self) -> str | None: ...


PayloadT = TypeVar("PayloadT", bound=_NamesDocument)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the pipeline, named like its job type."""

    name: str
    state: str
    """The document's state while the stage is under way."""
    waiting: str | None = None
    """The document's state while the stage's job waits for a worker; None means `state`."""
    version: int = 1
    """To be raised when the stage's code makes another output from the same input."""


INGEST = Stage("ingest_document", "storing")
EXTRACT = Stage("extract_text", "extracting", version=9)
OCR = Stage("ocr_pdf", "recognizing", waiting=NEEDS_OCR)
SUMMARIZE = Stage("summarize_content", "summarizing")
EMBED = Stage("embed_content", "embedding")
CLASSIFY = Stage("classify_document", "classifying")
LINK = Stage("link_content", "linking")
EXTRACT_REFERENCES = Stage("extract_references", "extracting references", version=3)
PARSE_REFERENCES = Stage("parse_references", "parsing references")
DESCRIBE_FIGURES = Stage("describe_figures", "describing figures")
LINK_CITATIONS = Stage("link_citations", "linking citations")
PROCESS_REFERENCES = Stage("process_references", "processing references")
"""The last five stages run beside the pipeline: no document waits for them, and they are never a
document's state."""

REFERENCE_STAGES = {
    EXTRACT_REFERENCES.name: (EXTRACT, EXTRACT_REFERENCES),
    PARSE_REFERENCES.name: (EXTRACT, PARSE_REFERENCES),
    PROCESS_REFERENCES.name: (EXTRACT, EXTRACT_REFERENCES, PARSE_REFERENCES),
}
"""The stages within one job, by its type, each with an output of its own."""

PIPELINE = (INGEST, EXTRACT, OCR, SUMMARIZE, EMBED, CLASSIFY, LINK)
"""All stages in their order; most documents need no OCR."""


PART_JOB_TYPES = {"ocr_pages": OCR}
"""Stages by the job types that do a part of them. A job of the stage waits for these jobs, and does
the parts of those that died."""


class ContentReplaced(Exception):
    """The document got other content meanwhile; the run that brought that content runs all
    stages."""


def superseded_outcome(document_id: str | None) -> Done:
    """Return the outcome of a stage whose run has been superseded."""
    return Done({"document_id": document_id or "", "superseded": True})


def ends_when_superseded(
    handler: Callable[[PayloadT, JobContext], Awaitable[Outcome]],
) -> Callable[[PayloadT, JobContext], Awaitable[Outcome]]:
    """Wrap a handler so that ContentReplaced ends its job as done, without a next stage."""

    @wraps(handler)
    async def handle(payload: PayloadT, ctx: JobContext) -> Outcome:
        try:
            return await handler(payload, ctx)
        except ContentReplaced:
            return superseded_outcome(payload.document_id)

    return handle


def document_id_of(sha256: str) -> str:
    """Return the id of the document with this content: the same on every machine."""
    return str(uuid5(_DOCUMENT_NAMESPACE, sha256))


@dataclass(slots=True)
class AtStage:
    """A job at a stage."""

    continues: bool = False
    """Whether the stage is not done yet, and another job goes on with it."""


@asynccontextmanager
async def at_stage(ctx: JobContext, document_id: str, stage: Stage) -> AsyncIterator[AtStage]:
    """Record in the ledger that the document is at this stage, and how the stage ended.

    A stage that fails for good leaves the document `failed`, at that stage; a redrive goes on from
    there. Without a ledger nothing is recorded.
    """
    await note_stage(ctx, document_id, stage, stage.state)
    job_at_stage = AtStage()
    try:
        yield job_at_stage
    except ContentReplaced:
        raise
    except Exception as error:
        is_last_attempt = ctx.attempt >= ctx.message.metadata.max_attempts
        counts_as_attempt = not isinstance(error, RetryableError) or error.counts
        if isinstance(error, PermanentError) or (is_last_attempt and counts_as_attempt):
            await note_stage(ctx, document_id, stage, FAILED)
        raise
    if job_at_stage.continues:
        return
    is_last_stage = stage is PIPELINE[-1]
    await note_stage(
        ctx, document_id, stage, COMPLETED if is_last_stage else stage.state, completed=True
    )


async def note_stage(
    ctx: JobContext, document_id: str, stage: Stage, state: str, *, completed: bool = False
) -> None:
    """Set the document's stage and state in the ledger, where there is one.

    A job of a run other than the document's own may only finish the document. So a document stays
    finished while one of its stages is run again, even if that fails.
    """
    if ctx.ledger is not None:
        await PipelineLedger(ctx.ledger).documents.set_stage(
            document_id,
            stage.name,
            state,
            completed=completed,
            run_id=None if state in FINISHED_STATES else ctx.pipeline,
        )


async def note_completed_stage(ctx: JobContext, document_id: str, stage: Stage) -> None:
    """Add a stage that runs beside the pipeline to the document's completed stages. The document's
    state does not change."""
    if ctx.ledger is not None:
        await PipelineLedger(ctx.ledger).documents.add_completed_stage(document_id, stage.name)
