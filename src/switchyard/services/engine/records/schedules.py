"""Records of schedules, and of the outcomes of their due times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FiringOutcome(StrEnum):
    """Outcome of a due time."""

    DUE = "due"
    """To be fired: a scheduler tries to publish its job until it is accepted."""
    FIRED = "fired"
    """Fired: its job was accepted."""
    MISSED = "missed"
    """Missed: no scheduler ran in time."""
    REFUSED = "refused"
    """Refused: its job could not be published as long as that was still useful."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule: the times at which its job is published, and the job. All times are seconds since
    the epoch, by the ledger's clock."""

    name: str
    cron: str
    timezone: str
    """IANA name of the time zone."""
    routing_key: str
    payload: Mapping[str, Any]
    priority: int | None
    max_attempts: int | None
    jitter: float
    """Seconds by which a firing is delayed, at most."""
    grace: float
    """Seconds after a due time in which it may still be fired."""
    origin: str
    """`file`, `default`, or `added`: by a command or over HTTP."""
    remote: bool
    """Whether the payload came over HTTP."""
    created_by: str
    created_at: float
    paused_at: float | None
    next_at: float
    """The next due time without an outcome."""
    fire_at: float
    """`next_at` plus its jitter."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of its jobs."""
    payload_version: int | None = None
    """Version of the payload when it was written; None: the present one."""


PUT_OFF = "was refused: "
"""Beginning of the note of a firing whose job was refused, and is published again."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One due time of a schedule, or several that were missed one after another."""

    schedule: str
    due_at: float
    outcome: FiringOutcome
    job_id: str | None
    noted_at: float
    """When the outcome was decided or last changed."""
    times: int = 1
    """Number of due times in this record: more than one where they were missed together."""
    note: str | None = None

    @property
    def is_put_off(self) -> bool:
        """Whether its job was refused, and is published again until it is too late."""
        return self.outcome is FiringOutcome.DUE and (self.note or "").startswith(PUT_OFF)
