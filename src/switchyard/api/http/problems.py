"""Answer with JSON; raise, render and document problems (RFC 9457). `api.models.problems` has the
kinds of problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.responses import Response

from switchyard.api.models.problems import KINDS, TYPE_BASE, Kind
from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import lane_of
from switchyard.services.common.printable import to_json
from switchyard.services.engine.publishing.requests import RequestFieldError

MEDIA_TYPE = "application/problem+json"
OPENAI_PREFIX = "/v1/"
"""Prefix of the paths whose requests, answers and errors have the form of OpenAI's API."""
RETRY_AFTER = 5
"""Seconds after which a client should try again when a dependency does not answer, or a lane is
full."""
POLL_AFTER = {"Retry-After": "1"}
"""Headers of an answer that has no result yet: the seconds until the next poll."""


class JsonResponse(JSONResponse):
    """An answer in JSON, also for values that JSON can't express: half of a surrogate pair is
    escaped; NaN and infinity become null. So one odd value that a job stored does not break a whole
    listing."""

    def render(self, content: Any) -> bytes:
        text = to_json(content, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")  # as JSON writes them, too


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
        all_headers = dict(headers or {})
        if retry_after is not None:
            all_headers["Retry-After"] = str(max(1, ceil(retry_after)))
        super().__init__(self.kind.status, detail, all_headers or None)

    @property
    def content(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        content = {
            "type": TYPE_BASE + self.kind.name,
            "title": self.kind.title,
            "status": self.kind.status.value,
            "detail": self.text,
            **self.extra,
        }
        return {key: value for key, value in content.items() if value is not None}


def invalid(*errors: RequestFieldError, place: str = "body") -> Problem:
    """Make the problem of a request with invalid fields; `place` is the part of the request that
    they are in."""
    error_list = [{"location": [place, *each.at], "message": each.message} for each in errors]
    text = "; ".join(
        with_place((place, *each.at), each.message) if each.at else each.message
        for each in errors[:3]
    )
    return Problem("invalid", text, errors=error_list)


def with_place(location: Iterable[str | int], message: str) -> str:
    """Return the message with the place in the request to which it refers before it."""
    return f"{'.'.join(map(str, location))}: {message}"


def try_later(name: str, detail: str | None = None, **extra: Any) -> Problem:
    """Make a problem that may pass, with `Retry-After`."""
    return Problem(name, detail, retry_after=RETRY_AFTER, **extra)


def lane_full(error: LaneFull, *, job_id: str | None = None) -> Problem:
    """Make the problem of a full lane: nothing was done, unless the job is a dead letter now; then
    the answer names `job_id`, if it is given."""
    full = f"the lane {lane_of(error.routing_key)} is full (routing key {error.routing_key})"
    if not error.dead_lettered:
        return try_later("lane-full", f"{full}: nothing was done; try again later")
    text = f"{full}: the job waits in the dead letters, from where it can be redriven"
    return try_later("lane-full", text, **({} if job_id is None else {"job_id": job_id}))


def render(problem: Problem, request_id: str | None) -> Response:
    """Return the answer with this problem."""
    content = problem.content
    if request_id is not None:
        content["request_id"] = request_id
    return JsonResponse(
        content, problem.kind.status, headers=problem.headers, media_type=MEDIA_TYPE
    )


def responses(*names: str) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of the problems that an operation may answer with."""
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
    kinds_by_status: dict[int, list[Kind]] = {}
    for name in dict.fromkeys(names):
        kinds_by_status.setdefault(KINDS[name].status.value, []).append(KINDS[name])
    return sorted(kinds_by_status.items())


def _example(kind: Kind) -> dict[str, Any]:
    return {
        "type": TYPE_BASE + kind.name,
        "title": kind.title,
        "status": kind.status.value,
        "request_id": "b4f1c4f0a2d94ad9",
    }
