"""Job types of the OCR worker that ask a model about pictures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage_keys import content_hash, figure_folder, figure_key
from switchyard.services.engine.jobs.bounded_gather import gather_bounded
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.workers.stage_outputs import DocumentFiles, StageOutput
from switchyard.services.pipeline.workers.stages import (
    DESCRIBE_FIGURES,
    INGEST,
    DocumentJob,
    ends_when_superseded,
)

if TYPE_CHECKING:
    from switchyard.services.pipeline.text.figures import CutPictures, Picture

CUT_TIMEOUT = 120.0
"""Time limit for cutting out the figures of a document, in seconds."""
TIME_BUDGET = 240.0
"""Seconds after which a job leaves the other figures to another job."""
ANSWER_TIMEOUT = 120.0
"""Seconds that one answer may take."""
FIGURES_TIMEOUT = 480.0
_MAX_CONCURRENT_ANSWERS = 4


class _TimeBudgetExceeded(Exception):
    """The job's time is used up, and figures are left for the next job."""


class NoSuchFigure(PermanentError):
    """The document has no figure of that number, or none were cut out yet."""


class NoPictureAccepted(PermanentError):
    """The model refuses every picture of the document; perhaps it does not accept pictures at
    all."""


class AnalyzeImage(DocumentJob):
    """A question about a picture: a page of a document, or one of its figures."""

    page: int = Field(default=1, ge=1, le=1_000_000)
    figure: int | None = Field(default=None, ge=1, le=1_000)
    """Number of a figure that `describe_figures` has cut out, instead of a page."""
    question: str | None = Field(default=None, min_length=1, max_length=2_000)
    """The question; without one, the model describes the picture."""


@job("describe_figures", worker="ocr", lanes=("vlm_ocr",), timeout=FIGURES_TIMEOUT)
@ends_when_superseded
async def describe_figures(payload: DocumentJob, ctx: JobContext) -> Outcome:
    """Cut out a document's figures and tables, store them, let a model describe each, and make the
    descriptions searchable. Equal pictures are paid for once."""
    from switchyard.services.llm.vision_model import VISION_VERSION, require_vision
    from switchyard.services.pipeline.text.figures import FIGURES_VERSION

    require_vision(ctx)
    document_id = payload.document_id
    files = DocumentFiles.for_document(ctx, document_id)
    original = await files.output_of_async(INGEST)
    model = ctx.settings.vision_model
    deadline = time.monotonic() + TIME_BUDGET

    async def describe() -> dict[str, Any]:
        return await _describe_all(ctx, files, original, deadline)

    try:
        output = await files.reuse_or_run_async(
            DESCRIBE_FIGURES,
            content_hash([original.input_hash, FIGURES_VERSION, VISION_VERSION, model]),
            describe,
            content=original.content,
            force=payload.force,
            is_complete=lambda result: _are_stored(files, result["figures"]),
        )
    except _TimeBudgetExceeded:
        return Next([Job("describe_figures", payload.model_dump())], {"document_id": document_id})
    figures = output.result["figures"]
    # Also if the output was reused: it is deleted after a day, and the list of figures stays.
    await files.put_figures(original.content, figures)
    outcome = {"document_id": document_id, "figures": len(figures), "reused": output.reused}
    if page_errors := output.result.get("page_errors"):
        outcome["page_errors"] = page_errors
    lane = "backfill" if ctx.message.priority <= 1 else "hot"
    return Next([Job("embed_content", {"document_id": document_id}, lane=lane)], outcome)


