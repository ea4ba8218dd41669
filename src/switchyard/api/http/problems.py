"""Problem details (RFC 9457): every kind there is. `api.http.errors` says which error is which.

docs/api.md explains each kind under its name; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from switchyard.services.publishing.requests import Complaint

MEDIA_TYPE = "application/problem+json"
TYPE_BASE = "/problems/"
RETRY_AFTER = 5
"""Seconds after which a client should come again when something is away or full."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem. Its `type` is the relative address `/problems/<name>`."""

    name: str
    status: HTTPStatus
    title: str


_S = HTTPStatus
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("malformed-request", _S.BAD_REQUEST, "The request can't be read"),
        Kind("unauthorized", _S.UNAUTHORIZED, "A valid API key is needed"),
        Kind("forbidden", _S.FORBIDDEN, "The API key does not allow this"),
        Kind("not-found", _S.NOT_FOUND, "There is nothing here"),
        Kind("method-not-allowed", _S.METHOD_NOT_ALLOWED, "Another method is needed here"),
        Kind("request-timeout", _S.REQUEST_TIMEOUT, "The request was not sent in time"),
        Kind("idempotency-conflict", _S.CONFLICT, "The idempotency key belongs to another job"),
        Kind("already-ended", _S.CONFLICT, "The job has ended"),
        Kind("not-finished", _S.CONFLICT, "There is no result yet"),
        Kind("document-failed", _S.CONFLICT, "The document has failed"),
        Kind("wrong-state", _S.CONFLICT, "That can't be done in the state that it is in"),
        Kind("too-large", _S.REQUEST_ENTITY_TOO_LARGE, "The request is too large"),
        Kind("unsupported-media-type", _S.UNSUPPORTED_MEDIA_TYPE, "The content is not supported"),
        Kind("invalid", _S.UNPROCESSABLE_ENTITY, "The request is not valid"),
        Kind("document-unreadable", _S.UNPROCESSABLE_ENTITY, "The document can't be read"),
        Kind("rate-limited", _S.TOO_MANY_REQUESTS, "Too many requests"),
        Kind("internal-error", _S.INTERNAL_SERVER_ERROR, "A defect of the service"),
        Kind("lane-full", _S.SERVICE_UNAVAILABLE, "The lane is full"),
        Kind("broker-away", _S.SERVICE_UNAVAILABLE, "The broker can't take jobs now"),
        Kind("ledger-away", _S.SERVICE_UNAVAILABLE, "The ledger can't be used now"),
        Kind("no-broker", _S.SERVICE_UNAVAILABLE, "The service runs without a broker"),
        Kind("source-away", _S.SERVICE_UNAVAILABLE, "The source does not answer now"),
        Kind("search-away", _S.SERVICE_UNAVAILABLE, "The index or its embedder can't be used now"),
        Kind("too-many-streams", _S.SERVICE_UNAVAILABLE, "Too many clients follow events"),
        Kind("unavailable", _S.SERVICE_UNAVAILABLE, "Something that is needed is away"),
        Kind("storage-full", _S.INSUFFICIENT_STORAGE, "The storage quota is used up"),
    )
}


class FieldError(BaseModel):
    """One thing that is wrong with a request."""

    location: list[str | int] = Field(
        description="Where: `body`, `query`, `path` or `header`, then the names of fields."
    )
    message: str


class ProblemDetails(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "/problems/not-found",
                "title": "There is nothing here",
                "status": 404,
                "detail": "there is no job 0b0f6c1e",
                "request_id": "b4f1c4f0a2d94ad9",
            }
        },
    )

    type: str = Field(description="The kind of problem, an address relative to this service.")
    title: str
    status: int
    detail: str | None = Field(default=None, description="What is wrong this time.")
    request_id: str | None = Field(default=None, description="Names the request in the logs.")
    errors: list[FieldError] | None = Field(default=None, description="Each invalid field.")


class Problem(HTTPException):
    """Raised to answer with a problem. An HTTPException, so that FastAPI lets it pass."""

    def __init__(
        self,
        name: str,
        detail: str | None = None,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        self.kind = KINDS[name]
        self.text = detail
        self.extra = extra
        more = dict(headers or {})
        if retry_after is not None:
            more["Retry-After"] = str(max(1, round(retry_after + 0.5)))
        super().__init__(self.kind.status, detail, more or None)


def invalid(*errors: Complaint, place: str = "body") -> Problem:
    """A request with invalid fields, which stand in that part of it."""
    listed = [{"location": [place, *each.at], "message": each.message} for each in errors]
    return Problem("invalid", "; ".join(each.message for each in errors[:3]), errors=listed)


def try_later(name: str, detail: str | None = None, **extra: Any) -> Problem:
    """Something is away or full: the client should come again."""
    return Problem(name, detail, retry_after=RETRY_AFTER, **extra)


def overflowed(**extra: Any) -> Problem:
    """The lane was full, and the job is a dead letter now."""
    text = "the job waits in the dead letters, from where it can be redriven"
    return try_later("lane-full", text, **extra)


def render(problem: Problem, request_id: str | None) -> Response:
    """The answer to a request that ended so."""
    body: dict[str, Any] = {
        "type": TYPE_BASE + problem.kind.name,
        "title": problem.kind.title,
        "status": problem.kind.status.value,
        "detail": problem.text,
        "request_id": request_id,
        **problem.extra,
    }
    content = {key: value for key, value in body.items() if value is not None}
    return JSONResponse(
        content, problem.kind.status, headers=problem.headers, media_type=MEDIA_TYPE
    )


def responses(*names: str) -> dict[int | str, dict[str, Any]]:
    """The documentation of problems that an operation may answer with."""
    documented: dict[int | str, dict[str, Any]] = {}
    for status, kinds in _by_status(names):
        documented[status] = {
            "description": "; ".join(kind.title for kind in kinds),
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/ProblemDetails"},
                    "examples": {kind.name: {"value": _example(kind)} for kind in kinds},
                }
            },
        }
    return documented


def _by_status(names: Iterable[str]) -> list[tuple[int, list[Kind]]]:
    found: dict[int, list[Kind]] = {}
    for name in dict.fromkeys(names):
        found.setdefault(KINDS[name].status.value, []).append(KINDS[name])
    return sorted(found.items())


def _example(kind: Kind) -> dict[str, Any]:
    return {
        "type": TYPE_BASE + kind.name,
        "title": kind.title,
        "status": kind.status.value,
        "request_id": "b4f1c4f0a2d94ad9",
    }
