"""Update the graph with what a document's stages have found; nothing else does.

Updates write what is stored, so a stage that is repeated, or killed on the way, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.pipeline.citations.stored_references import stored_references
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.workers.stage_outputs import (
    DocumentFiles,
    MissingOutput,
)
from switchyard.services.pipeline.workers.stages import EXTRACT, INGEST


async def update_similarity(
    ctx: JobContext, document_id: str, links: Sequence[Mapping[str, Any]], content: str | None
) -> None:
    """Write into the graph which documents a document with that content is similar to."""
    files = DocumentFiles.for_document(ctx, document_id)
    references = await stored_references(files.storage, document_id)
    # The references are of earlier content, and this one may cite other works:
    # `process_references` will write them.
    is_stale = references is not None and references.get("content") not in (None, content)
    await _upsert(ctx, files, links=links, references={} if is_stale else None)


async def update_citations(ctx: JobContext, document_id: str) -> None:
    """Write into the graph what a document cites, by its stored references and the works they are
    linked to. Raises ContentReplaced where these are of another content than the document's."""
    files = DocumentFiles.for_document(ctx, document_id)
    references = await stored_references(files.storage, document_id)
    if references is not None:
        await files.require_content_async(references.get("content"))
    await _upsert(ctx, files, references=references)


async def _upsert(ctx: JobContext, files: DocumentFiles, **edges: Any) -> None:
    if ctx.ledger is None:
        return
    from switchyard.services.pipeline.graph.upserts import upsert_document

    metadata, title = await _read_metadata(files)
    if not metadata:
        document = await PipelineLedger(ctx.ledger).documents.get_document(files.document_id)
        if document is not None:
            metadata, title = {"source": document.source}, document.title
    await upsert_document(ctx.ledger, files.document_id, metadata, title or "", **edges)


async def _read_metadata(files: DocumentFiles) -> tuple[Mapping[str, Any], str | None]:
    """Return the metadata that a document's source gives, and its title; from its result where the
    stages' outputs were deleted."""
    try:
        metadata = (await files.output_of_async(INGEST)).result
        return metadata, (await files.output_of_async(EXTRACT)).result["title"]
    except MissingOutput:
        result = await files.storage.get_json_async(result_key(files.document_id)) or {}
        return result, result.get("title")
