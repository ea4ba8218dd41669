"""Rows of jobs in memory, as one transaction loads, changes and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.services.engine.ledger.sql.job_content import (
    METADATA_COLUMNS,
    ContentHistory,
    EditedContent,
    JobContent,
    RecordedMetadata,
)
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.pauses import ActivePauses
from switchyard.services.engine.records.results import AttemptFinished
from switchyard.services.engine.records.states import FINISHED, AttemptOutcome, State


@dataclass(slots=True)
class JobRow:
    """The columns of a job's row that the rules need, and that a transaction changes."""

    id: str
    state: State
    redrives: int
    attempts: int
    crashes: int
    worker_id: str | None = None
    claim_id: str | None = None
    """Present owner of the job: the claim of the worker that runs it; while it is pending, the
    receipt of the request that recorded it, or None once another caller relies on it."""
    started_at: float | None = None
    queued_at: float | None = None
    finished_at: float | None = None
    updated_at: float | None = None
    ended: bool = False
    """Whether the next three fields must be written, even if they are None."""
    reason: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    result: str | None = None
    has_checkpoint: bool = False
    """Whether an earlier attempt, or this one, has stored a checkpoint."""
    unended: int = 0
    """Number of its last attempts in a row that were released or crashed; loaded only for a
    claim."""
    join_id: str | None = None
    """The job that waits for this one."""
    joins: bool = False
    """Whether it waits, or has waited, for other jobs."""
    cancel_asked_at: float | None = None
    """When its cancellation was requested while it ran: it must not run again."""
    loaded_state: State | None = None
    """State when the row was loaded; None where there was none."""
    new: Mapping[str, Any] | None = None
    """The other columns, when the row does not exist yet."""
    changed: bool = False

    @property
    def generation(self) -> tuple[int, int]:
        return (self.redrives, self.attempts)

    def end(
        self,
        state: State,
        at: float,
        reason: str | None,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> State:
        """Leave `running` or a waiting state, for that reason, and return the new state. A job
        whose cancellation was requested becomes `cancelled` instead, unless it has succeeded."""
        if self.cancel_asked_at is not None and state is not State.SUCCEEDED:
            state, reason = State.CANCELLED, "cancelled"
        self.state = state
        self.updated_at = at
        self.finished_at = at if state in FINISHED else None
        self.reason, self.error_type, self.error_message = reason, error_type, error_message
        self.ended = self.changed = True
        return state


def new_row(columns: Mapping[str, Any]) -> JobRow:
    """Make a row to insert, with these columns."""
    return JobRow(
        id=columns["id"],
        state=columns.get("state", State.QUEUED),
        redrives=columns["redrives"],
        attempts=columns["attempts"],
        crashes=0,
        claim_id=columns.get("claim_id"),
        join_id=columns.get("join_id"),
        joins=bool(columns.get("joins")),
        queued_at=columns["queued_at"],
        updated_at=columns["updated_at"],
        new=columns,
    )


@dataclass(slots=True)
class KeyHolder:
    """The job that has an idempotency key."""

    job_id: str
    fingerprint: str | None


@dataclass(slots=True)
class Rows:
    """The rows that one transaction works on."""

    jobs: dict[str, JobRow] = field(default_factory=dict)
    keys: dict[str, KeyHolder] = field(default_factory=dict)
    attempts: list[list[Any]] = field(default_factory=list)
    deleted: list[JobRow] = field(default_factory=list)
    rewritten: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rows by job id with all columns, where a redrive has changed the job."""

    progress: dict[str, list[Any]] = field(default_factory=dict)
    """Rows of progress and checkpoints to write, by job id."""
    checkpoints: dict[str, list[Any]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    """Ids of jobs whose checkpoints are to be deleted."""

    new_joins: dict[str, Joining] = field(default_factory=dict)
    """New joins, by the id of the waiting job."""

    finishes_by_join: dict[str, AttemptFinished] = field(default_factory=dict)
    """Results of jobs that end, by the join that they belong to. If this transaction releases the
    waiting job of the join, `join_writer.JoinWriter` adds it to the result's `due`."""

    pauses: ActivePauses = field(default_factory=ActivePauses)
    """Pauses in force; loaded where a job is recorded or claimed."""

    contents: dict[str, ContentHistory] = field(default_factory=dict)
    """Content histories of jobs that are claimed, by id."""

    def known_content(self, job_id: str) -> ContentHistory | None:
        """Return the content history of a job, this transaction's own changes included; None where
        there is no such job."""
        row = self.jobs.get(job_id)
        if row is None:
            return None
        history = self.contents.get(job_id)
        columns = self.rewritten.get(job_id) or row.new
        if columns is None:
            return history
        current = JobContent(columns["job_type"], columns["payload"])
        edits: list[EditedContent] = []
        if history is not None:
            before = EditedContent(row.redrives, history.recorded, current, undone=False)
            edits = [*history.edits, before]
        return ContentHistory(
            current,
            edits,
            planned=history.planned if history else set(),
            redrives=row.redrives,
            state=row.state,
            run_at=columns.get("run_at"),
            routing_key=columns["routing_key"],
            metadata=RecordedMetadata(**{name: columns[name] for name in METADATA_COLUMNS}),
        )

    def forget_checkpoint(self, row: JobRow) -> None:
        """Delete the checkpoint of a job that never runs again."""
        if row.has_checkpoint:
            self.checkpoints.pop(row.id, None)
            self.forgotten.add(row.id)
            row.has_checkpoint = False

    def end_attempt(
        self,
        row: JobRow,
        outcome: AttemptOutcome,
        at: float,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> None:
        """Write the running attempt into the job's timeline."""
        self.attempts.append(
            [
                row.id,
                row.redrives,
                row.attempts + 1,
                row.worker_id,
                row.started_at,
                at,
                outcome,
                error_type,
                error_message,
            ]
        )
