"""Limit, pause, resume and cancel bulk operations. How they run: `services.engine.bulk.runner`."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

from switchyard.services.common.errors import ConflictError, InvalidInput, NotFoundError
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.short_ids import IdTable
from switchyard.services.engine.records.bulk import (
    ACTIVE,
    ENDED,
    MAX_RATE,
    MAX_WEIGHT,
    MIN_RATE,
    RESUMABLE,
    WEIGHT,
    BulkHold,
    BulkOperation,
    BulkState,
)

MOST: Mapping[str, float] = {
    "rate": MAX_RATE,
    "max_open": 2_000_000_000,
    "budget": 1_000_000_000,
    WEIGHT: MAX_WEIGHT,
}
"""The highest values of limits; None, for no limit, is allowed beside these."""
LEAST: Mapping[str, float] = {"rate": MIN_RATE, WEIGHT: 1 / MAX_WEIGHT}
WEIGHTED = frozenset({"backfill"})
"""Kinds whose operations share queues by their weights."""

LISTED_BY = {
    "backfill": ": see `jobctl backfill list`, GET /backfills",
    "redrive": ": see `jobctl dead redrives list`, GET /admin/dead/redrives",
    "cancel": ": see `jobctl jobs actions list`, GET /jobs/actions",
    "rerun": ": see `jobctl jobs actions list`, GET /jobs/actions",
    "move": ": see `jobctl jobs actions list`, GET /jobs/actions",
}
"""End of an error's text, by kind: the command and route that list its operations."""


class UnknownBulkOperation(NotFoundError):
    """The ledger has no such operation."""


class InvalidLimits(InvalidInput):
    """A rate, a number of open jobs or a budget that can't be meant."""


class BulkConflict(ConflictError):
    """The operation can't be moved from the state that it is in; the text says which."""


def new_bulk_id(kind: str) -> str:
    """Make an id for an operation of that kind."""
    return f"{kind}-{secrets.token_hex(5)}"


async def require_bulk(ledger: Ledger, operation_id: str, *kinds: str) -> BulkOperation:
    """Return the operation with that id, or the only one whose id begins with it. An operation of
    a kind that is not in `kinds` counts as unknown. Raises UnknownBulkOperation, AmbiguousId."""
    operation = await ledger.bulk.get_bulk(
        await ledger.short_ids.full_id(IdTable.OPERATIONS, operation_id)
    )
    if operation is None or (kinds and operation.kind not in kinds):
        what = kinds[0] if len(kinds) == 1 else "bulk action" if kinds else "operation"
        listed_by = LISTED_BY.get(kinds[0], "") if kinds else ""
        raise UnknownBulkOperation(f"no {what} {operation_id!r}{listed_by}")
    return operation


def check_limits(limits: Mapping[str, float | int | None]) -> None:
    """Raise InvalidLimits for a rate, a number of open jobs, a budget or a weight that is out of
    range."""
    for name, value in limits.items():
        if value is None:
            if name == WEIGHT:
                raise InvalidLimits(
                    "a weight can't be taken away: 1 is what others have by default"
                )
            continue
        if 0 < value < LEAST.get(name, 0):
            unit = " a second" if name == "rate" else ""
            raise InvalidLimits(f"{name} must be at least {LEAST[name]:g}{unit}")
        if not value > 0:
            raise InvalidLimits(f"{name} must be more than 0; to stop publishing, pause it")
        if value > MOST[name]:
            advice = "" if name == WEIGHT else "; leave it out for no limit"
            raise InvalidLimits(f"{name} must be at most {MOST[name]:,}{advice}")


async def set_limits(
    ledger: Ledger,
    operation_id: str,
    changes: Mapping[str, float | int | None],
    *,
    kinds: Collection[str] = (),
) -> BulkOperation:
    """Change `rate` (jobs a second), `max_open` or `budget`, or take it away with None; or the
    `weight` of a backfill. Also while it runs. Raises InvalidLimits, UnknownBulkOperation,
    BulkConflict when it is over."""
    check_limits(changes)
    operation = await require_bulk(ledger, operation_id, *kinds)
    if WEIGHT in changes and operation.kind not in WEIGHTED:
        raise InvalidLimits(f"a {operation.kind} has no weight: it shares no queue")
    if operation.state in ENDED:
        raise BulkConflict(f"{operation_id} is {operation.state}: it is over")
    return await ledger.bulk.set_bulk_limits(operation.id, changes) or operation


async def pause(
    ledger: Ledger, operation_id: str, note: str | None = None, *, kinds: Collection[str] = ()
) -> BulkOperation:
    """Pause the operation within half a second. With `kinds`, an operation of another kind counts
    as unknown. Raises UnknownBulkOperation, BulkConflict."""
    same = {BulkState.PAUSED}
    return await _move(ledger, operation_id, kinds, BulkState.PAUSED, ACTIVE, same, note)


async def resume(
    ledger: Ledger,
    operation_id: str,
    *,
    kinds: Collection[str] = (),
    hold: BulkHold | None = None,
) -> BulkOperation:
    """Continue a paused operation; with `hold`, in that process. Raises
    UnknownBulkOperation, BulkConflict."""
    return await _move(ledger, operation_id, kinds, BulkState.WAITING, RESUMABLE, ACTIVE, hold=hold)


async def cancel(
    ledger: Ledger, operation_id: str, *, kinds: Collection[str] = ()
) -> BulkOperation:
    """End the operation; what it has published stays. Raises UnknownBulkOperation, BulkConflict."""
    among, same = ACTIVE | RESUMABLE, {BulkState.CANCELLED}
    return await _move(ledger, operation_id, kinds, BulkState.CANCELLED, among, same)


async def _move(
    ledger: Ledger,
    operation_id: str,
    kinds: Collection[str],
    to: BulkState,
    among: Collection[BulkState],
    same: Collection[BulkState],
    note: str | None = None,
    hold: BulkHold | None = None,
) -> BulkOperation:
    if kinds:
        operation_id = (await require_bulk(ledger, operation_id, *kinds)).id
    operation, moved = await ledger.bulk.move_bulk(
        operation_id, to, among=among, note=note, hold=hold
    )
    if operation is None:
        raise UnknownBulkOperation(f"no operation {operation_id!r}")
    if not moved and operation.state not in same:
        over = ": it is over" if operation.state in ENDED else ""
        raise BulkConflict(f"{operation_id} is {operation.state}{over}, and can't be {_WORD[to]}")
    return operation


_WORD = {
    BulkState.PAUSED: "paused",
    BulkState.WAITING: "resumed",
    BulkState.CANCELLED: "cancelled",
}
