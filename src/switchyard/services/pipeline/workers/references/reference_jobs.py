"""Define the job types on references. Each job has stages of its own, whose outputs are stored, so
that another attempt goes on where an earlier one stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.storage_keys import (
    content_hash,
    extraction_key,
    references_key,
)
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.sources.source_errors import SourceRefused
from switchyard.services.pipeline.workers.graph_updates import update_citations
from switchyard.services.pipeline.workers.references import reference_lists
from switchyard.services.pipeline.workers.references.payloads import FindReferences, ParseReferences
from switchyard.services.pipeline.workers.references.reference_source import (
    MEMORY_MB,
    READING_TIMEOUT,
    ReferenceSource,
    boxes_in_pdf,
    pdf_key_of,
    source_of,
)
from switchyard.services.pipeline.workers.stage_outputs import StageOutput, store_json
from switchyard.services.pipeline.workers.stages import (
    EXTRACT_REFERENCES,
    LINK_CITATIONS,
    PARSE_REFERENCES,
    PROCESS_REFERENCES,
    ends_when_superseded,
    note_completed_stage,
)

LANES = ("hot", "maintenance")


@job("extract_references", worker="link", lanes=LANES, timeout=300)
@ends_when_superseded
async def extract_references(payload: FindReferences, ctx: JobContext) -> Outcome:
    """Find the references of a document, a text or an upload, and cut the list into single
    references; each keeps its label and its page."""
    source = await source_of(payload, ctx)
    found_output = await _find_references(source, payload, ctx)
    references = found_output.result["references"]
    return await _store_result(source, ctx, {"references": references}, reused=found_output.reused)


@job("parse_references", worker="link", lanes=LANES, timeout=300)
async def parse_references(payload: ParseReferences, ctx: JobContext) -> Outcome:
    """Cut references into fields; the result has one entry for each, in their order."""
    if payload.references is not None:
        return Done({"references": await _parse_fields(payload.references, ctx)})
    source = await source_of(payload, ctx)
    texts = reference_lists.split_list("\n".join(source.pages))
    result = await _parse_references(source, [{"text": text} for text in texts], ctx)
    return await _store_result(
        source, ctx, {"references": result.result["references"]}, reused=result.reused
    )


@job("process_references", worker="link", lanes=LANES, timeout=600)
@ends_when_superseded
async def process_references(payload: FindReferences, ctx: JobContext) -> Outcome:
    """Find the references of a document, a text or an upload, cut them into fields, and find which
    markers in the text cite which reference."""
    source = await source_of(payload, ctx)
    found_output = await _find_references(source, payload, ctx)
    raw_references, body = found_output.result["references"], found_output.result["body"]
    parsed_output = await _parse_references(source, raw_references, ctx, force=payload.force)
    result = await ctx.compute(
        reference_lists.with_citations,
        raw_references,
        parsed_output.result["references"],
        body,
        characters=sum(map(len, body)),
    )
    reused = found_output.reused and parsed_output.reused
    if payload.document_id is None:
        return await _store_result(source, ctx, result, reused=reused)
    await source.files.require_content_async(source.text.content)
    return await _store_with_document(source, payload.document_id, ctx, result, reused=reused)


async def _find_references(
    source: ReferenceSource, payload: FindReferences, ctx: JobContext
) -> StageOutput:
    """Return the output with `references`, not yet cut into fields, and `body`, the pages' text
    without them."""
    asks_grobid = "grobid" in ctx.settings.reference_engines

    async def find_references() -> Mapping[str, Any]:
        pages = source.pages
        found: Mapping[str, Any] = await ctx.compute(
            reference_lists.find_references, pages, characters=sum(map(len, pages))
        )
        if asks_grobid and not found["references"]:
            return await _find_by_grobid(source, payload, ctx) or found
        return await _add_boxes(found, source, payload, ctx)

    return await source.files.reuse_or_run_async(
        EXTRACT_REFERENCES,
        content_hash([source.text.output_hash, asks_grobid]),
        find_references,
        content=source.text.content,
        force=payload.force,
    )


async def _add_boxes(
    found: Mapping[str, Any], source: ReferenceSource, payload: FindReferences, ctx: JobContext
) -> Mapping[str, Any]:
    """Add each reference's boxes, where there is a PDF."""
    references = found["references"]
    key = await pdf_key_of(source, payload)
    if key is None or not references:
        return found
    try:
        boxes_by_reference = await ctx.in_process(
            boxes_in_pdf,
            ctx.settings.files_url,
            key,
            ctx.settings.pdf_extractor,
            source.files.document_id,
            key if payload.document_id is None else source.text.content,
            [(each["page"], each["text"]) for each in references],
            timeout=READING_TIMEOUT,
            memory_limit_mb=MEMORY_MB,
        )
    except (TimeoutError, MemoryError, PermanentError) as error:
        # Go on without boxes: everything else needs only the text, which was read.
        structlog.get_logger("citations").warning("reference boxes missing", error=str(error))
        return found
    references_with_boxes = [
        each | ({"boxes": boxes} if boxes else {})
        for each, boxes in zip(references, boxes_by_reference, strict=True)
    ]
    return {**found, "references": references_with_boxes}


