"""Answer with lists of references in the format that a client requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Header, Query
from fastapi.responses import Response

from switchyard.services.pipeline.citations.formats.export import (
    MEDIA_TYPES,
    ReferenceFormat,
    export_references,
)

FORMATS_RESPONSE: dict[str, Any] = {
    "description": "In the format that was asked for.",
    "content": {
        media_type: {"schema": {"type": "string"}}
        for name, media_type in MEDIA_TYPES.items()
        if name is not ReferenceFormat.JSON
    },
}
"""OpenAPI's response object of an endpoint that answers in the format that is asked for."""


async def _format_of(
    requested: Annotated[
        ReferenceFormat | None,
        Query(alias="format", description="Format of the answer; takes precedence over `Accept`."),
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> ReferenceFormat:
    """Return the format in the query, else the first that `Accept` names, else JSON."""
    if requested is not None:
        return requested
    accepted = [each.partition(";")[0].strip().lower() for each in accept.split(",")]
    by_type = {media_type: name for name, media_type in MEDIA_TYPES.items()}
    return next((by_type[each] for each in accepted if each in by_type), ReferenceFormat.JSON)


FormatOf = Annotated[ReferenceFormat, Depends(_format_of)]


def in_format(
    references: Sequence[Mapping[str, Any]], reference_format: ReferenceFormat
) -> Response:
    """Return the answer with stored references in a format."""
    export = export_references(references, reference_format)
    return Response(export.content, media_type=export.media_type)
