"""Find the runs of a document's pipeline, and the job that would start the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.results import JobSummary
from switchyard.services.engine.records.states import FINISHED, REVOCABLE, State
from switchyard.services.pipeline.records.documents import Document

_RUN_NAMESPACE = UUID("3a8a7c0e-5b0f-5d7e-9e0a-6f1b7c2d9e11")
_MAX_RUNS = 1_000
"""Runs of one document that are looked at."""


@dataclass(slots=True)
class Runs:
    """The runs of a document's pipeline, one after the other."""

    next_id: str
    """Id of the first job of the next run."""
    latest: list[JobSummary] = field(default_factory=list)
    """The jobs of the last run, leaving out runs that ended at once because the document was
    known."""
    is_open: bool = False
    """Whether the last run has not ended."""

    def add(self, jobs: list[JobSummary], next_id: str) -> None:
        """Add the next run, with the id of the run that follows it."""
        if not _ended_as_duplicate(jobs) or _ended_as_duplicate(self.latest):
            self.latest = jobs
        self.is_open = any(job.state not in FINISHED for job in jobs)
        self.next_id = next_id


def _ended_as_duplicate(jobs: Sequence[JobSummary]) -> bool:
    """Return whether a run ended with its first job because the document was known; True also for
    no jobs."""
    return len(jobs) <= 1 and all(job.state is State.SUCCEEDED for job in jobs)


class PipelineRuns:
    """Finds the runs of documents in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def runs_of(self, document_id: str, document: Document | None) -> Runs:
        """Return the runs of one document, with its record if there is one yet."""
        ids = await self._ledger.system.job_ids()
        first_run = recorded_run(ids, document) if document else run_id(ids, document_id)
        return (await self.runs_of_each({document_id: first_run}))[document_id]

    async def confirmed_runs_of(self, document_id: str, document: Document | None) -> Runs:
        """Return the runs of one document, without those that were rolled back. Once this returns,
        no sender can roll one of them back any more, even if the broker has not confirmed its job
        yet."""
        while True:
            runs = await self.runs_of(document_id, document)
            pending = [job.id for job in runs.latest if job.state in REVOCABLE]
            if not pending or len(await self._ledger.jobs.pin(pending)) == len(pending):
                return runs

    async def runs_of_each(self, first_runs: Mapping[str, str]) -> dict[str, Runs]:
        """Return the runs of each document, beginning with the run that its record names
        (`first_runs`). Each next run is the one that sending the same file again has started."""
        ids = await self._ledger.system.job_ids()
        runs = {each: Runs(next_id=run) for each, run in first_runs.items()}
        pending = dict(first_runs)
        for _ in range(_MAX_RUNS):
            if not pending:
                break
            jobs = await self._ledger.job_reads.pipelines(pending.values())
            started = {each: run for each, run in pending.items() if run in jobs}
            for each, run in started.items():
                runs[each].add(jobs[run], next_id=run_id(ids, each, after=run))
            pending = {each: runs[each].next_id for each in started if not runs[each].is_open}
        return runs


def recorded_run(ids: JobIds, document: Document) -> str:
    """Return the id of the run that a document's record names."""
    return document.pipeline or run_id(ids, document.id)


def run_id(ids: JobIds, document_id: str, after: str | None = None) -> str:
    """Return the id of a run's first job: the same for all who send the file at the same time, so
    that they start one pipeline."""
    return ids.derive(_RUN_NAMESPACE, f"{document_id}/{after or ''}")
