"""Complete the OpenAPI document with the responses that every operation may give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from switchyard.api.http.field_descriptions import fill_in
from switchyard.api.http.openai_errors import document_openai_errors
from switchyard.api.http.problems import MEDIA_TYPE, OPENAI_PREFIX, responses
from switchyard.api.models.openai import OpenAiError, OpenAiErrorDetails
from switchyard.api.models.problems import FieldError, ProblemDetails

PIECE_BYTES = 32 * 1024
"""Bytes of a piece in which the document is sent. All answers share one copy of it, as everyone can
fetch it, without a key."""
KEY_PROBLEMS = (
    "unauthorized",
    "forbidden",
    "rate-limited",
    "overloaded",
    "ledger-away",
    "storage-full",
)
BODY_PROBLEMS = ("malformed-request", "request-timeout", "too-large")
REF = "#/components/schemas/"


def operation_id(route: APIRoute) -> str:
    """Return the name of an operation in the document, made of tag and function: `jobs-publish`."""
    tag = route.tags[0] if route.tags else "api"
    return f"{tag}-{route.name}"


def install(app: FastAPI) -> None:
    """Let the app serve the completed document, at `/openapi.json`."""

    def complete() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            _complete(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]

    @cache
    def render_document() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    async def show(_: Request) -> Response:
        document = await asyncio.to_thread(render_document)  # long work, the first time
        headers = {"Content-Length": str(len(document))}
        return StreamingResponse(_pieces(document), headers=headers, media_type="application/json")

    app.router.routes.append(Route("/openapi.json", show))


async def _pieces(document: bytes) -> AsyncIterator[memoryview]:
    for start in range(0, len(document), PIECE_BYTES):
        yield memoryview(document)[start : start + PIECE_BYTES]


def _complete(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (ProblemDetails, FieldError, OpenAiError, OpenAiErrorDetails):
        schema = model.model_json_schema(ref_template=REF + "{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    for path, operation in _operations(document):
        kinds = list(KEY_PROBLEMS) if "security" in operation else ["rate-limited"]
        if "requestBody" in operation:
            kinds += BODY_PROBLEMS
        if operation.get("parameters") or "requestBody" in operation:
            kinds.append("invalid")
        operation_responses = operation.setdefault("responses", {})
        if _is_default(operation_responses.get("422")):
            del operation_responses["422"]
        for status, documented in responses(*kinds).items():
            _merge(operation_responses, str(status), documented)
        if path.startswith(OPENAI_PREFIX):
            operation["responses"] = document_openai_errors(operation_responses)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    fill_in(document)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each operation with its path."""
    for path, item in document["paths"].items():
        for operation in item.values():
            yield path, operation


def _is_default(response: dict[str, Any] | None) -> bool:
    """Return whether FastAPI has added this response, for an error of its own form, which this API
    never sends."""
    return response is not None and "application/json" in response.get("content", {})


def _merge(operation_responses: dict[str, Any], status: str, documented: dict[str, Any]) -> None:
    known = operation_responses.setdefault(status, documented)
    if known is documented:
        return
    content = known.setdefault("content", {})
    if MEDIA_TYPE not in content:
        content.update(documented["content"])
        return
    examples = content[MEDIA_TYPE].setdefault("examples", {})
    examples.update(documented["content"][MEDIA_TYPE]["examples"])
