"""Job types of the embed worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.open_index import index_of
from switchyard.services.pipeline.text.chunks import (
    CHUNK_WORDS,
    OVERLAP_WORDS,
    figure_chunks,
    split_into_chunks,
)
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles, StageOutput
from switchyard.services.pipeline.workers.stages import (
    EMBED,
    EXTRACT,
    DocumentJob,
    at_stage,
    ends_when_superseded,
)

BATCH_SIZE = 512
"""Chunks whose vectors are in memory at once: a text of 20 million characters has 40,000."""


@job("embed_content", worker="embed", lanes=("hot", "backfill"), timeout=600)
@ends_when_superseded
async def embed_content(payload: DocumentJob, ctx: JobContext) -> Outcome:
    """Cut the text into chunks, embed them, and make them the document's chunks in the index."""
    document_id = payload.document_id
    async with at_stage(ctx, document_id, EMBED):
        output = await embed_document(payload, ctx)
    result = {"document_id": document_id, **output.result, "reused": output.reused}
    return Next([Job("classify_document", payload.model_dump())], result)


async def embed_document(payload: DocumentJob, ctx: JobContext) -> StageOutput:
    """Write the chunks of the document's text to every generation of the index in use, unless they
    are there already. Raises ContentReplaced."""
    document_id = payload.document_id
    files = DocumentFiles.for_document(ctx, document_id)
    extracted = await files.output_of_async(EXTRACT)
    figures = await files.figures(extracted.content)
    async with index_of(ctx) as index:

        async def embed_text() -> dict[str, Any]:
            chunks = await ctx.compute(
                split_into_chunks,
                document_id,
                extracted.result["pages"],
                characters=extracted.result["character_count"],
            )

            chunks += figure_chunks(document_id, len(chunks), figures)

            async def put_chunks(table: ChunkIndex, embedder: Embedder) -> None:
                for start in range(0, len(chunks), BATCH_SIZE):
                    batch = chunks[start : start + BATCH_SIZE]
                    vectors = await embedder.embed([chunk.text for chunk in batch])
                    await files.require_content_async(extracted.content)
                    await table.put(extracted.result["title"], batch, vectors)
                    chunks_done = start + len(batch)
                    ctx.progress(
                        chunks_done / len(chunks), f"chunk {chunks_done:,} of {len(chunks):,}"
                    )
                await files.require_content_async(extracted.content)
                await table.drop_from(document_id, len(chunks))

            written = await index.write(put_chunks)
            return {
                "chunks": len(chunks),
                "embedder": written[0].embedder,
                "dimensions": written[0].dimensions,
            }

        async def is_indexed(result: Mapping[str, Any]) -> bool:
            return bool(await index.count(document_id) == result["chunks"])

        embedder = (await index.generations()).active.embedder
        return await files.reuse_or_run_async(
            EMBED,
            content_hash([extracted.output_hash, embedder, CHUNK_WORDS, OVERLAP_WORDS, *figures]),
            embed_text,
            content=extracted.content,
            force=payload.force,
            is_complete=is_indexed,
        )
