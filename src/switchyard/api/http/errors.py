"""Answer errors as problems: those of the layers beneath, and those of the framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from switchyard.api.http.document_errors import unfinished
from switchyard.api.http.problems import (
    Problem,
    invalid,
    lane_full,
    render,
    try_later,
    with_place,
)
from switchyard.api.http.routing import check_length
from switchyard.broker.errors import (
    BrokerError,
    BrokerUnavailable,
    LaneFull,
    MessageTooLarge,
    NeverTaken,
    NotPermitted,
    Unroutable,
)
from switchyard.broker.patterns import describe_field_error
from switchyard.services.common.errors import (
    ConflictError,
    InvalidInput,
    Misconfigured,
    NotFoundError,
    PermanentFailure,
    SwitchyardError,
    TemporarilyUnavailable,
    kind_of,
)
from switchyard.services.common.files.errors import (
    DiskFull,
    DocumentTooLarge,
    FileTooLarge,
    InvalidKey,
    NotStored,
    StorageUnavailable,
    UnsupportedDocument,
)
from switchyard.services.common.files.storage_quota import StorageFull
from switchyard.services.engine.backfill.sources import InvalidBackfill, SourceUnreachable
from switchyard.services.engine.bulk.control import InvalidLimits
from switchyard.services.engine.dead.changes import InvalidRedrive
from switchyard.services.engine.publishing.requests import InvalidRequest, RequestFieldError
from switchyard.services.engine.records.errors import (
    IdempotencyConflict,
    InvalidCursor,
    LedgerError,
    LedgerFull,
    LedgerReadOnly,
    RowRejected,
)
from switchyard.services.pipeline.documents.document_service import NotFinished
from switchyard.services.pipeline.documents.extractions import ExtractionNotFinished

PROBLEM_OF: Mapping[type[SwitchyardError], str] = {
    InvalidInput: "invalid",
    NotFoundError: "not-found",
    ConflictError: "wrong-state",
    TemporarilyUnavailable: "unavailable",
    Misconfigured: "internal-error",
    PermanentFailure: "internal-error",
}
"""The kind of problem for each kind of error, unless `problem_of` has a more specific one."""


def problem_of(error: Exception) -> Problem:
    """Return the problem for an error of the layers beneath, or of the framework.

    Texts that may name hosts or SQL statements are only logged.
    """
    match error:
        case Problem():
            return error
        case ClientDisconnect():  # nobody reads the answer; this is no defect
            return Problem("malformed-request", "the sender broke off")
        case RequestValidationError():
            return _invalid_request(error.errors())
        case InvalidRequest():
            return invalid(*error.complaints)
        case InvalidBackfill() | InvalidRedrive() | InvalidLimits():
            return invalid(RequestFieldError((), str(error)))
        case InvalidCursor():
            return invalid(RequestFieldError(("cursor",), str(error)), place="query")
        case NotFinished() | ExtractionNotFinished():
            return unfinished(error)
        case FileTooLarge() | DocumentTooLarge():
            return Problem("too-large", str(error))
        case UnsupportedDocument():
            return Problem("unsupported-media-type", str(error))
        case StorageFull():
            return Problem("storage-full", str(error))
        case DiskFull() | LedgerFull():
            return try_later("storage-full", "a disk of the service is full; nothing was done")
        case StorageUnavailable():
            return try_later("unavailable", "the file storage does not answer; try again later")
        case InvalidKey() | NotStored():
            return Problem("internal-error")  # clients name no keys: a record of ours is wrong
        case SourceUnreachable():
            return try_later("source-away", str(error))
        case RowRejected():
            return Problem("invalid", "the ledger can't keep one of the values")
        case IdempotencyConflict():
            return Problem("idempotency-conflict", str(error), job_id=error.job_id)
        case LedgerReadOnly():
            text = "nothing was done: the ledger takes no writes; its operator has to mend that "
            return try_later("ledger-away", text + "(`jobctl doctor`)")
        case LedgerError():
            text = "try again later, with an Idempotency-Key: then nothing is done twice"
            return try_later("ledger-away", text)
        case LaneFull():
            return lane_full(error)
        case MessageTooLarge():
            return Problem("too-large", f"nothing was done: {error}")
        case NeverTaken():
            return invalid(RequestFieldError((), str(error)))
        case NotPermitted():
            text = "nothing was done: the service may not publish this on its broker; its operator "
            return try_later("broker-away", text + "has to allow it (`jobctl doctor`)")
        case Unroutable():
            return try_later("no-queue", f"nothing was kept of the job: {error}")
        case BrokerUnavailable(maybe_accepted=True):
            text = "the job may be done nevertheless; try again later, nothing is done twice"
            return try_later("broker-away", text)
        case BrokerError():
            return try_later("broker-away", "nothing was done; try again later")
        case SwitchyardError():
            return _answer_kind(error)
        case StarletteHTTPException():
            return _answer_status(error)
        case _:
            return Problem("internal-error")


def install(app: FastAPI) -> None:
    """Answer every error as a problem."""

    async def handle(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if isinstance(error, StarletteHTTPException) and not isinstance(error, Problem):
            try:
                await check_length(request)  # no route has read the body
            except Problem as too_large:
                problem = too_large
        if problem.kind.name == "internal-error" and not isinstance(error, StarletteHTTPException):
            raise error  # to `request_middleware`, which logs it with its traceback
        trouble = error.__cause__ if isinstance(error, Problem) else error
        if isinstance(trouble, LedgerError | BrokerError | TemporarilyUnavailable):
            request.state.trouble = f"{type(trouble).__name__}: {trouble}"
        if problem.kind.status is HTTPStatus.METHOD_NOT_ALLOWED:
            problem.headers = {"Allow": ", ".join(_methods(app.routes, request.scope))}
        return render(problem, getattr(request.state, "request_id", None))

    for base in (
        StarletteHTTPException,
        RequestValidationError,
        ClientDisconnect,
        SwitchyardError,
        BrokerError,
    ):
        app.add_exception_handler(base, handle)


def _answer_kind(error: SwitchyardError) -> Problem:
    kind = kind_of(error)
    name = PROBLEM_OF[kind] if kind is not None else "internal-error"
    if kind is TemporarilyUnavailable:
        return try_later(name, "try again later")
    return Problem(name, None if name == "internal-error" else str(error))


def _methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Return all methods of a path, of which the framework only names those of the first route.

    `/backfills/preview` also matches `/backfills/{id}`, whose methods it does not have.
    """
    matching = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    exact = [route for route in matching if getattr(route, "path", None) == scope["path"]]
    return sorted({each for route in exact or matching for each in getattr(route, "methods", ())})


def _invalid_request(errors: Sequence[Any]) -> Problem:
    if any(error["type"] == "json_invalid" for error in errors):
        return Problem("malformed-request", "the body is not valid JSON")
    error_list: list[dict[str, Any]] = [
        {"location": list(error["loc"]), "message": describe_field_error(error)}
        for error in errors[:50]
    ]
    text = "; ".join(with_place(each["location"], each["message"]) for each in error_list[:3])
    return Problem("invalid", text, errors=error_list)


def _answer_status(error: StarletteHTTPException) -> Problem:
    names = {
        400: "malformed-request",
        401: "unauthorized",
        403: "forbidden",
        404: "not-found",
        405: "method-not-allowed",
        409: "not-finished",
        413: "too-large",
        415: "unsupported-media-type",
        422: "invalid",
        429: "rate-limited",
        507: "storage-full",
    }
    name = names.get(error.status_code, "internal-error")
    phrase = HTTPStatus(error.status_code).phrase
    detail = str(error.detail) if error.detail and error.detail != phrase else None
    return Problem(name, detail, headers=error.headers, **getattr(error, "extra", {}))
