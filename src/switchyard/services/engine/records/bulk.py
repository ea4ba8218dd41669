"""What the ledger keeps of bulk operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self
from uuid import NAMESPACE_URL, uuid5

from switchyard.services.engine.records.job_ids import JobIds

MIN_RATE = 0.001
MAX_RATE = 1_000_000
"""Jobs a second."""
_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/bulk")
MAX_WAITING = 10_000_000
"""The highest watermark of a backfill: more than a lane may hold."""
WEIGHT = "weight"
"""In the plan of a backfill: its share of a queue, against those of others."""
MAX_WEIGHT = 1000
"""The highest weight; one divided by it is the lowest."""


class BulkState(StrEnum):
    """Where a bulk operation stands."""

    WAITING = "waiting"
    """For a process that runs it."""
    RUNNING = "running"
    DRAINING = "draining"
    """All its jobs are published, and some are not finished."""
    PAUSED = "paused"
    """By somebody; goes on where it was when it is resumed."""
    HALTED = "halted"
    """By itself, for the reason in its note; can be resumed."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """It can't go on, for the reason in its note; can be resumed once that is mended."""


ACTIVE = frozenset({BulkState.WAITING, BulkState.RUNNING, BulkState.DRAINING})
"""A process runs it, or will."""


RESUMABLE = frozenset({BulkState.PAUSED, BulkState.HALTED, BulkState.FAILED})


ENDED = frozenset({BulkState.COMPLETED, BulkState.CANCELLED})


AT_LAST = ENDED | {BulkState.HALTED, BulkState.FAILED}
"""Nothing more happens by itself: worth telling somebody."""


@dataclass(frozen=True, slots=True)
class NotedProgress:
    """How far an operation has come, as the counts in its record say; with notes for people."""

    notes: tuple[str, ...] = field(default=(), kw_only=True)
    """Why some were left out; the first 20."""

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
    """Return the id of the job that tells of an operation's end, where somebody wants to be
    told."""
    return ids.derive(_NAMESPACE, f"{operation_id}/notice")


@dataclass(frozen=True, slots=True)
class BulkHold:
    """By whom an operation is run, and how long others leave it to that process after it has
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
    """Jobs a second at most; None for no limit."""
    max_open: int | None
    """Jobs of it that may be unfinished at once; None for no limit."""
    created_by: str
    reason: str | None
    """Why somebody started it."""
    note: str | None
    """Why it stands where it stands: what it waits for, or what went wrong."""
    created_at: float
    started_at: float | None
    updated_at: float
    finished_at: float | None
    holder: str | None
    """The process that runs it."""
    lease_until: float | None
    spec: Mapping[str, Any]
    """What is to be done; its kind knows the form. JSON."""
    cursor: Mapping[str, Any] | None
    """How far it has come; None at the start. JSON."""
    counts: Mapping[str, Any]
    """What it has done. JSON."""
    budget: float | None = None
    """What its calls of language models may cost, in the currency of JOBS_LLM_PRICES; None for no
    limit."""


@dataclass(frozen=True, slots=True)
class BulkDeaths:
    """Jobs of one operation that died of one cause."""

    job_type: str
    reason: str | None
    error_type: str | None
    count: int
    sample_id: str
    sample_message: str | None
