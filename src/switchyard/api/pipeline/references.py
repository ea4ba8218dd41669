"""`/extract/references`, `/parse/references`, `/process/references`: a file or a text in, a job's
id out; `/jobs/{job_id}/references`: what it has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from switchyard.api.dependencies import ReferencesOf
from switchyard.api.engine.jobs import JobIdInPath
from switchyard.api.http.document_errors import RESULT_PROBLEMS, UPLOAD_PROBLEMS, unreadable
from switchyard.api.http.problems import POLL_AFTER, Problem
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import may_see_content, needs, source_of
from switchyard.api.models.references import (
    OrderedReferences,
    ReferenceRequest,
    ReferencesToParse,
    TextWithReferences,
)
from switchyard.api.pipeline.documents import FORM, receive_upload
from switchyard.api.pipeline.reference_formats import FORMATS_RESPONSE, FormatOf, in_format
from switchyard.broker.validation import list_errors
from switchyard.services.common.files.charsets import charset_of
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.pipeline.citations.formats.export import ReferenceFormat
from switchyard.services.pipeline.documents.extractions import ExtractionNotFinished
from switchyard.services.pipeline.documents.reference_orders import Order, ReferenceService
from switchyard.services.pipeline.documents.upload_intake import UploadMetadata

router = Routes(tags=["references"])
results_router = Routes(prefix="/jobs", tags=["jobs"])

M = TypeVar("M", bound=ReferenceRequest)
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": OrderedReferences, "description": "Without a broker: with the references."},
    **UPLOAD_PROBLEMS,
}


def _describe_body(model: type[BaseModel]) -> dict[str, Any]:
    content = {
        **FORM["requestBody"]["content"],
        "text/plain": {"schema": {"type": "string"}},
        "application/json": {"schema": model.model_json_schema()},
    }
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "/extract/references",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    openapi_extra=_describe_body(TextWithReferences),
    responses=ANSWERS,
)
async def order_references(
    request: Request, response: Response, service: ReferencesOf
) -> OrderedReferences:
    """Extract the references of a paper as raw text, with label and page."""
    submission = await _start_job(request, service, "extract_references", TextWithReferences)
    return await _answer(submission, request, response, service)


@router.post(
    "/parse/references",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    openapi_extra=_describe_body(ReferencesToParse),
    responses=ANSWERS,
)
async def order_parsing(
    request: Request, response: Response, service: ReferencesOf
) -> OrderedReferences:
    """Parse references into fields. The text or file has one reference per line, or blank lines
    between references.
    """
    submission = await _start_job(request, service, "parse_references", ReferencesToParse)
    return await _answer(submission, request, response, service)


@router.post(
    "/process/references",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    openapi_extra=_describe_body(TextWithReferences),
    responses=ANSWERS,
)
async def order_processing(
    request: Request, response: Response, service: ReferencesOf
) -> OrderedReferences:
    """Extract the references of a paper, parse them into fields, and link them to their citations
    in the text.
    """
    submission = await _start_job(request, service, "process_references", TextWithReferences)
    return await _answer(submission, request, response, service)


@dataclass(frozen=True, slots=True)
class ReferenceSubmission:
    """A job that was started."""

    job_id: str
    is_own: bool
    """Whether it reads only what the request itself contains, and no stored document."""


@results_router.get(
    "/{job_id}/references",
    dependencies=[needs(Scope.READ)],
    responses={200: FORMATS_RESPONSE, **RESULT_PROBLEMS},
    response_model=dict[str, Any],
)
async def references_of_job(
    job_id: JobIdInPath, service: ReferencesOf, reference_format: FormatOf
) -> Any:
    """Show the result of a job on references: `references`, and `citations` if it extracted them;
    or only the references in another format. 409 until the job has succeeded.
    """
    result = await service.references(job_id)
    return (
        result
        if reference_format is ReferenceFormat.JSON
        else in_format(result["references"], reference_format)
    )


async def _start_job(
    request: Request, service: ReferenceService, order: Order, model: type[M]
) -> ReferenceSubmission:
    asked_by = source_of(request, None)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "multipart/form-data":
        upload, metadata = await receive_upload(request, service.intake)
        return ReferenceSubmission(
            await service.order_from_file(order, upload, metadata), is_own=True
        )
    if content_type == "text/plain":
        upload = await service.intake.receive(
            request.stream(), charset=lambda: charset_of(request.headers.get("content-type"))
        )
        metadata = UploadMetadata(filename="references.txt", asked_by=asked_by)
        return ReferenceSubmission(
            await service.order_from_file(order, upload, metadata), is_own=True
        )
    if content_type == "application/json":
        body = _parse_body(model, await request.body())
        payload = body.model_dump(exclude_none=True, exclude={"lane"})
        metadata = UploadMetadata(
            lane="hot" if body.lane == "hot" else "backfill", asked_by=asked_by
        )
        job_id = await service.order_from_text(order, payload, metadata)
        return ReferenceSubmission(job_id, is_own="document_id" not in payload)
    raise Problem(
        "unsupported-media-type",
        "send a form with a file (multipart/form-data), text/plain, or application/json",
    )


def _parse_body(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        errors = [
            {**field_error, "loc": ("body", *field_error["loc"])}
            for field_error in list_errors(error)
        ]
        raise RequestValidationError(errors) from error


async def _answer(
    submission: ReferenceSubmission, request: Request, response: Response, service: ReferenceService
) -> OrderedReferences:
    job_id = submission.job_id
    response.headers["Location"] = f"/jobs/{job_id}"
    if not service.intake.is_inline:
        response.headers.update(POLL_AFTER)
        return OrderedReferences(job_id=job_id)
    response.status_code = 200
    if not may_see_content(request, is_own=submission.is_own):
        return OrderedReferences(job_id=job_id)
    try:
        return OrderedReferences(job_id=job_id, result=await service.references(job_id))
    except ExtractionNotFinished as error:
        raise unreadable(error) from error
