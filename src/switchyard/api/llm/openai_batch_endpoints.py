"""`/v1/files` and `/v1/batches` of OpenAI's API: requests that may wait, handed in as files. Only
the API key that made a file or batch sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query, Request
from fastapi.responses import StreamingResponse

from switchyard.api.engine.job_publishing import IdempotencyKey
from switchyard.api.http.problems import OPENAI_PREFIX, invalid, responses
from switchyard.api.http.routing import Routes
from switchyard.api.llm.key_limits import CountedForRateLimit
from switchyard.api.middleware.access import PrincipalOf, needs, own_key, source_of
from switchyard.api.middleware.uploads import InvalidUpload, UploadForm
from switchyard.api.models import openai as models
from switchyard.api.state import Shared
from switchyard.broker import patterns
from switchyard.services.common.files.storage_quota import Quota
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.publishing.requests import RequestFieldError
from switchyard.services.llm.openai_batch_service import OpenAiBatchService
from switchyard.services.llm.records.openai_batches import OpenAiBatch, OpenAiFile

router = Routes(prefix=OPENAI_PREFIX.rstrip("/"), tags=["openai"])

PURPOSE = "batch"
MAX_PAGE = 100
"""Maximum batches of one page: a page counts the requests of each."""
FileId = Annotated[str, Path(max_length=100, pattern=patterns.PLAIN, description="The file's id.")]
BatchId = Annotated[
    str, Path(max_length=100, pattern=patterns.PLAIN, description="The batch's id.")
]
After = Annotated[str | None, Query(max_length=100, description="The last id of the page before.")]
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [PURPOSE]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600},
                    },
                }
            }
        },
    }
}


async def batch_service_of(state: Shared) -> OpenAiBatchService:
    """Return the service for the files and batches of clients."""
    return OpenAiBatchService(state.settings, state.ledger, state.registry)


BatchService = Annotated[OpenAiBatchService, Depends(batch_service_of)]


# --- files ----------------------------------------------------------------------------------------


@router.post(
    "/files",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    openapi_extra=FORM,
    responses=responses("invalid", "too-large", "storage-full", "ledger-away"),
)
async def upload_file(
    request: Request, state: Shared, service: BatchService, principal: PrincipalOf
) -> models.OpenAiFileView:
    """Upload the requests of a batch: a file of JSON lines, with `purpose=batch`."""
    quota = Quota(state.storage, state.settings.storage_quota)
    await quota.check()
    form = UploadForm(request)
    try:
        stored_file = await service.store(
            service.new_file(principal.id, "", PURPOSE),
            quota.metered(form.file()),
            max_bytes=state.settings.max_document_bytes,
        )
        try:
            await form.rest()
            stored_file = _with_fields(stored_file, form)
        except BaseException:
            await service.discard(stored_file)
            raise
    except InvalidUpload as error:
        raise invalid(RequestFieldError((), str(error.text))) from error
    await service.publish_file(stored_file)
    return view_file(stored_file)


def _with_fields(file: OpenAiFile, form: UploadForm) -> OpenAiFile:
    """Return the file with the name and the expiry of the form's other fields. Raises Problem."""
    purpose = form.fields.get("purpose")
    if purpose != PURPOSE:
        raise invalid(RequestFieldError(("purpose",), f"only the purpose `{PURPOSE}` is supported"))
    file = replace(file, filename=(form.filename or file.filename)[:200])
    seconds_text = form.fields.get("expires_after[seconds]")
    if seconds_text is None:
        return file
    is_number = seconds_text.isascii() and seconds_text.isdecimal() and len(seconds_text) <= 10
    if not (is_number and 3600 <= int(seconds_text) <= 10**9):
        text = "seconds must be 3600 to 1,000,000,000"
        raise invalid(RequestFieldError(("expires_after", "seconds"), text))
    expires_at = file.created_at + int(seconds_text)
    return replace(file, expires_at=min(expires_at, file.expires_at or expires_at))


@router.get(
    "/files",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    responses=responses("invalid", "rate-limited", "ledger-away"),
)
async def list_files(
    service: BatchService,
    principal: PrincipalOf,
    purpose: Annotated[
        str | None,
        Query(max_length=40, pattern=patterns.PLAIN, description="Files of this purpose."),
    ] = None,
    after: After = None,
    order: Annotated[Literal["asc", "desc"], Query(description="By age.")] = "desc",
    limit: Annotated[int, Query(ge=1, le=10_000, description="Files of a page.")] = 1_000,
) -> models.OpenAiFileList:
    """List the files of this key."""
    files = await service.files(
        principal.id, purpose=purpose, newest_first=order == "desc", after=after, limit=limit + 1
    )
    page = [view_file(each) for each in files[:limit]]
    return models.OpenAiFileList(data=page, **_page_ends(page), has_more=len(files) > limit)


