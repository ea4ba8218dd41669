"""Routes that check keys before they read bodies, and that are complete when they are imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Protocol, runtime_checkable

from fastapi import APIRouter, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.params import Depends
from fastapi.routing import APIRoute

from switchyard.api.http.event_stream import EventStream, admission_of
from switchyard.api.http.openapi import operation_id
from switchyard.api.http.problems import JsonResponse
from switchyard.broker import patterns

Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(pattern=patterns.CURSOR, max_length=500)]
"""Where a page begins: `next_cursor` of the one before."""
CHECK_LENGTH = "check_length"
"""Key in the state of a request: a function that refuses it if its header says that the body is too
long."""
LONG_WAIT = 1.0
"""Seconds; the key of a request that takes longer is checked again, as it may be revoked."""


async def check_length(request: Request) -> None:
    """Raise Problem where the request says that its body is too long."""
    check = request.scope.get("state", {}).get(CHECK_LENGTH)
    if check is not None:
        await check()


class BodyBound:
    """A dependency that sets how many bytes a route accepts, where these are fewer than usual: for
    bodies that are read before the key is known."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    async def __call__(self) -> None:
        """Do nothing, as `middleware.bodies` enforces the limit."""


@runtime_checkable
class RouteGuard(Protocol):
    """A dependency that decides without the body whether a request is let in. It is never called as
    one: its parameters are for OpenAPI."""

    async def admit(self, request: Request) -> None:
        """Raise Problem if the request is not let in."""


class GuardedRoute(APIRoute):
    """A route that calls its guards before it reads a body. The framework reads the body first, so
    that clients without a key could fill the memory."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        documented = self.dependant
        # As dependencies, the guards only tell OpenAPI how a key is sent. To work them out again
        # behind `admit` would be a tenth of the processor time of a `POST /jobs`.
        self.dependant = _without_guards(documented)
        handle = super().get_route_handler()
        self.dependant = documented
        guards = self.guards  # once, as it searches all dependencies

        async def guarded(request: Request) -> Response:
            for each in guards:
                await each.admit(request)
            await check_length(request)
            began = time.monotonic()
            response = await handle(request)
            admission = admission_of(request.scope)
            took_long = time.monotonic() - began > LONG_WAIT
            if admission is not None and took_long and not isinstance(response, EventStream):
                await admission.check()
            return response

        return guarded

    @property
    def guards(self) -> list[RouteGuard]:
        guards: list[Any] = [each.dependency for each in self.dependencies]
        return [each for each in guards if isinstance(each, RouteGuard)]

    @cached_property
    def max_body(self) -> int | None:
        """Bytes that it accepts, where these are fewer than for other routes; otherwise None."""
        dependencies = [each.dependency for each in self.dependencies]
        return min(
            (each.max_bytes for each in dependencies if isinstance(each, BodyBound)), default=None
        )

    @cached_property
    def takes_files(self) -> bool:
        """Whether it reads files piece by piece; other routes read JSON as a whole."""
        body = (self.openapi_extra or {}).get("requestBody", {})
        return "multipart/form-data" in body.get("content", {})


def _without_guards(dependant: Dependant) -> Dependant:
    """Return the dependant without what the route asks before the body is read."""
    others = [
        each for each in dependant.dependencies if not isinstance(each.call, RouteGuard | BodyBound)
    ]
    return replace(dependant, dependencies=others)


class Routes(APIRouter):
    """Routes that are complete when their module is imported, and that the application lists as
    they are. `include_router` would build each of them again for every application, which takes a
    tenth of a second, while its first request waits."""

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
            default_response_class=JsonResponse,
            route_class=GuardedRoute,
            generate_unique_id_function=operation_id,
        )
