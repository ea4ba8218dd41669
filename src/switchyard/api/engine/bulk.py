"""Shared by the endpoints of backfills, redrives and bulk actions: list, show, pause, resume, set
limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path, Query, Request
from fastapi.params import Depends
from pydantic import BaseModel

from switchyard.api.http.problems import responses
from switchyard.api.http.routing import Cursor, Routes
from switchyard.api.middleware.access import receipt, starter_of
from switchyard.api.state import ApiState, Shared
from switchyard.services.engine.bulk import control
from switchyard.services.engine.bulk.shown import shown_operation
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkOperation, BulkState

V = TypeVar("V", bound=BaseModel)
"""The model of an operation in answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRoutes(Generic[V]):
    """The routes of the operations of one kind."""

    noun: str
    """Name of an operation in paths and answers, such as `redrive`."""
    kinds: Collection[str]
    path: str
    """Path of the list of operations, below the router's prefix."""
    suffix: str = ""
    """Suffix of the API's operation ids: `_redrive` in `pause_redrive`."""
    id_pattern: str
    view: type[V]
    view_of: Callable[[Ledger, BulkOperation], Awaitable[V]]
    page: type[BaseModel]
    """Model of a page of operations, in a field named by the noun's plural, such as `redrives`."""
    resume: Callable[[Ledger, str], Awaitable[BulkOperation]]
    reads: Sequence[Depends] = ()
    """Scopes that a key needs for reading, in addition to the router's."""
    changes: Sequence[Depends] = ()

    async def view_operation(self, state: ApiState, operation_id: str) -> V:
        """Return an operation with its progress. Raises UnknownBulkOperation, LedgerUnavailable."""
        operation = await control.require_bulk(state.ledger, operation_id, *self.kinds)
        return await self._view(state, operation)

    async def view_receipt(self, state: ApiState, request: Request, operation_id: str) -> V:
        """Return the view of an operation for the key that has changed it: complete if that key
        also started the operation. Raises as `view_operation` does."""
        operation = await control.require_bulk(state.ledger, operation_id, *self.kinds)
        view = await self._view(state, operation)
        return receipt(request, view, is_own=operation.created_by == starter_of(request))

    async def _view(self, state: ApiState, operation: BulkOperation) -> V:
        return await self.view_of(state.ledger, shown_operation(state.registry, operation))

    async def set_limits(
        self,
        state: ApiState,
        request: Request,
        operation_id: str,
        changes: Mapping[str, float | int | None],
    ) -> V:
        """Change an operation's limits. Raises UnknownBulkOperation, BulkConflict,
        LedgerUnavailable."""
        if changes:
            await control.set_limits(state.ledger, operation_id, changes, kinds=self.kinds)
        return await self.view_receipt(state, request, operation_id)

    def add_to(self, router: Routes) -> None:
        """Add the routes that list, show, pause and resume operations of this kind."""
        id_name, plural = f"{self.noun}_id", f"{self.noun}s"
        one_path = f"{self.path}/{{{id_name}}}"
        operation_id: Any = Path(
            alias=id_name,
            pattern=self.id_pattern,
            description=f"The {self.noun}'s id.",
            examples=[f"{next(iter(self.kinds))}-3fa9c01b22"],
        )
        action_responses = responses("not-found", "wrong-state", "ledger-away")

        @router.get(
            self.path,
            name=f"list_{plural}",
            response_model=self.page,
            dependencies=self.reads,
            responses=responses("invalid", "ledger-away"),
        )
        async def list_operations(
            state: Shared,
            bulk_state: Annotated[BulkState | None, Query(alias="state")] = None,
            limit: Annotated[int, Query(ge=1, le=100)] = 20,
            cursor: Cursor = None,
        ) -> BaseModel:
            """List the operations, newest first."""
            states = [] if bulk_state is None else [bulk_state]
            page = await state.ledger.bulk.list_bulk(
                *self.kinds, states=states, limit=limit, cursor=cursor
            )
            views = [await self._view(state, each) for each in page.items]
            return self.page.model_validate({plural: views, "next_cursor": page.next_cursor})

        @router.get(
            one_path,
            name=f"show{self.suffix}",
            response_model=self.view,
            dependencies=self.reads,
            responses=responses("not-found", "ledger-away"),
        )
        async def show(state: Shared, operation_id: str = operation_id) -> V:
            """Show the operation's progress and its results so far."""
            return await self.view_operation(state, operation_id)

        @router.post(
            f"{one_path}/pause",
            name=f"pause{self.suffix}",
            response_model=self.view,
            dependencies=self.changes,
            responses=action_responses,
        )
        async def pause(state: Shared, request: Request, operation_id: str = operation_id) -> V:
            """Pause the operation within a second, until it is resumed."""
            await control.pause(state.ledger, operation_id, kinds=self.kinds)
            return await self.view_receipt(state, request, operation_id)

        @router.post(
            f"{one_path}/resume",
            name=f"resume{self.suffix}",
            response_model=self.view,
            dependencies=self.changes,
            responses=action_responses,
        )
        async def resume(state: Shared, request: Request, operation_id: str = operation_id) -> V:
            """Resume the operation where it stopped, also after a halt."""
            await self.resume(state.ledger, operation_id)
            return await self.view_receipt(state, request, operation_id)
