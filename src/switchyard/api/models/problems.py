"""Problem details (RFC 9457): all kinds of problems, and the body of an answer with one.

docs/api.md explains each kind under its name; a test compares the two. `api.http.errors` maps
errors to kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from pydantic import ConfigDict, Field

from switchyard.api.models.base import ApiModel

TYPE_BASE = "/problems/"


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
        Kind("not-found", _S.NOT_FOUND, "Not found"),
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
        Kind("budget-spent", _S.TOO_MANY_REQUESTS, "A budget of the API key is spent"),
        Kind("unknown-model", _S.NOT_FOUND, "No server has the model"),
        Kind("model-refused", _S.BAD_REQUEST, "The model server refuses the request"),
        Kind("request-cancelled", _S.CONFLICT, "The request was cancelled"),
        Kind("model-failed", _S.BAD_GATEWAY, "No model server has answered"),
        Kind("not-answered", _S.GATEWAY_TIMEOUT, "The model did not answer in time"),
        Kind("internal-error", _S.INTERNAL_SERVER_ERROR, "A defect of the service"),
        Kind("lane-full", _S.SERVICE_UNAVAILABLE, "The lane is full"),
        Kind("no-queue", _S.SERVICE_UNAVAILABLE, "The broker has no queue for the job"),
        Kind("broker-away", _S.SERVICE_UNAVAILABLE, "The broker can't take jobs now"),
        Kind("ledger-away", _S.SERVICE_UNAVAILABLE, "The ledger can't be used now"),
        Kind("no-broker", _S.SERVICE_UNAVAILABLE, "The service runs without a broker"),
        Kind("source-away", _S.SERVICE_UNAVAILABLE, "The source does not answer now"),
        Kind("search-away", _S.SERVICE_UNAVAILABLE, "The index or its embedder can't be used now"),
        Kind("too-many-streams", _S.SERVICE_UNAVAILABLE, "Too many clients follow events"),
        Kind("overloaded", _S.SERVICE_UNAVAILABLE, "Too much data at once"),
        Kind("unavailable", _S.SERVICE_UNAVAILABLE, "Something that is needed is away"),
        Kind(
            "storage-full",
            _S.INSUFFICIENT_STORAGE,
            "No room: quota or disk is full",
        ),
    )
}


class FieldError(ApiModel):
    """One thing that is wrong with a request."""

    location: list[str | int] = Field(
        description="Where: `body`, `query`, `path` or `header`, then the names of fields."
    )
    message: str


class ProblemDetails(ApiModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "/problems/not-found",
                "title": "Not found",
                "status": 404,
                "detail": "there is no job 0b0f6c1e",
                "request_id": "b4f1c4f0a2d94ad9",
            }
        },
    )

    type: str = Field(description="The kind of problem, an address relative to this service.")
    title: str
    status: int
    detail: str | None = Field(
        default=None, description="Explanation of this occurrence, and what to do."
    )
    request_id: str | None = Field(default=None, description="Id of the request in the logs.")
    errors: list[FieldError] | None = Field(default=None, description="Each invalid field.")
