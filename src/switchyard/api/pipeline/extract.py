"""`/extract/text`: the text of a file and nothing else."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from switchyard.api.dependencies import ExtractionsOf
from switchyard.api.engine.jobs import JobIdInPath
from switchyard.api.http.document_errors import (
    RESULT_PROBLEMS,
    UPLOAD_PROBLEMS,
    unreadable,
)
from switchyard.api.http.problems import POLL_AFTER
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.documents import ExtractionView
from switchyard.api.pipeline.documents import FORM, receive_upload
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.pipeline.documents.extractions import ExtractionNotFinished

router = Routes(prefix="/extract", tags=["extraction"])


@router.post(
    "/text",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    openapi_extra=FORM,
    responses={
        200: {"model": ExtractionView, "description": "Without a broker: with the text."},
        **UPLOAD_PROBLEMS,
    },
)
async def order_text(
    request: Request, response: Response, extractions: ExtractionsOf
) -> ExtractionView:
    """Extract the text of a PDF, Markdown or text file, without storing it as a document."""
    upload, metadata = await receive_upload(request, extractions.intake)
    try:
        extraction = await extractions.start(upload, metadata)
    except ExtractionNotFinished as error:
        raise unreadable(error) from error
    if extraction.result is not None:
        response.status_code = 200
    else:
        response.headers.update(POLL_AFTER)
    response.headers["Location"] = f"/extract/text/{extraction.job_id}"
    return ExtractionView(job_id=extraction.job_id, result=extraction.result)


@router.get(
    "/text/{job_id}",
    dependencies=[needs(Scope.READ)],
    responses=RESULT_PROBLEMS,
)
async def extracted_text(
    job_id: JobIdInPath,
    extractions: ExtractionsOf,
) -> dict[str, Any]:
    """Get the extracted text by page. 409 if the job is unfinished or failed."""
    return await extractions.result(job_id)