async def _are_stored(files: DocumentFiles, figures: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the pictures are still stored."""
    stored_keys = {
        stored.key async for stored in files.storage.list_async(figure_folder(files.document_id))
    }
    return all(each["key"] in stored_keys for each in figures)


async def _describe_all(
    ctx: JobContext, files: DocumentFiles, original: StageOutput, deadline: float
) -> dict[str, Any]:
    from switchyard.services.pipeline.text.figures import MEDIA_TYPES, MEMORY_MB, cut

    cut_pictures: CutPictures = await ctx.in_process(
        cut,
        files.source_file(original.result, original.content, ctx.settings),
        timeout=CUT_TIMEOUT,
        memory_limit_mb=MEMORY_MB,
    )
    pictures = cut_pictures.pictures
    figures: list[dict[str, Any]] = []
    for start in range(0, len(pictures), _MAX_CONCURRENT_ANSWERS):
        if time.monotonic() > deadline or ctx.is_cancelled():
            raise _TimeBudgetExceeded
        batch = pictures[start : start + _MAX_CONCURRENT_ANSWERS]
        pending_answers = (
            _answer_or_refusal(ctx, each.content, MEDIA_TYPES[each.suffix], each.caption)
            for each in batch
        )
        answers = await gather_bounded(pending_answers, at_once=_MAX_CONCURRENT_ANSWERS)
        for number, (picture, answer) in enumerate(zip(batch, answers, strict=True), start + 1):
            key = figure_key(files.document_id, content_hash(picture.content), picture.suffix)
            await files.require_content_async(original.content)
            await files.storage.put_async(key, picture.content)
            figures.append(
                {
                    "figure": number,
                    "page": picture.page,
                    "kind": picture.kind,
                    "caption": picture.caption,
                    "width": picture.width,
                    "height": picture.height,
                    "media_type": MEDIA_TYPES[picture.suffix],
                    "size": len(picture.content),
                    "key": key,
                    **answer,
                }
            )
    if figures and all(each.get("refused") for each in figures):
        raise NoPictureAccepted(f"the model takes none of the pictures: {figures[0]['refused']}")
    page_errors = {str(page): error for page, error in cut_pictures.page_errors.items()}
    return {"figures": figures, "page_errors": page_errors}


@job("analyze_image", worker="ocr", lanes=("vlm_ocr",), timeout=FIGURES_TIMEOUT)
async def analyze_image(payload: AnalyzeImage, ctx: JobContext) -> Outcome:
    """Describe a page or a figure of a document, or answer a question about it."""
    from switchyard.services.llm.vision_model import require_vision
    from switchyard.services.pipeline.text.figures import MEDIA_TYPES, MEMORY_MB, page_pictures

    require_vision(ctx)
    files = DocumentFiles.for_document(ctx, payload.document_id)
    original = await files.output_of_async(INGEST)
    result: dict[str, Any] = {"document_id": payload.document_id}
    if payload.figure is None:
        pieces: Sequence[Picture] = await ctx.in_process(
            page_pictures,
            files.source_file(original.result, original.content, ctx.settings),
            payload.page,
            timeout=CUT_TIMEOUT,
            memory_limit_mb=MEMORY_MB,
        )
        result["page"] = payload.page
        pictures = [(piece.content, MEDIA_TYPES[piece.suffix]) for piece in pieces]
        caption = ""
    else:
        figure = await _stored_figure(files, original, payload.figure)
        result |= {"page": figure["page"], "figure": payload.figure}
        try:
            content = await files.storage.get_async(figure["key"])
        except NotStored as error:
            raise _no_figure(payload) from error
        pictures, caption = [(content, figure["media_type"])], figure["caption"]
    answer = await _ask_about(ctx, pictures, caption, payload.question)
    return Done({**result, **answer})


async def _stored_figure(
    files: DocumentFiles, original: StageOutput, number: int
) -> Mapping[str, Any]:
    figures = await files.figures(original.content)
    if number > len(figures):
        raise NoSuchFigure(
            f"document {files.document_id} has no figure {number}: {len(figures)} were cut out; "
            "`describe_figures` looks for them"
        )
    return figures[number - 1]


def _no_figure(payload: AnalyzeImage) -> NoSuchFigure:
    return NoSuchFigure(f"the picture of figure {payload.figure} was removed: describe them again")


async def _answer_or_refusal(
    ctx: JobContext, content: bytes, media_type: str, caption: str
) -> dict[str, Any]:
    """Ask about a picture. If the model declines it, return the refusal, so that the other pictures
    are still described."""
    from switchyard.services.llm.llm_errors import LlmRefused

    try:
        return await _ask_about(ctx, [(content, media_type)], caption)
    except LlmRefused as error:
        if error.is_server_specific:  # it is about the key or the model, not the picture
            raise
        model = ctx.settings.vision_model
        return {"description": "", "model": model, "complete": False, "refused": str(error)}


async def _ask_about(
    ctx: JobContext,
    pictures: Sequence[tuple[bytes, str]],
    caption: str,
    question: str | None = None,
) -> dict[str, Any]:
    from switchyard.services.llm.budget_account import requester_of
    from switchyard.services.llm.gate import Urgency
    from switchyard.services.llm.vision_model import picture_chat, vision_model_of

    async with vision_model_of(ctx) as client:
        answer, answer_reused = await client.answer(
            picture_chat(pictures, caption, question),
            urgency=Urgency.from_priority(ctx.lane, ctx.message.priority),
            timeout=ANSWER_TIMEOUT,
            requester=requester_of(ctx),
        )
    return {
        "description": answer.text,
        "model": answer.model,
        "complete": answer.is_complete,
        "answer_reused": answer_reused,
    }