async def _find_by_grobid(
    source: ReferenceSource, payload: FindReferences, ctx: JobContext
) -> Mapping[str, Any] | None:
    """Find the references of the paper's PDF by GROBID; None where there is no PDF, or GROBID can't
    read it."""
    from switchyard.services.pipeline.citations.engines.grobid import GrobidEngine

    key = await pdf_key_of(source, payload)
    if key is None:
        return None
    pdf = await source.files.storage.get_async(key)
    try:
        entries = await GrobidEngine(ctx.settings.grobid_url or "").references_of_pdf(pdf)
    except SourceRefused as error:
        structlog.get_logger("citations").warning("GROBID PDF refused", error=str(error))
        return None
    pages = source.pages
    found: Mapping[str, Any] = await ctx.compute(
        reference_lists.references_of_tei, entries, pages, characters=sum(map(len, pages))
    )
    return found


async def _parse_references(
    source: ReferenceSource,
    raw_references: Sequence[Mapping[str, Any]],
    ctx: JobContext,
    *,
    force: bool = False,
) -> StageOutput:
    texts = [each["text"] for each in raw_references if "fields" not in each]

    async def parse() -> Mapping[str, Any]:
        fields = iter(await _parse_fields(texts, ctx))
        return {"references": [each.get("fields") or next(fields) for each in raw_references]}

    from switchyard.services.pipeline.citations.engines.engine_chain import parsing_method

    return await source.files.reuse_or_run_async(
        PARSE_REFERENCES,
        content_hash([source.text.output_hash, list(raw_references), parsing_method(ctx.settings)]),
        parse,
        content=source.text.content,
        force=force,
    )


async def _parse_fields(texts: Sequence[str], ctx: JobContext) -> list[dict[str, Any]]:
    from switchyard.services.pipeline.citations.engines.engine_chain import parse_all

    parsed = await parse_all(texts, ctx)
    return await asyncio.to_thread(lambda: [reference.as_json() for reference in parsed])


async def _store_result(
    source: ReferenceSource, ctx: JobContext, result: Mapping[str, Any], *, reused: bool
) -> Done:
    """Store a job's result, and return the outcome with its key, as the result may have thousands
    of references."""
    key = extraction_key(ctx.job_id)
    await store_json(source.files.storage, key, {"job_id": ctx.job_id, **result})
    return Done({**_count_entries(result), "result": key, "reused": reused})


async def _store_with_document(
    source: ReferenceSource,
    document_id: str,
    ctx: JobContext,
    job_result: Mapping[str, Any],
    *,
    reused: bool,
) -> Done | Next:
    key = references_key(document_id)
    stored = {
        "document_id": document_id,
        "hash": content_hash(job_result),
        "content": source.text.content,
        **job_result,
    }
    # Written although reused: a stage's output is deleted after a day, this result stays.
    await store_json(source.files.storage, key, stored)
    await update_citations(ctx, document_id)
    await note_completed_stage(ctx, document_id, PROCESS_REFERENCES)
    result = {
        "document_id": document_id,
        **_count_entries(job_result),
        "result": key,
        "reused": reused,
    }
    if not ctx.settings.link_citations:
        return Done(result)
    return Next([Job(LINK_CITATIONS.name, {"document_id": document_id})], result)


def _count_entries(result: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(result[name]) for name in ("references", "citations") if name in result}