@router.get(
    "/files/{file_id}",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    responses=responses("not-found", "ledger-away"),
)
async def show_file(
    file_id: FileId, service: BatchService, principal: PrincipalOf
) -> models.OpenAiFileView:
    """Show one file."""
    return view_file(await service.file(file_id, principal.id))


@router.get(
    "/files/{file_id}/content",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    response_class=StreamingResponse,
    responses={
        200: {"description": "The file.", "content": {"application/jsonl": {}}},
        **responses("not-found", "ledger-away"),
    },
)
async def read_file(
    file_id: FileId, service: BatchService, principal: PrincipalOf
) -> StreamingResponse:
    """Download a file: the input of a batch, its answers, or its errors."""
    file = await service.file(file_id, principal.id)
    parts = service.content(file)
    first_part = await anext(parts, b"")  # before the status is sent: a lost file is an error

    async def all_parts() -> AsyncIterator[bytes]:
        yield first_part
        async for part in parts:
            yield part

    return StreamingResponse(
        all_parts(),
        media_type="application/jsonl",
        headers={
            "Content-Length": str(file.size),
            "Content-Disposition": f'attachment; filename="{file.id}.jsonl"',
        },
    )


@router.delete(
    "/files/{file_id}",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    responses=responses("not-found", "wrong-state", "ledger-away"),
)
async def delete_file(
    file_id: FileId, service: BatchService, principal: PrincipalOf
) -> models.DeletedOpenAiFile:
    """Delete a file that no open batch reads."""
    await service.delete_file(file_id, principal.id)
    return models.DeletedOpenAiFile(id=file_id)


# --- batches --------------------------------------------------------------------------------------


@router.post(
    "/batches",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    responses=responses("invalid", "not-found", "wrong-state", "no-broker", "ledger-away"),
)
async def create_batch(
    body: models.BatchBody,
    request: Request,
    state: Shared,
    service: BatchService,
    principal: PrincipalOf,
    idempotency_key: IdempotencyKey = None,
) -> models.OpenAiBatchView:
    """Create a batch from an uploaded file. Its requests are jobs of the lane backfill."""
    state.require_broker()
    batch = await service.create(
        principal.id,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        metadata=body.metadata,
        source=source_of(request, None),
        idempotency_key=own_key(request, idempotency_key),
    )
    return view_batch(batch)


@router.get(
    "/batches",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    responses=responses("invalid", "rate-limited", "ledger-away"),
)
async def list_batches(
    service: BatchService,
    principal: PrincipalOf,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Batches of a page.")] = 20,
) -> models.OpenAiBatchList:
    """List the batches of this key, newest first."""
    batches = await service.batches(principal.id, after=after, limit=limit + 1)
    page = [view_batch(each) for each in batches[:limit]]
    return models.OpenAiBatchList(data=page, **_page_ends(page), has_more=len(batches) > limit)


@router.get(
    "/batches/{batch_id}",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    responses=responses("not-found", "ledger-away"),
)
async def show_batch(
    batch_id: BatchId, service: BatchService, principal: PrincipalOf
) -> models.OpenAiBatchView:
    """Show one batch, with the counts of its requests."""
    return view_batch(await service.batch(batch_id, principal.id))


@router.post(
    "/batches/{batch_id}/cancel",
    dependencies=[needs(Scope.PUBLISH), CountedForRateLimit],
    responses=responses("not-found", "wrong-state", "ledger-away"),
)
async def cancel_batch(
    batch_id: BatchId, service: BatchService, principal: PrincipalOf
) -> models.OpenAiBatchView:
    """Cancel a batch. Requests that are being answered end as usual; the others are not sent."""
    return view_batch(await service.cancel(batch_id, principal.id))


def view_file(file: OpenAiFile) -> models.OpenAiFileView:
    """Return a file as OpenAI's API shows it."""
    return models.OpenAiFileView(
        id=file.id,
        bytes=file.size or 0,
        created_at=int(file.created_at),
        expires_at=None if file.expires_at is None else int(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
    )


def view_batch(batch: OpenAiBatch) -> models.OpenAiBatchView:
    """Return a batch as OpenAI's API shows it."""
    states = ("in_progress", "finalizing", "completed", "failed", "expired")
    times = {
        f"{name}_at": None if (time := batch.moments.get(name)) is None else int(time)
        for name in (*states, "cancelling", "cancelled")
    }
    errors = None
    if batch.errors:
        error_list = [models.BatchErrorView(**each) for each in batch.errors]
        errors = models.BatchErrorList(data=error_list)
    counts = models.BatchCounts(total=batch.total, completed=batch.completed, failed=batch.failed)
    return models.OpenAiBatchView(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=errors,
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.state,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=int(batch.created_at),
        expires_at=int(batch.expires_at),
        request_counts=counts,
        metadata=dict(batch.metadata) if batch.metadata is not None else None,
        **times,
    )


def _page_ends(page: list[Any]) -> dict[str, str | None]:
    return {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None}
