"""Backfills as the API tells of them, and orders as `services.engine.backfill` takes them."""

from __future__ import annotations

from dataclasses import asdict

from switchyard.api.models.backfills import (
    BackfillPlan,
    BackfillPreview,
    BackfillView,
    CostPreview,
    DeathCause,
    JobPreview,
)
from switchyard.api.models.base import moment
from switchyard.broker import times as moments
from switchyard.services.engine.backfill.progress import progress_of
from switchyard.services.engine.backfill.spec import BackfillSpec
from switchyard.services.engine.backfill.starting import Preview
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkOperation


def spec_of(plan: BackfillPlan) -> BackfillSpec:
    """Raises pydantic's ValidationError where fields do not fit together."""
    given = plan.model_dump(exclude={"rate", "max_open", "budget", "reason"})
    return BackfillSpec.model_validate({**given, "remote": True})


def preview_view(preview: Preview) -> BackfillPreview:
    jobs = [
        JobPreview(
            routing_key=job.routing_key,
            priority=job.message.priority,
            payload=job.message.payload,
        )
        for job in preview.jobs
    ]
    return BackfillPreview(
        title=preview.title,
        total=preview.total,
        jobs=jobs,
        unusable=list(preview.unusable),
        cost=None if preview.cost is None else CostPreview(**asdict(preview.cost)),
    )


async def view_of(ledger: Ledger, operation: BulkOperation) -> BackfillView:
    """Raises LedgerUnavailable."""
    progress = await progress_of(ledger, operation)
    return BackfillView(
        id=operation.id,
        title=operation.title,
        state=operation.state,
        note=progress.note,
        reason=operation.reason,
        created_by=operation.created_by,
        created_at=moments.to_datetime(operation.created_at),
        started_at=moment(operation.started_at),
        finished_at=moment(operation.finished_at),
        rate=operation.rate,
        max_open=operation.max_open,
        budget=operation.budget,
        plan=dict(operation.spec),
        total=progress.total,
        read=progress.read,
        published=progress.published,
        skipped=progress.skipped,
        repeated=progress.repeated,
        exhausted=progress.exhausted,
        notes=list(progress.notes),
        jobs=dict(progress.jobs),
        followers=dict(progress.followers),
        jobs_per_second=progress.rate,
        seconds_to_go=progress.eta,
        seconds=progress.seconds,
        then_id=progress.then_id,
        dead=[
            DeathCause(
                count=each.count,
                job_type=each.job_type,
                reason=each.reason,
                error_type=each.error_type,
                sample_id=each.sample_id,
                sample_message=each.sample_message,
            )
            for each in progress.deaths
        ],
    )
