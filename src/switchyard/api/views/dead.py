"""Dead letters, redrives and purges as the API answers and `jobctl … --json` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from switchyard.api.models.dead import (
    DeadGroupView,
    DeadLetterDetails,
    DeadLetterView,
    LetterEditView,
    PurgePlan,
    PurgeView,
    RedriveDifference,
    RedrivePlan,
    RedriveView,
)
from switchyard.services.engine.dead.causes import cause_of
from switchyard.services.engine.dead.purge import PurgeProgress
from switchyard.services.engine.jobs.secret_fields import hide_secrets_in_message
from switchyard.services.engine.redrive.spec import RedriveProgress, RedriveSpec, with_outcomes

if TYPE_CHECKING:
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation
    from switchyard.services.engine.records.requests import LetterEdit
    from switchyard.services.engine.records.results import DeadGroup, DeadLetter, JobRecord
    from switchyard.services.engine.redrive.sending import RedriveCounts


def view_letter(letter: DeadLetter) -> DeadLetterView:
    """Show a dead letter as a list of letters has it."""
    return DeadLetterView.from_record(letter, group=letter.fingerprint)


def view_letter_details(
    registry: Registry, letter: DeadLetter, job: JobRecord | None, edits: Sequence[LetterEdit]
) -> DeadLetterDetails:
    """Show a dead letter with body and headers, the attempts of its job, and its edits. The
    registry knows which fields of its payload are hidden."""
    return DeadLetterDetails.from_record(
        letter,
        group=letter.fingerprint,
        body=shown_body(registry, letter.body).decode("utf-8", "replace"),
        timeline=job.timeline if job is not None else (),
        edits=[_view_edit(registry, each) for each in edits],
    )


def view_group(group: DeadGroup) -> DeadGroupView:
    """Show the dead letters of one cause."""
    sample = group.sample
    cause = cause_of(
        sample.reason, sample.job_type, sample.error_type, sample.error_message, sample.traceback
    )
    return DeadGroupView.from_record(
        group,
        group=group.fingerprint,
        job_type=cause.job_type or None,
        reason=cause.reason,
        error_type=cause.error_type or None,
        message=cause.message or None,
        location=cause.location or None,
        sample_id=sample.id,
        sample_message=sample.error_message,
    )


def shown_body(registry: Registry, body: bytes) -> bytes:
    """Return the body of a message as people may see it: the secrets of its payload are hidden."""
    return hide_secrets_in_message(body, registry.secrets_of)


def parse_message(body: bytes) -> Any:
    """Parse a letter's body; return None if it is not JSON."""
    # `json.loads` has no limit to nesting but Python's own, and accepts NaN and infinite numbers.
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        return None


def view_redrive(operation: BulkOperation) -> RedriveView:
    """Show a redrive with its results as far as they are counted in its record."""
    progress = RedriveProgress.from_operation(operation)
    return RedriveView.from_record(operation, **progress.to_json())


async def view_redrive_outcomes(ledger: Ledger, operation: BulkOperation) -> RedriveView:
    """Show a redrive with the outcomes of its letters by now. Raises LedgerUnavailable."""
    return view_redrive(await with_outcomes(ledger, operation))


def view_redrive_plan(spec: RedriveSpec, counts: RedriveCounts) -> RedrivePlan:
    """Show what a redrive would do."""
    return RedrivePlan.from_record(
        counts,
        redriven=counts.done,
        missing=max(0, len(spec.which.ids) - counts.matched),
        differences=[RedriveDifference.from_record(each) for each in counts.differences],
    )


def view_purge(operation: BulkOperation) -> PurgeView:
    """Show a purge."""
    return PurgeView.from_record(operation, **PurgeProgress.from_operation(operation).to_json())


def view_purge_plan(progress: PurgeProgress) -> PurgePlan:
    """Show what a purge would do."""
    return PurgePlan.from_record(progress)


def _view_edit(registry: Registry, edit: LetterEdit) -> LetterEditView:
    return LetterEditView.from_record(
        edit,
        redrive=edit.operation_id,
        original=parse_message(shown_body(registry, edit.original)),
        edited=parse_message(shown_body(registry, edit.edited)),
    )
