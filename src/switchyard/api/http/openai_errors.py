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
    places = [each["location"] for each in problem.get("errors", ()) if each.get("location")]
    at = places[0][1:] if places else ()
    param = ".".join(map(str, at[1:] if at[:1] == ["payload"] else at))
    error = {
        "message": problem.get("detail") or problem["title"],
        "type": kind,
        "param": param or None,
        "code": problem.get("error_code") or code,
        "request_id": problem.get("request_id"),
    }
    return status, {"error": error}


def document_openai_errors(answers: dict[str, Any]) -> dict[str, Any]:
    """Return the documented answers of an operation with errors instead of problems."""
    errors: dict[str, Any] = {}
    for status, answer in answers.items():
        content = answer.get("content", {})
        if MEDIA_TYPE not in content:
            errors[status] = answer
            continue
        for name, example in content[MEDIA_TYPE]["examples"].items():
            sent, body = error_of(example["value"])
            documented = errors.setdefault(
                str(sent.value),
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
