"""What can go wrong when the API is called: one tree.

ApiError
├── ApiUnavailable      no answer came: the network, or nothing listens there
├── UnexpectedResponse  something answered, but not this API: a page, another version
├── WaitTimeout         `wait…` gave up; the job or document goes on
├── Unauthorized        401
├── Forbidden           403
├── NotFound            404
├── Conflict            409
├── TooLarge            413
├── UnsupportedMedia    415
├── Invalid             400, 405, 408, 422
├── RateLimited         429
└── Unavailable         500 and above: overloaded, a dependency is down, or a defect
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
from pydantic import ValidationError

from switchyard.api.models.problems import TYPE_BASE, FieldError, ProblemDetails
from switchyard.services.common.printable import quoted_answer


class ApiError(Exception):
    """A call that did not succeed. The text is what a person should read."""

    status: int | None = None
    """Status of the answer; None where no answer came."""
    kind: str | None = None
    """The problem's name, as in `lane-full`; docs/api.md explains each."""
    title: str | None = None
    detail: str | None = None
    request_id: str | None = None
    """Id of the request in the service's log."""
    retry_after: float | None = None
    """Seconds after which the call may be tried again."""
    errors: tuple[FieldError, ...] = ()
    """The fields that are not valid."""
    extra: Mapping[str, Any] = {}
    """Further fields of this kind of problem, such as `job_id`."""


class ApiUnavailable(ApiError):
    """No answer came. The call may still have been carried out."""


class UnexpectedResponse(ApiError):
    """An answer that can't be read: something else listens there, or another version."""


class WaitTimeout(ApiError, TimeoutError):
    """The job or document has not ended in time. It goes on."""


class Unauthorized(ApiError):
    """No key, or one that is unknown or revoked."""


class Forbidden(ApiError):
    """The key does not allow this."""


class NotFound(ApiError):
    """There is no such thing."""


class Conflict(ApiError):
    """The call conflicts with the current state: `kind` and `extra` say how."""


class TooLarge(ApiError):
    """The request is larger than the service accepts."""


class UnsupportedMedia(ApiError):
    """A file of a kind that the service does not process."""


class Invalid(ApiError):
    """The request is not valid; `errors` names the fields."""


class RateLimited(ApiError):
    """Too many requests: try again after `retry_after` seconds."""


class Unavailable(ApiError):
    """The service failed (500), or can't do it now (503)."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    415: UnsupportedMedia,
    429: RateLimited,
}


def error_of(answer: httpx.Response) -> ApiError:
    """Return the error of an answer, whose body must have been read."""
    try:
        problem = ProblemDetails.model_validate_json(answer.content)
    except ValidationError:
        phrase = f"{answer.status_code} {answer.reason_phrase}".strip()
        reason = f"{answer.url.host} answered {phrase}"
        if answer.is_redirect:
            reason += f", to {answer.headers['location'][:200]}: is that the address of the API?"
        elif answer.content:
            reason += f": {quoted_answer(answer.content)}"
        error = _class_of(answer.status_code)(reason)
        error.status = answer.status_code
        error.retry_after = _seconds(answer)
        return error
    reason = f"{problem.title}: {problem.detail}" if problem.detail else problem.title
    error = _class_of(answer.status_code)(reason)
    error.status = answer.status_code
    error.kind = problem.type.removeprefix(TYPE_BASE)
    error.title = problem.title
    error.detail = problem.detail
    error.request_id = problem.request_id
    error.retry_after = _seconds(answer)
    error.errors = tuple(problem.errors or ())
    error.extra = dict(problem.model_extra or {})
    return error


def unreachable_error(error: httpx.RequestError, url: httpx.URL) -> ApiUnavailable:
    """Return the error of a call that got no answer."""
    place = f"{url.host}:{url.port}" if url.port else url.host
    reason = str(error) or type(error).__name__
    return ApiUnavailable(f"the API at {place} can't be reached: {reason}")


def shown_url(url: httpx.URL) -> str:
    """Return an address without its password."""
    return str(url.copy_with(userinfo=b""))


def _class_of(status: int) -> type[ApiError]:
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    if status < 400:
        return UnexpectedResponse
    return Unavailable if status >= 500 else Invalid


def _seconds(answer: httpx.Response) -> float | None:
    try:
        return max(0.0, float(answer.headers.get("retry-after", "")))
    except ValueError:
        return None  # no header, or a date, which this API does not send
