"""Records of bulk operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self
from uuid import NAMESPACE_URL, uuid5

from switchyard.services.engine.records.job_ids import JobIds

MIN_RATE = 0.001
MAX_RATE = 1_000_000
"""Jobs per second, at most."""
_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/bulk")
MAX_WAITING = 10_000_000
"""Highest value of a backfill's `low` and `high`: waiting jobs in its queue at which it goes on,
and pauses. More than a lane may hold."""
WEIGHT = "weight"
"""Key in the plan of a backfill: its share of a queue, relative to other backfills."""
MAX_WEIGHT = 1000
"""The highest weight; one divided by it is the lowest."""


class BulkState(StrEnum):
    """State of a bulk operation."""

    WAITING = "waiting"
    """Waiting for a process that runs it."""
    RUNNING = "running"
    DRAINING = "draining"
    """All its jobs are published, but some are not finished."""
    PAUSED = "paused"
    """Paused by an operator; continues from its cursor when it is resumed."""
    HALTED = "halted"
    """Paused by itself, for the reason in its note; can be resumed."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """Ended by an error, which its note names; can be resumed once the cause is removed."""


ACTIVE = frozenset({BulkState.WAITING, BulkState.RUNNING, BulkState.DRAINING})
"""A process runs it, or will."""
RESUMABLE = frozenset({BulkState.PAUSED, BulkState.HALTED, BulkState.FAILED})
ENDED = frozenset({BulkState.COMPLETED, BulkState.CANCELLED})
STOPPED = ENDED | {BulkState.HALTED, BulkState.FAILED}
"""States in which nothing more happens without an operator. People are notified of them."""


@dataclass(frozen=True, slots=True)
class NotedProgress:
    """Progress of an operation: the counts in its record, and notes for people."""

    notes: tuple[str, ...] = field(default=(), kw_only=True)
    """Why some jobs were left out; the first 20 reasons."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"notes": list(self.notes)}

    @classmethod
    def from_operation(cls, operation: BulkOperation) -> Self:
        counts = {
            each.name: operation.counts[each.name]
            for each in fields(cls)
            if each.name in operation.counts
        }
        return cls(**{**counts, "notes": tuple(counts.get("notes", ()))})


def notice_id_of(ids: JobIds, operation_id: str) -> str:
    """Return the id of the job that sends the notice of an operation's end."""
    return ids.derive(_NAMESPACE, f"{operation_id}/notice")


@dataclass(frozen=True, slots=True)
class BulkHold:
    """Holder of an operation, and how long it stays reserved for that process after the process has
    died."""

    holder: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BulkOperation:
    """The record of a bulk operation. Times are seconds since the epoch."""

    id: str
    """`<kind>-<10 hexadecimal digits>`."""
    kind: str
    """backfill, redrive, …"""
    title: str
    state: BulkState
    rate: float | None
    """Jobs per second at most; None for no limit."""
    max_open: int | None
    """Unfinished jobs of the operation at most; None for no limit."""
    created_by: str
    reason: str | None
    """Why it was started, in the operator's words."""
    note: str | None
    """Reason for the present state: what it waits for, or what went wrong."""
    created_at: float
    started_at: float | None
    updated_at: float
    finished_at: float | None
    holder: str | None
    """The process that runs it."""
    lease_until: float | None
    spec: Mapping[str, Any]
    """What to do, as JSON; the form depends on the kind."""
    cursor: Mapping[str, Any] | None
    """Position from which it continues, as JSON; None at the start."""
    counts: Mapping[str, Any]
    """Counts of what it has done, as JSON."""
    budget: float | None = None
    """Maximum cost of its calls of language models, in the currency of JOBS_LLM_PRICES; None for no
    limit."""


@dataclass(frozen=True, slots=True)
class BulkDeaths:
    """Dead jobs of one operation with the same cause."""

    job_type: str
    reason: str | None
    error_type: str | None
    count: int
    sample_id: str
    sample_message: str | None
