"""Progress and checkpoints that running jobs report."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.broker.message import JobMessage


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """Progress as a handler reports it."""

    fraction: float | None
    """Completed fraction of the work, 0 to 1; None where unknown."""
    note: str
    """A few words for people: `page 12 of 30`."""


@dataclass(frozen=True, slots=True)
class ProgressRecord(ReportedProgress):
    """Progress of the job's last attempt."""

    reported_at: float
    """When the progress was recorded, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """A request to record a running job's progress, checkpoint, or both, if its claim is still
    valid."""

    message: JobMessage
    claim_id: str
    now: float
    progress: ReportedProgress | None = None
    checkpoint: str | None = None
    """JSON."""
