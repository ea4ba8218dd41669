"""Bulk actions on jobs: cancel them, rerun them, or move them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from switchyard.services.engine.records.states import FINISHED, State


class JobAction(StrEnum):
    """The action on each job; also the kind of the operation's record."""

    CANCEL = "cancel"
    RERUN = "rerun"
    """Publish a new job that does the same again, perhaps with other parameters."""
    MOVE = "move"
    """Give it another lane or priority."""

    @property
    def participle(self) -> str:
        """The participle for a job after this action: `cancelled`, `rerun`, `moved`."""
        return {"cancel": "cancelled", "rerun": "rerun", "move": "moved"}[self.value]


MOVABLE = frozenset({State.SCHEDULED, State.JOINING, State.PAUSED, State.PENDING, State.QUEUED})
"""States whose jobs can be moved. Not RETRYING: the retry queue returns the job to its old lane."""
TAKES: Mapping[JobAction, frozenset[State]] = MappingProxyType(
    {
        JobAction.CANCEL: frozenset(State) - FINISHED,
        JobAction.RERUN: FINISHED,
        JobAction.MOVE: MOVABLE,
    }
)
"""The states of the jobs to which each action can be applied."""


@dataclass(frozen=True, slots=True)
class JobMove:
    """Target of a move: the lane and priority that a job gets."""

    job_id: str
    lane: str
    routing_key: str
    priority: int


@dataclass(frozen=True, slots=True)
class JobActionRecord:
    """Result of one operation for one job."""

    operation_id: str
    """Begins with what it was: `cancel-…`, `rerun-…`, `move-…`."""
    job_id: str
    acted_at: float
    """Seconds since the epoch."""
    new_job_id: str | None
    """For a rerun: id of the new job."""
    before: Mapping[str, Any] | None
    """For a move: the job's earlier `lane` and `priority`."""

    @property
    def action(self) -> JobAction:
        return JobAction(self.operation_id.partition("-")[0])
