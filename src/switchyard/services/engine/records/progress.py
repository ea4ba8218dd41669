"""What running jobs say of themselves: how far they are, and where they would go on."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.broker.message import JobMessage


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """How far a handler is, as it says."""

    fraction: float | None
    """Of its work, 0 to 1; None where it can't say."""
    note: str
    """In a few words: `page 12 of 30`."""


@dataclass(frozen=True, slots=True)
class ProgressRecord(ReportedProgress):
    """How far the last attempt is, or has come."""

    reported_at: float
    """When that was recorded, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class NoteRequest:
    """A running job's progress, or its check-point, or both: to be recorded for as long as the
    claim holds."""

    message: JobMessage
    claim_id: str
    now: float
    progress: ReportedProgress | None = None
    checkpoint: str | None = None
    """JSON."""
