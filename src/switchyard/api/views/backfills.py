"""Backfills as the API answers and `jobctl … --json` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.api.models.backfills import BackfillPreview, BackfillView, JobPreview
from switchyard.services.engine.backfill.progress import progress_of

if TYPE_CHECKING:
    from switchyard.services.engine.backfill.progress import BackfillProgress
    from switchyard.services.engine.backfill.starting import Preview
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation


def view_backfill(progress: BackfillProgress) -> BackfillView:
    """Show a backfill at one moment."""
    operation = progress.operation
    counted = ("total", "read", "published", "skipped", "repeated", "exhausted", "notes", "note")
    return BackfillView.from_record(
        operation,
        **{name: getattr(progress, name) for name in counted},
        plan=operation.spec,
        jobs=progress.jobs,
        followers=progress.followers,
        jobs_per_second=progress.rate,
        seconds_to_go=progress.eta,
        seconds=progress.seconds,
        dead=progress.deaths,
        then_id=progress.then_id,
    )


async def view_counted_backfill(ledger: Ledger, operation: BulkOperation) -> BackfillView:
    """Show a backfill with its jobs as they are by now. Raises LedgerUnavailable."""
    return view_backfill(await progress_of(ledger, operation))


def view_preview(registry: Registry, preview: Preview) -> BackfillPreview:
    """Show what a backfill would do. The registry knows which fields of payloads are hidden."""
    jobs = [
        JobPreview(
            routing_key=job.routing_key,
            priority=job.message.priority,
            payload=registry.hide_secrets(job.message.job_type, job.message.payload),
        )
        for job in preview.jobs
    ]
    return BackfillPreview.from_record(preview, jobs=jobs)
