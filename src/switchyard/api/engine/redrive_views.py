"""Redrives as the API tells of them, and orders as `services.engine.redrive` takes them."""

from __future__ import annotations

from switchyard.api.models.base import moment
from switchyard.api.models.dead import NewRedrive, RedriveDifference, RedrivePlan, RedriveView
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkOperation
from switchyard.services.engine.redrive.sending import RedriveCounts
from switchyard.services.engine.redrive.spec import RedriveProgress, RedriveSpec, settled


def spec_of(order: NewRedrive) -> RedriveSpec:
    return RedriveSpec(
        order.filter.filter(),
        order.change.change(),
        limit=order.limit,
        canary=order.canary,
        halt_on=order.halt_on,
        from_ledger=order.from_ledger,
        remote=True,
    )


def plan_view(tally: RedriveCounts) -> RedrivePlan:
    return RedrivePlan(
        matched=tally.matched,
        redriven=tally.done,
        dropped=tally.dropped,
        invalid=tally.invalid,
        routes=tally.routes,
        notes=tally.notes,
        differences=[
            RedriveDifference(letter_id=each.letter_id, lines=list(each.lines))
            for each in tally.differences
        ],
    )


async def view_of(ledger: Ledger, operation: BulkOperation) -> RedriveView:
    """With what has become of its letters by now. Raises LedgerUnavailable."""
    operation = await settled(ledger, operation)
    return RedriveView(
        id=operation.id,
        title=operation.title,
        state=operation.state,
        note=operation.note,
        reason=operation.reason,
        created_by=operation.created_by,
        created_at=moment(operation.created_at),
        started_at=moment(operation.started_at),
        finished_at=moment(operation.finished_at),
        rate=operation.rate,
        spec=dict(operation.spec),
        **RedriveProgress.from_operation(operation).to_json(),
    )
