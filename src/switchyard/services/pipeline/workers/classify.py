"""The job type that classifies documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.classes.class_definitions import (
    ClassDefinitions,
    MeaningKind,
    RuleKind,
    read_definitions,
)
from switchyard.services.pipeline.classes.keyword_classes import KeywordFinder, classes_by_keywords
from switchyard.services.pipeline.classes.similarity_classes import (
    classes_by_similarity,
    similarities,
)
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.open_index import OpenIndex, index_of
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import DocumentClass
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles
from switchyard.services.pipeline.workers.stages import (
    CLASSIFY,
    EXTRACT,
    DocumentJob,
    at_stage,
    ends_when_superseded,
)

MAX_PASSAGES = 512
"""Chunks of a document that are compared, evenly spread."""


@job("classify_document", worker="embed", lanes=("hot", "backfill"), timeout=300)
@ends_when_superseded
async def classify_document(payload: DocumentJob, ctx: JobContext) -> Outcome:
    """Classify a document as the file of JOBS_CLASSES defines it: by its words, and by its
    vectors."""
    document_id = payload.document_id
    files = DocumentFiles.for_document(ctx, document_id)
    async with at_stage(ctx, document_id, CLASSIFY), index_of(ctx) as index:
        definitions = await asyncio.to_thread(read_definitions, ctx.settings.classes)
        extracted = await files.output_of_async(EXTRACT)
        # The embedder of the active generation, whatever the settings say: the index may have been
        # rebuilt for another one.
        embedder = (await index.generations()).active.embedder

        async def classify() -> dict[str, Any]:
            pages = [
                extracted.result["title"],
                *(page["text"] for page in extracted.result["pages"]),
            ]
            keyword_classes = await ctx.compute(
                _keyword_classes_of,
                definitions,
                pages,
                characters=extracted.result["character_count"],
            )
            similarity_classes = await _similarity_classes_of(ctx, index, definitions, document_id)
            return {"classes": [_as_json(each) for each in (*keyword_classes, *similarity_classes)]}

        output = await files.reuse_or_run_async(
            CLASSIFY,
            content_hash([extracted.output_hash, embedder, definitions.hash]),
            classify,
            content=extracted.content,
            force=payload.force,
        )
        if ctx.ledger is not None:
            # Written although reused: the ledger's rows are derived from the kept output.
            classes = [DocumentClass(**each) for each in output.result["classes"]]
            await PipelineLedger(ctx.ledger).document_classes.put_classes(document_id, classes)
    result = {"document_id": document_id, **output.result, "reused": output.reused}
    # A backfill has no link worker of its own, and must not fill the hot lane.
    lane = "hot" if ctx.lane == "hot" else "maintenance"
    return Next([Job("link_content", payload.model_dump(), lane=lane)], result)


def _as_json(document_class: DocumentClass) -> dict[str, Any]:
    return {
        "kind": document_class.kind,
        "label": document_class.label,
        "score": document_class.score,
        "why": dict(document_class.why),
    }


def _keyword_classes_of(definitions: ClassDefinitions, pages: Sequence[str]) -> list[DocumentClass]:
    kinds = {name: kind for name, kind in definitions.kinds.items() if isinstance(kind, RuleKind)}
    labels = [label for kind in kinds.values() for label in kind.labels.values()]
    keywords = {keyword for label in labels for keyword in label.keywords}
    counts = KeywordFinder(sorted(keywords)).count(pages)
    return [
        each for name, kind in kinds.items() for each in classes_by_keywords(name, kind, counts)
    ]


async def _similarity_classes_of(
    ctx: JobContext, index: OpenIndex, definitions: ClassDefinitions, document_id: str
) -> list[DocumentClass]:
    kinds = {
        name: kind for name, kind in definitions.kinds.items() if isinstance(kind, MeaningKind)
    }
    if not kinds:
        return []
    async with index.open_active() as (table, embedder):
        count = await table.count(document_id)
        passages = await table.vectors_at(document_id, _spread_evenly(count))
    vectors = await _description_vectors(ctx, embedder, kinds)
    classes = []
    for name, kind in kinds.items():
        description_vectors = [
            (label, vectors[description])
            for label, definition in kind.labels.items()
            for description in definition.descriptions
        ]
        similarity_of_label = similarities(passages, description_vectors)
        classes += classes_by_similarity(
            name, kind, similarity_of_label, embedder.calibration.min_relevance
        )
    return classes


def _spread_evenly(count: int) -> list[int]:
    step = max(1.0, count / MAX_PASSAGES)
    return [int(number * step) for number in range(min(count, MAX_PASSAGES))]


class _DescriptionVectors:
    """The vectors of descriptions by one embedder, cached so that a process asks a server for each
    only once."""

    def __init__(self) -> None:
        self.by_description: dict[tuple[str, str], list[float]] = {}


@asynccontextmanager
async def _empty_cache() -> AsyncIterator[_DescriptionVectors]:
    yield _DescriptionVectors()


async def _description_vectors(
    ctx: JobContext, embedder: Embedder, kinds: Mapping[str, MeaningKind]
) -> dict[str, list[float]]:
    vectors = _DescriptionVectors()
    if ctx.shared is not None:
        vectors = await ctx.shared.get(_DescriptionVectors, _empty_cache)
    texts = {
        description
        for kind in kinds.values()
        for label in kind.labels.values()
        for description in label.descriptions
    }
    missing = sorted(text for text in texts if (embedder.name, text) not in vectors.by_description)
    if missing:
        if len(vectors.by_description) > 10 * len(texts):
            vectors.by_description.clear()  # of files and embedders that are no longer used
            missing = sorted(texts)
        new_vectors = await embedder.embed(missing)
        vectors.by_description |= {
            (embedder.name, text): each for text, each in zip(missing, new_vectors, strict=True)
        }
    return {text: vectors.by_description[embedder.name, text] for text in texts}
