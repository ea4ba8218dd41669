"""Job types of the link worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import Field

from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.index.open_index import index_of
from switchyard.services.pipeline.index.similar_documents import TOP_K, similar_documents
from switchyard.services.pipeline.records.documents import COMPLETED
from switchyard.services.pipeline.workers.graph_updates import update_similarity
from switchyard.services.pipeline.workers.ocr import pages_for_ocr
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles, MissingOutput
from switchyard.services.pipeline.workers.stages import (
    CLASSIFY,
    EMBED,
    EXTRACT,
    INGEST,
    LINK,
    PROCESS_REFERENCES,
    SUMMARIZE,
    DocumentJob,
    at_stage,
    ends_when_superseded,
)


class LinkContent(DocumentJob):
    """Payload of `link_content`. A document's links change as other documents come in; `force`
    computes them again."""

    top_k: int = Field(default=TOP_K, ge=1, le=100)
    threshold: float | None = Field(default=None, ge=-1, le=1)
    """Least similarity of a link; the embedder's own where it is None."""


@job("link_content", worker="link", lanes=("hot", "maintenance"), timeout=300)
@ends_when_superseded
async def link_content(payload: LinkContent, ctx: JobContext) -> Outcome:
    """Link a document to those most like it, and write the result of the whole pipeline."""
    document_id = payload.document_id
    files = DocumentFiles.for_document(ctx, document_id)
    async with at_stage(ctx, document_id, LINK), index_of(ctx) as index:
        embedded = await files.output_of_async(EMBED)
        active = (await index.generations()).active
        threshold = payload.threshold
        if threshold is None:
            threshold = index.embedder_of(active).calibration.min_similarity

        async def find_links() -> dict[str, Any]:
            async with index.store.table(active) as table:
                links = await similar_documents(
                    table, document_id, top_k=payload.top_k, threshold=threshold
                )
            return {"links": [asdict(link) for link in links]}

        input_hash = content_hash(
            [embedded.input_hash, embedded.output_hash, payload.top_k, threshold]
        )
        output = await files.reuse_or_run_async(
            LINK, input_hash, find_links, content=embedded.content, force=payload.force
        )
        # Written although reused: result and edges are derived from the kept output.
        key = await files.put_result_async(await _document_result(files, output.result["links"]))
        await update_similarity(ctx, document_id, output.result["links"], output.content)
    result = {
        "document_id": document_id,
        "links": output.result["links"],
        "result": key,
        "reused": output.reused,
    }
    if not ctx.settings.document_references:
        return Done(result)
    next_payload = {"document_id": document_id, "force": payload.force}
    return Next([Job(PROCESS_REFERENCES.name, next_payload)], result)


async def _classes_of(files: DocumentFiles) -> list[dict[str, Any]]:
    """Return the document's classes; none for a document from before there were classes."""
    try:
        classes: list[dict[str, Any]] = (await files.output_of_async(CLASSIFY)).result["classes"]
    except MissingOutput:
        return []
    return classes


async def _document_result(files: DocumentFiles, links: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the document's `result.json`."""
    ingested = (await files.output_of_async(INGEST)).result
    extracted = (await files.output_of_async(EXTRACT)).result
    summary = (await files.output_of_async(SUMMARIZE)).result
    embedded = (await files.output_of_async(EMBED)).result
    return {
        "document_id": files.document_id,
        "state": COMPLETED,
        "title": extracted["title"],
        "source": ingested["source"],
        "filename": ingested["filename"],
        "media_type": ingested["media_type"],
        "size": ingested["size"],
        "page_count": extracted["page_count"],
        "word_count": extracted["word_count"],
        "pages_without_text": extracted["pages_without_text"],
        **_damage(extracted),
        "metadata": extracted["metadata"],
        "summary": summary,
        "chunks": embedded["chunks"],
        "embedder": embedded["embedder"],
        "classes": await _classes_of(files),
        "links": list(links),
        # Metadata that the source gives: authors, dates, ….
        **({"entry": ingested["entry"]} if "entry" in ingested else {}),
    }


def _damage(extracted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is wrong with the file, by the result of `extract_text`."""
    broken_pages = extracted.get("broken_pages", [])  # absent in outputs of an earlier version
    return {
        "repaired": extracted["repaired"],
        "broken_pages": broken_pages,
        "page_errors": extracted.get("page_errors", {}),
        "unreadable_pages": sorted({*broken_pages, *pages_for_ocr(extracted)}),
    }
