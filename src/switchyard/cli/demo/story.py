"""What happens in `jobctl demo`: written by the play, shown by the view, told by the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.services.engine.records.results import JobRecord, JobSummary
    from switchyard.services.engine.redrive.spec import RedriveProgress
    from switchyard.services.pipeline.index.chunk_search import Hit


@dataclass(slots=True)
class DemoDocument:
    """One document's way."""

    name: str
    job_id: str | None = None
    problem: str = ""
    """Why it could not even be published."""
    jobs: list[JobSummary] = field(default_factory=list)
    """Its pipeline's jobs, as last seen."""
    records: dict[str, JobRecord] = field(default_factory=dict)
    """The same by job type, with results; at the end."""

    @property
    def is_over(self) -> bool:
        return self.job_id is None or (bool(self.jobs) and all(map(has_ended, self.jobs)))


@dataclass(slots=True)
class DemoRun:
    """Everything that the summary tells."""

    documents: list[DemoDocument]
    are_samples: bool
    flaky: JobRecord | None = None
    strict: JobRecord | None = None
    death: str = ""
    """How the strict job died."""
    redriven: RedriveProgress | None = None
    states: dict[str, int] = field(default_factory=dict)
    query: str = ""
    hits: list[Hit] = field(default_factory=list)
    search_problem: str = ""


def has_ended(job: JobSummary) -> bool:
    """Whether nothing more will become of the job."""
    return job.state in ("succeeded", "dead", "cancelled")
