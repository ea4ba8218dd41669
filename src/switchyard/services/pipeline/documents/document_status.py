"""Derive a document's status from its record and the jobs of its pipeline.

`status_of` is a pure function. It knows the stages only from `services.pipeline.workers.stages`, so
that a new stage needs no change here. The record only says which stage the pipeline has reached;
the jobs also say whether the pipeline has stopped there (a dead job), or goes on (after a redrive
of that job).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from switchyard.services.engine.records.results import JobSummary
from switchyard.services.engine.records.states import FINISHED, State
from switchyard.services.pipeline.records.documents import (
    COMPLETED,
    FAILED,
    FINISHED_STATES,
    Document,
    DocumentClass,
)
from switchyard.services.pipeline.workers.stages import INGEST, PART_JOB_TYPES, PIPELINE, Stage

QUEUED = "queued"
STATES = frozenset(
    {QUEUED, FAILED, *FINISHED_STATES}
    | {state for stage in PIPELINE for state in (stage.state, stage.waiting) if state is not None}
)
"""All states of documents."""
STOPPED = (State.DEAD, State.CANCELLED)
"""States of a job in which its pipeline has stopped."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """Why a pipeline has stopped."""

    reason: str
    """permanent, exhausted, crashed, expired, overflowed, …, or cancelled."""
    error_type: str | None
    message: str | None
    job_id: str | None
    """The job to redrive; None when the ledger no longer knows it."""
    attempts: int


@dataclass(frozen=True, slots=True)
class DocumentStatus:
    """A document as its sender sees it. Times are seconds since the epoch."""

    document_id: str
    state: str
    """queued, then the state of the current stage (extracting, summarizing, …; needs_ocr while it
    waits for OCR), and in the end completed or failed."""
    current_stage: str | None
    """The job type of the current stage, or of the one that failed; None at the end."""
    completed_stages: tuple[str, ...]
    """Job types of the completed stages, in the order of the pipeline."""
    job_id: str | None
    """The first job of the latest run of its pipeline."""
    error: StageFailure | None = None
    """Only set for a document that failed."""
    title: str | None = None
    filename: str | None = None
    source: str | None = None
    media_type: str | None = None
    size: int | None = None
    """Bytes."""
    created_at: float | None = None
    updated_at: float | None = None
    classes: tuple[DocumentClass, ...] = ()
    unreadable_pages: tuple[int, ...] = ()
    """Pages, from 1, whose text could not be read, not even by OCR. Set only by
    `DocumentService.status`, not in lists, and only for a document with a result."""
    page_errors: Mapping[int, str] = field(default_factory=dict)
    """Why pages could not be read, for those that are broken or take too long."""

    @property
    def is_finished(self) -> bool:
        """Whether the document has a result."""
        return self.state in FINISHED_STATES

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens unless a person acts."""
        return self.is_finished or self.state == FAILED


@dataclass(frozen=True, slots=True)
class _PipelinePosition:
    state: str
    stage: str | None
    error: StageFailure | None = None


def status_of(
    document_id: str, document: Document | None, jobs: Sequence[JobSummary]
) -> DocumentStatus:
    """Return the status of a document.

    `jobs` are those of the latest run of its pipeline, oldest first; `document` is its record,
    which is missing until its first stage has begun.
    """
    completed = _completed_stages(document, jobs)
    position = _find_position(document, jobs, completed)
    return DocumentStatus(
        document_id=document_id,
        state=position.state,
        current_stage=position.stage,
        completed_stages=completed,
        job_id=jobs[0].id if jobs else document.pipeline if document else None,
        error=position.error,
        title=document.title if document else None,
        filename=document.filename if document else None,
        source=document.source if document else None,
        media_type=document.media_type if document else None,
        size=document.size_bytes if document else None,
        created_at=document.created_at if document else min(job.created_at for job in jobs),
        updated_at=max(
            [job.updated_at for job in jobs] + ([document.updated_at] if document else [])
        ),
    )


def _find_position(
    document: Document | None, jobs: Sequence[JobSummary], completed: Sequence[str]
) -> _PipelinePosition:
    if document is not None and document.state in FINISHED_STATES:
        return _PipelinePosition(document.state, None)
    stopped = [job for job in jobs if job.state in STOPPED and job.job_type not in PART_JOB_TYPES]
    if stopped:
        return _PipelinePosition(FAILED, _stage_name(stopped[-1], document), _failure(stopped[-1]))
    active = [job for job in jobs if job.state not in FINISHED]
    if active:
        job = active[-1]
        stage = _stage_of(job.job_type)
        waits_for_ingest = job.state is not State.RUNNING and set(completed) <= {INGEST.name}
        if stage is None or waits_for_ingest:
            state = QUEUED if waits_for_ingest or document is None else document.state
        else:
            has_begun = any(
                each.state in (State.RUNNING, State.SUCCEEDED)
                for each in jobs
                if _stage_of(each.job_type) is stage
            )
            state = stage.state if has_begun else stage.waiting or stage.state
        return _PipelinePosition(state, _stage_name(job, document))
    if document is None:
        return _PipelinePosition(QUEUED, INGEST.name)
    if document.state != FAILED and any(job.job_type == PIPELINE[-1].name for job in jobs):
        # Another run of the same document is at work, such as a backfill's, but the outputs of
        # this one exist.
        return _PipelinePosition(COMPLETED, None)
    if document.state == FAILED:
        unknown_failure = StageFailure("unknown", None, "the job that failed is not known", None, 0)
        return _PipelinePosition(FAILED, document.current_stage, unknown_failure)
    return _PipelinePosition(document.state, document.current_stage)


def _completed_stages(document: Document | None, jobs: Sequence[JobSummary]) -> tuple[str, ...]:
    """Return the completed stages. A stage that ran in a process of its own is missing from the
    record until the next one begins."""
    completed = set(document.completed_stages) if document else set()
    under_way = {_stage_of(job.job_type) for job in jobs if job.state not in FINISHED}
    completed |= {
        job.job_type
        for job in jobs
        if job.state is State.SUCCEEDED and _stage_of(job.job_type) not in under_way
    }
    pipeline_stages = [stage.name for stage in PIPELINE if stage.name in completed]
    other_stages = [
        name
        for name in (document.completed_stages if document else ())
        if name not in pipeline_stages
    ]
    return (*pipeline_stages, *other_stages)


def _stage_of(job_type: str) -> Stage | None:
    """Return the stage that a job runs, or runs a part of; None for other jobs."""
    by_name = (stage for stage in PIPELINE if stage.name == job_type)
    return PART_JOB_TYPES.get(job_type) or next(by_name, None)


def _stage_name(job: JobSummary, document: Document | None) -> str | None:
    """Return the name of a job's stage; for a job without a stage, the name of the document's
    current stage."""
    stage = _stage_of(job.job_type)
    if stage is not None:
        return stage.name
    return job.job_type if document is None else document.current_stage


def _failure(job: JobSummary) -> StageFailure:
    if job.state is State.CANCELLED:
        return StageFailure("cancelled", None, "the job was cancelled", job.id, job.attempts)
    return StageFailure(
        job.reason or "unknown", job.error_type, job.error_message, job.id, job.attempts
    )
