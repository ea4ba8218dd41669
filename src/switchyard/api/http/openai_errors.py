"""Problems as OpenAI's API writes its errors: their form, status and documentation below `/v1`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from switchyard.api.http.problems import MEDIA_TYPE
from switchyard.api.models.problems import KINDS, TYPE_BASE

_TYPES = {
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "forbidden": ("invalid_request_error", "insufficient_permissions"),
    "rate-limited": ("rate_limit_error", "rate_limit_exceeded"),
    "budget-spent": ("insufficient_quota", "insufficient_quota"),
    "lane-full": ("rate_limit_error", "queue_full"),
    "too-many-streams": ("rate_limit_error", "too_many_streams"),
    "unknown-model": ("invalid_request_error", "model_not_found"),
}
"""`type` and `code` by kind of problem; others have their kind as `code`."""
_STATUSES = {
    # The API of OpenAI knows no 422.
    "invalid": HTTPStatus.BAD_REQUEST,
    "lane-full": HTTPStatus.TOO_MANY_REQUESTS,
    "too-many-streams": HTTPStatus.TOO_MANY_REQUESTS,
}


def error_of(problem: dict[str, Any]) -> tuple[HTTPStatus, dict[str, Any]]:
    """Return status and body of the error in OpenAI's form for a rendered problem."""
    name = str(problem["type"]).removeprefix(TYPE_BASE)
    status = _STATUSES.get(name, KINDS[name].status)
    default_type = (
        "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    )
    kind, code = _TYPES.get(name, (default_type, name.replace("-", "_")))
    locations = [each["location"] for each in problem.get("errors", ()) if each.get("location")]
    path = locations[0][1:] if locations else ()
    param = ".".join(map(str, path[1:] if path[:1] == ["payload"] else path))
    error = {
        "message": problem.get("detail") or problem["title"],
        "type": kind,
        "param": param or None,
        "code": problem.get("error_code") or code,
        "request_id": problem.get("request_id"),
    }
    return status, {"error": error}


def document_openai_errors(responses: dict[str, Any]) -> dict[str, Any]:
    """Return an operation's `responses` of the OpenAPI document, with OpenAI's errors instead of
    problems."""
    errors: dict[str, Any] = {}
    for status, response in responses.items():
        content = response.get("content", {})
        if MEDIA_TYPE not in content:
            errors[status] = response
            continue
        for name, example in content[MEDIA_TYPE]["examples"].items():
            openai_status, body = error_of(example["value"])
            documented = errors.setdefault(
                str(openai_status.value),
                {
                    "description": KINDS[name].title,
                    "content": {
                        "application/json": {
                            "schema": {"$ref": "#/components/schemas/OpenAiError"},
                            "examples": {},
                        }
                    },
                },
            )
            documented["content"]["application/json"]["examples"][name] = {"value": body}
    return errors
