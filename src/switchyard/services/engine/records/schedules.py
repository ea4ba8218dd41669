"""Schedules as the ledger keeps them, and what became of their due times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FiringOutcome(StrEnum):
    """What became of a due time."""

    DUE = "due"
    """It is to be fired: a scheduler publishes its job, again and again until it is accepted."""
    FIRED = "fired"
    """Its job was accepted."""
    MISSED = "missed"
    """Nobody was there in time."""
    REFUSED = "refused"
    """Its job could not be published for as long as it would have been of use."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """When which job is published. All times are seconds since the epoch, by the ledger's clock."""

    name: str
    cron: str
    timezone: str
    """Name of the IANA's."""
    routing_key: str
    payload: Mapping[str, Any]
    priority: int | None
    max_attempts: int | None
    jitter: float
    """Seconds by which a firing is put off at most."""
    grace: float
    """Seconds for which a due time that has passed is still worth firing."""
    origin: str
    """`file`, `default`, or `added`: by a command or over HTTP."""
    remote: bool
    """Somebody outside has written the payload."""
    created_by: str
    created_at: float
    paused_at: float | None
    next_at: float
    """The next due time that nothing was decided about."""
    fire_at: float
    """The same, put off by its jitter."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of its jobs."""
    payload_version: int | None = None
    """Of which version the payload was when it was written; None: of the present one."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One due time of a schedule, or several that were missed one after another."""

    schedule: str
    due_at: float
    outcome: FiringOutcome
    job_id: str | None
    noted_at: float
    """When that was decided, or last changed."""
    times: int = 1
    """Due times that it stands for: more than one where they were missed together."""
    note: str | None = None
