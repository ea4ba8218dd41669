"""Records of what happens in `jobctl demo`: written by demo_runner.py, printed by report.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.services.engine.records.results import JobRecord, JobSummary
    from switchyard.services.engine.redrive.spec import RedriveProgress

ENDED = ("succeeded", "dead", "cancelled")
"""States of jobs that have ended."""


@dataclass(slots=True)
class DemoDocument:
    """A document, and the jobs of its pipeline."""

    name: str
    job_id: str | None = None
    problem: str = ""
    """Why it could not even be published."""
    jobs: list[JobSummary] = field(default_factory=list)
    """Its pipeline's jobs, as last seen."""
    records: dict[str, JobRecord] = field(default_factory=dict)
    """The same jobs by type, with their results; filled in at the end."""

    @property
    def is_over(self) -> bool:
        return self.job_id is None or (bool(self.jobs) and all(map(has_ended, self.jobs)))


@dataclass(slots=True)
class Overtaking:
    """A hot job that is published while a backfill fills every other slot."""

    wait_ms: float
    """From its publication to its start."""
    overtaken: int
    """Jobs of the backfill that still waited when it had ended."""


@dataclass(slots=True)
class KilledWorker:
    """A worker that is killed in the middle of jobs."""

    name: str
    job_ids: frozenset[str]
    """Jobs that it ran in that moment."""


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that the search has found, as `demo_search` returns it."""

    score: float
    title: str
    page: int
    snippet: str


@dataclass(slots=True)
class DemoRun:
    """Everything that the summary prints."""

    documents: list[DemoDocument]
    are_samples: bool
    backfill_ids: list[str] = field(default_factory=list)
    backfill_done: int = 0
    """Jobs of the backfill that have succeeded."""
    overtaking: Overtaking | None = None
    killed: KilledWorker | None = None
    rerun: int = 0
    """Jobs that were running in the killed worker and have succeeded in another."""
    flaky: JobRecord | None = None
    strict: JobRecord | None = None
    strict_error: str = ""
    """How the strict job died."""
    redriven: RedriveProgress | None = None
    states: dict[str, int] = field(default_factory=dict)
    query: str = ""
    hits: list[FoundPassage] = field(default_factory=list)
    search_problem: str = ""

    @property
    def documents_done(self) -> int:
        return sum(document.is_over for document in self.documents)


def has_ended(job: JobSummary) -> bool:
    """Return whether the job has ended."""
    return job.state in ENDED
