"""`/documents`: upload documents, show their progress, get their results."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi import Path as InPath

from switchyard.api.dependencies import DocumentsOf
from switchyard.api.http.document_errors import (
    READ_PROBLEMS,
    RESULT_PROBLEMS,
    UPLOAD_PROBLEMS,
    unreadable,
)
from switchyard.api.http.problems import POLL_AFTER, responses
from switchyard.api.http.routing import Cursor, Limit, Routes
from switchyard.api.middleware.access import may, may_see_content, needs, receipt, source_of
from switchyard.api.middleware.uploads import UploadForm
from switchyard.api.models.documents import (
    ClassField,
    DocumentList,
    DocumentSummary,
    DocumentView,
    FigureList,
    FigureView,
    PageView,
)
from switchyard.api.pipeline.reference_formats import FORMATS_RESPONSE, FormatOf, in_format
from switchyard.api.state import Shared, state_of
from switchyard.broker import patterns
from switchyard.services.common.files.uploads import Upload
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.records.requests import MAX_NOTIFY_URL
from switchyard.services.pipeline.citations.formats.export import ReferenceFormat
from switchyard.services.pipeline.documents.document_service import DocumentService, NotFinished
from switchyard.services.pipeline.documents.document_status import DocumentStatus
from switchyard.services.pipeline.documents.upload_intake import (
    UploadIntake,
    UploadMetadata,
    check_source,
)
from switchyard.services.pipeline.ledger import PipelineLedger

router = Routes(tags=["documents"])

PICTURE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


async def _full_document_id(
    document_id: Annotated[
        str,
        InPath(
            pattern=patterns.DOCUMENT_ID,
            description="Id of the document, from the answer to the upload, or its first "
            "characters, at least six.",
        ),
    ],
    state: Shared,
) -> str:
    return await PipelineLedger(state.ledger).documents.full_id(document_id)


DocumentIdOf = Annotated[str, Depends(_full_document_id)]


FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "source": {"type": "string", "maxLength": 2000},
                        "title": {"type": "string", "maxLength": 1000},
                        "lane": {"type": "string", "enum": ["hot", "backfill"], "default": "hot"},
                        "tags": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "maxLength": 4000,
                            "description": "Names and values, as a JSON object, to find the job "
                            "by; its follow-up jobs have them, too.",
                            "examples": ['{"team": "search"}'],
                        },
                        "notify_url": {"type": "string", "maxLength": MAX_NOTIFY_URL},
                    },
                }
            }
        },
    }
}


async def receive_upload(request: Request, intake: UploadIntake) -> tuple[Upload, UploadMetadata]:
    """Store the request's file, and return it with its metadata.

    Raises InvalidUpload, and as UploadIntake.receive and UploadMetadata.from_fields do.
    """
    form = UploadForm(request)
    upload = await intake.receive(form.file(), lambda: form.filename, lambda: form.charset)
    try:
        await form.rest()
        metadata = UploadMetadata.from_fields(
            form.filename,
            form.fields,
            asked_by=source_of(request, None),
            may_read=may(request, Scope.READ),
        )
        if metadata.source is not None and not may(request, Scope.ADMIN):
            check_source(metadata.source, state_of(request).registry)
        intake.check(metadata)
    except BaseException:
        await intake.discard(upload)
        raise
    return upload, metadata


@router.post(
    "/documents",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    openapi_extra=FORM,
    responses={
        200: {"model": DocumentView, "description": "It was known already."},
        201: {"model": DocumentView, "description": "Without a broker: it is done."},
        **UPLOAD_PROBLEMS,
    },
)
async def send_document(
    request: Request, response: Response, documents: DocumentsOf
) -> DocumentView:
    """Upload a document: PDF, image, Markdown or plain text, detected from its content. It is
    summarised, indexed and linked. A document whose content or source is already known is not
    processed again. A key without the scope `read` gets only the id and state of a document that
    was sent before.
    """
    upload, metadata = await receive_upload(request, documents.intake)
    submission = await documents.submit(upload, metadata)
    status = submission.status
    response.headers["Location"] = f"/documents/{status.document_id}"
    view = DocumentView.from_record(status, duplicate=submission.duplicate)
    view = receipt(request, view, is_own=submission.is_own)
    if documents.intake.is_inline and status.has_ended:
        response.status_code = 201
        if may_see_content(request, is_own=submission.is_own):
            view.result = await _result(request, documents, status)
    if submission.duplicate:
        response.status_code = 200
    if not status.has_ended:
        response.headers.update(POLL_AFTER)
    return view


@router.get(
    "/documents", dependencies=[needs(Scope.READ)], responses=responses("invalid", "ledger-away")
)
async def list_documents(
    documents: DocumentsOf,
    state: Annotated[str | None, Query(pattern=patterns.WORD)] = None,
    source: Annotated[
        str | None, Query(max_length=2000, min_length=1, pattern=patterns.NO_NUL)
    ] = None,
    classes: Annotated[
        list[ClassField] | None,
        Query(
            alias="class",
            max_length=50,
            description="`kind:label`, repeatable. With several labels of one kind, any of them "
            "matches.",
        ),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DocumentList:
    """List documents, newest first. With `state`, a page may have fewer than `limit` entries
    although more follow.
    """
    page = await documents.documents(
        state=state, source=source, classes=classes or (), limit=limit, cursor=cursor
    )
    items = [DocumentSummary.from_record(status) for status in page.items]
    return DocumentList(documents=items, next_cursor=page.next_cursor)


@router.get(
    "/documents/{document_id}",
    dependencies=[needs(Scope.READ)],
    responses=READ_PROBLEMS,
)
async def document_status(
    document_id: DocumentIdOf, response: Response, documents: DocumentsOf
) -> DocumentView:
    """Show the state of a document; if it failed, also the error and the job to redrive."""
    status = await documents.status(document_id)
    if not status.has_ended:
        response.headers.update(POLL_AFTER)
    return DocumentView.from_record(status)


@router.get(
    "/documents/{document_id}/result",
    dependencies=[needs(Scope.READ)],
    responses=RESULT_PROBLEMS,
)
async def document_result(
    document_id: DocumentIdOf,
    documents: DocumentsOf,
    include: Annotated[list[Literal["text"]] | None, Query()] = None,
) -> dict[str, Any]:
    """Show the results of a document: counts, summary, links, and results of further stages; with
    `include=text` also its text by page. 409 until the document is finished.
    """
    return await documents.result(document_id, with_text="text" in (include or ()))


@router.get(
    "/documents/{document_id}/references",
    dependencies=[needs(Scope.READ)],
    responses={200: FORMATS_RESPONSE, **RESULT_PROBLEMS},
    response_model=dict[str, Any],
)
async def document_references(
    document_id: DocumentIdOf, documents: DocumentsOf, reference_format: FormatOf
) -> Any:
    """Show the references of a document: `references`, parsed into fields, and `citations`, their
    places in the text; or only the references in another format. 404 until a job
    `process_references` has run for it.
    """
    result = await documents.references(document_id)
    return (
        result
        if reference_format is ReferenceFormat.JSON
        else in_format(result["references"], reference_format)
    )


@router.get(
    "/documents/{document_id}/pages/{number}",
    dependencies=[needs(Scope.READ)],
    responses=READ_PROBLEMS,
)
async def document_page(
    document_id: DocumentIdOf,
    number: Annotated[int, InPath(ge=1, le=1_000_000, description="From 1.")],
    documents: DocumentsOf,
) -> PageView:
    """Show the text of one page as Markdown, as soon as it is extracted or read by OCR."""
    return PageView.from_record(await documents.page(document_id, number))


@router.get(
    "/documents/{document_id}/figures",
    dependencies=[needs(Scope.READ)],
    responses=READ_PROBLEMS,
)
async def document_figures(document_id: DocumentIdOf, documents: DocumentsOf) -> FigureList:
    """List the figures and tables of a document with descriptions. 404 until a job
    `describe_figures` has run for it.
    """
    figures = await documents.figures(document_id)
    return FigureList(figures=[FigureView.model_validate(each) for each in figures])


@router.get(
    "/documents/{document_id}/figures/{number}",
    dependencies=[needs(Scope.READ)],
    response_class=Response,
    responses={
        200: {"content": dict.fromkeys(("image/png", "image/jpeg"), PICTURE)},
        **READ_PROBLEMS,
    },
)
async def document_figure(
    document_id: DocumentIdOf,
    number: Annotated[int, InPath(ge=1, le=1_000, description="From 1.")],
    documents: DocumentsOf,
) -> Response:
    """Get the image of a figure, as PNG or JPEG."""
    content, media_type = await documents.figure(document_id, number)
    return Response(content, media_type=media_type)


async def _result(
    request: Request, documents: DocumentService, status: DocumentStatus
) -> dict[str, Any]:
    """Return the result for the answer to an upload. Raises Problem where it has failed."""
    if not status.is_finished:
        raise unreadable(NotFinished(status))
    if may_see_content(request, is_own=False):
        return await documents.result(status.document_id)
    return await documents.own_result(status.document_id)
