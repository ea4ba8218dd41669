"""Jobs as the API tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.api.models.base import moment
from switchyard.api.models.jobs import (
    AttemptView,
    JobDetails,
    JobPage,
    JobProgress,
    JobStatus,
    JobView,
    JoinView,
    ProgressView,
)
from switchyard.broker import times as moments
from switchyard.services.engine.records.joins import JoinRecord
from switchyard.services.engine.records.progress import ProgressRecord
from switchyard.services.engine.records.results import AttemptRecord, JobRecord, JobSummary, Page


def fields_of(record: JobSummary) -> dict[str, Any]:
    """A record's values under the names that they have here."""
    names = JobView.model_fields.keys() - {"job_id", "progress"}
    return {"job_id": record.id, "progress": _progress(record.progress)} | {
        name: moment(getattr(record, name)) if name.endswith("_at") else getattr(record, name)
        for name in names
    }


def status_view(record: JobSummary) -> JobStatus:
    return JobStatus(**{k: v for k, v in fields_of(record).items() if k in JobStatus.model_fields})


def progress_view(record: JobSummary, stages: Mapping[str, Any]) -> JobProgress:
    """`stages` are `current_stage` and `completed_stages`, where there are any."""
    return JobProgress(**status_view(record).model_dump(), **stages)


def page_view(page: Page[JobSummary]) -> JobPage:
    jobs = [JobView(**fields_of(record)) for record in page.items]
    return JobPage(jobs=jobs, next_cursor=page.next_cursor)


def details_view(
    record: JobRecord,
    stages: Mapping[str, Any],
    output: Mapping[str, Any] | None,
    join: JoinRecord | None,
) -> JobDetails:
    """`stages` as in `progress_view`; `output` is what the job keeps in storage."""
    return JobDetails(
        **fields_of(record),
        **stages,
        payload=record.payload,
        result=record.result if output is None else {**(record.result or {}), **output},
        join=None if join is None else _join(join),
        timeline=[_attempt(each) for each in record.timeline],
        checkpoint_at=moment(record.checkpoint_at),
        trace_id=record.trace_id,
    )


def _progress(said: ProgressRecord | None) -> ProgressView | None:
    if said is None:
        return None
    return ProgressView(
        fraction=said.fraction, note=said.note, reported_at=moments.to_datetime(said.reported_at)
    )


def _join(record: JoinRecord) -> JoinView:
    return JoinView(
        when_dead=record.when_dead,
        total=record.total,
        open=record.open,
        dead=record.dead,
        cancelled=record.cancelled,
        held=record.held,
        fulfilled_at=moment(record.fulfilled_at),
    )


def _attempt(record: AttemptRecord) -> AttemptView:
    return AttemptView(
        redrive=record.redrive,
        attempt=record.attempt,
        worker_id=record.worker_id,
        started_at=moment(record.started_at),
        finished_at=moments.to_datetime(record.finished_at),
        outcome=record.outcome,
        error_type=record.error_type,
        error_message=record.error_message,
    )
