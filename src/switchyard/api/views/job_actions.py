"""Bulk actions as the API answers and `jobctl … --json` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.api.models.job_actions import JobActionExample, JobActionPlan, JobActionView
from switchyard.services.engine.actions.spec import ActionPlan, ActionProgress, settled

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation


def view_action(operation: BulkOperation) -> JobActionView:
    """Show a bulk action with its results as far as they are counted in its record."""
    progress = ActionProgress.from_operation(operation)
    return JobActionView.from_record(operation, action=operation.kind, **progress.to_json())


async def view_settled_action(ledger: Ledger, operation: BulkOperation) -> JobActionView:
    """Show a bulk action with what has become of its new jobs by now. Raises LedgerUnavailable."""
    return view_action(await settled(ledger, operation))


def view_action_plan(plan: ActionPlan) -> JobActionPlan:
    """Show what a bulk action would do."""
    examples = [JobActionExample.from_record(each, job_id=each.id) for each in plan.examples]
    return JobActionPlan(matched=plan.matched, examples=examples)
