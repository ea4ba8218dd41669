"""The records of operations, changed and printed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.output import print_json, say

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation


def change(
    work: Callable[[Ledger], Awaitable[BulkOperation]],
    done: str,
    shown: Callable[[BulkOperation], Mapping[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Change an operation and tell: `done` follows its id (`{id}` is it, too), or `shown` of it as
    JSON."""

    async def act() -> BulkOperation:
        async with open_ledger(load_settings()) as ledger:
            return await work(ledger)

    operation = run(act())
    if as_json:
        print_json(shown(operation))
    else:
        say(f"{operation.id} {done.format(id=operation.id)}")


def change_limits(
    kind: str, operation_id: str, changes: Mapping[str, float | int | None], *, as_json: bool
) -> None:
    """Change the limits of an operation of that kind, and tell."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.engine.bulk.control import set_limits

        return await set_limits(ledger, operation_id, changes, kind=kind)

    change(work, "has its new limits", limits, as_json=as_json)


def record_of(operation: BulkOperation) -> dict[str, Any]:
    """What `--json` says of every operation: what, where it stands, who, why and when."""
    return {
        "id": operation.id,
        "title": operation.title,
        "state": operation.state,
        "note": operation.note,
        "reason": operation.reason,
        "created_by": operation.created_by,
        "created_at": operation.created_at,
        "started_at": operation.started_at,
        "finished_at": operation.finished_at,
        "spec": operation.spec,
    }


def limits(operation: BulkOperation) -> dict[str, Any]:
    """What `--json` says of an operation that was changed."""
    shown = {
        "id": operation.id,
        "state": operation.state,
        "rate": operation.rate,
        "max_open": operation.max_open,
    }
    return shown | ({"budget": operation.budget} if operation.kind == "backfill" else {})
