"""Jobs as the API answers and `jobctl … --json` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from switchyard.api.models.jobs import (
    AcceptedJob,
    EndedJob,
    JobDetails,
    JobPage,
    JobProgress,
    JobStatus,
    JobView,
    PipelineJob,
)
from switchyard.api.views.pauses import pause_of, view_pause

if TYPE_CHECKING:
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.publishing.publisher import Published
    from switchyard.services.engine.records.results import JobListing, JobRecord, JobSummary


def view_job(record: JobSummary) -> JobView:
    """Show a job without payload and result."""
    return JobView.from_record(record, job_id=record.id)


def view_job_status(record: JobSummary) -> JobStatus:
    """Show the state of a job."""
    return JobStatus.from_record(record, job_id=record.id)


def view_job_progress(record: JobSummary, stages: Mapping[str, Any]) -> JobProgress:
    """Show the state of a job with `current_stage` and `completed_stages`, where it has any."""
    return JobProgress.from_record(record, job_id=record.id, **stages)


def view_job_page(page: JobListing) -> JobPage:
    """Show a page of jobs."""
    return JobPage(
        jobs=[view_job(each) for each in page.items],
        next_cursor=page.next_cursor,
        examined_since=page.examined_since,
    )


async def view_job_details(
    ledger: Ledger,
    registry: Registry,
    record: JobRecord,
    stages: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
) -> JobDetails:
    """Show everything that is known of a job.

    `registry` knows which fields of its payload are hidden; `stages` as in `view_job_progress`;
    `output` is the part of its result in the file storage.
    Raises LedgerUnavailable.
    """
    pipeline = await ledger.job_reads.pipeline(record.pipeline or record.id)
    pause = await pause_of(ledger, record)
    return JobDetails.from_record(
        record,
        **(stages or {}),
        job_id=record.id,
        payload=registry.hide_secrets(record.job_type, record.payload),
        metadata=record.envelope.get("metadata", {}),
        result=record.result if output is None else {**(record.result or {}), **output},
        join=await ledger.joins.join(record.id) if record.joins else None,
        pause=None if pause is None else view_pause(pause),
        actions=await ledger.job_actions.of_job(record.id),
        waits_for_room=await ledger.limits.limit_wait(record.id),
        pipeline_jobs=view_pipeline(each for each in pipeline if each.id != record.id),
    )


def view_pipeline(jobs: Iterable[JobSummary]) -> list[PipelineJob]:
    """Show the jobs of a pipeline in short."""
    return [PipelineJob.from_record(each, job_id=each.id) for each in jobs]


def view_accepted_job(published: Published) -> AcceptedJob:
    """Show a job that was published."""
    return AcceptedJob.from_record(published)


def view_ended_job(
    published: Published, record: JobRecord, pipeline_jobs: Iterable[JobSummary] | None
) -> EndedJob:
    """Show a published job at its end."""
    return EndedJob.from_record(
        record,
        job_id=record.id,
        duplicate=published.duplicate,
        pressure=published.pressure,
        pipeline_jobs=None if pipeline_jobs is None else view_pipeline(pipeline_jobs),
    )
