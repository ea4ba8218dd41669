"""Routes as the application takes them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from fastapi import APIRouter
from fastapi.params import Depends

from switchyard.api.http.answers import JSONAnswer
from switchyard.api.http.openapi import operation_id


class Routes(APIRouter):
    """Routes that are complete when their module is imported: the application lists them as they
    are. `include_router` would build each of them again, for every application, while its first
    request waits: a tenth of a second."""

    def __init__(
        self,
        *,
        prefix: str = "",
        tags: Sequence[str | Enum] = (),
        dependencies: Sequence[Depends] = (),
        include_in_schema: bool = True,
    ) -> None:
        super().__init__(
            prefix=prefix,
            tags=list(tags),
            dependencies=dependencies,
            include_in_schema=include_in_schema,
            default_response_class=JSONAnswer,
            generate_unique_id_function=operation_id,
        )
