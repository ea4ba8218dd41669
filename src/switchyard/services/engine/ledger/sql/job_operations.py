"""Operations on jobs: each decides by the rules and changes rows in memory.

`services.engine.ledger.sql.job_writer` loads the rows of many operations, applies them in order
and writes what has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar
from uuid import uuid4

from switchyard.services.engine.ledger.sql import job_rules as rules
from switchyard.services.engine.ledger.sql.codec import clean, fingerprint, job_columns
from switchyard.services.engine.ledger.sql.job_rows import JobRow, KeyHolder, Rows, new_row
from switchyard.services.engine.records.errors import IdempotencyConflict
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.results import Created, Existing, Recorded
from switchyard.services.engine.records.states import State

JOBS_PER_TURN = 10
"""Jobs that are encoded before other tasks run: twenty with payloads of 900 kB held the event loop
for a tenth of a second."""
ResultT_co = TypeVar("ResultT_co", covariant=True)


class JobOperation(Protocol[ResultT_co]):
    """An operation on one job."""

    order: ClassVar[int]
    """Rank of the operation within a transaction: a job is made before it is claimed."""

    @property
    def job_id(self) -> str: ...

    def apply(self, rows: Rows) -> ResultT_co:
        """Change `rows`, and return the result for the caller. Raises only LedgerError."""
        ...


class InsertJob:
    """Operation: make a job's row. Encodes the message in the constructor, so that its errors reach
    the caller."""

    __slots__ = ("_columns", "_joined", "_notice_insert", "_receipt", "is_plain")
    order: ClassVar[int] = 1
    is_plain: bool
    """Whether the job's row is all that is to be written."""

    def __init__(self, job: NewJob) -> None:
        columns = job_columns(job)
        columns["state"] = State.PENDING if job.run_at is None else State.SCHEDULED
        columns["run_at"] = job.run_at
        columns["join_id"] = job.join_id
        # Unique to this operation: when it is applied again, it recognises its own row. The column
        # has it until the first claim, or until another caller relies on the job.
        self._receipt = columns["claim_id"] = uuid4().hex
        self._joined = job.joins
        self._notice_insert = None if job.notice is None else InsertJob(job.notice)
        if job.joins is not None:
            columns |= {"state": State.JOINING, "joins": 1, "claim_id": None}
        others = (job.joins, job.join_id, job.notice)
        self.is_plain = not columns["tags"] and all(each is None for each in others)
        key = clean(job.idempotency_key)
        if key is not None:
            columns["idempotency_key"] = key
            columns["fingerprint"] = fingerprint(job.message.job_type, columns["payload"])
        self._columns = columns

    @property
    def job_id(self) -> str:
        job_id: str = self._columns["id"]
        return job_id

    @property
    def idempotency_key(self) -> str | None:
        return self._columns.get("idempotency_key")

    def apply(self, rows: Rows) -> Recorded:
        key = self.idempotency_key
        # The key is checked first, together with the payload: an id that was made from the key
        # would be found whatever the payload is.
        holder = None if key is None else rows.keys.get(key)
        if key is not None and holder is not None:
            if holder.fingerprint != self._columns["fingerprint"]:
                raise IdempotencyConflict(key, holder.job_id)
            return self._result_for(rows.jobs[holder.job_id])
        known = rows.jobs.get(self.job_id)
        if known is not None:
            return self._result_for(known)
        if key is not None:
            rows.keys[key] = KeyHolder(self.job_id, self._columns["fingerprint"])
        paused = self._columns["state"] == State.PENDING and self._is_paused(rows)
        if paused:
            self._columns["state"] = State.PAUSED
        rows.jobs[self.job_id] = self.row()
        if self._joined is not None:
            rows.new_joins[self.job_id] = self._joined
        if self._notice_insert is not None:
            self._notice_insert.apply(rows)
        return Created(self.job_id, self._receipt, self._notice_id, paused)

    def row(self) -> JobRow:
        """Return the row to insert."""
        return new_row(self._columns)

    def created(self) -> Created:
        """Return the result for a plain job that was inserted and that no pause holds."""
        return Created(self.job_id, self._receipt)

    def _is_paused(self, rows: Rows) -> bool:
        names = ("lane", "worker", "job_type", "source")
        return rows.pauses.pause_of(*(self._columns[name] for name in names)) is not None

    def _result_for(self, row: JobRow) -> Recorded:
        if rules.is_revocable_by(row, self._receipt):
            # A retry of the same request, whose first result was lost.
            paused = row.state is State.PAUSED
            return Created(row.id, self._receipt, self._notice_id, paused)
        _pin_row(row)
        return Existing(row.id, row.state)

    @property
    def _notice_id(self) -> str | None:
        return None if self._notice_insert is None else self._notice_insert.job_id


async def prepare_inserts(batch: Iterable[NewJob]) -> list[InsertJob]:
    """Encode jobs, and let other tasks run in between: a join may have thousands. Raises
    RowRejected."""
    inserts = []
    for job in batch:
        inserts.append(InsertJob(job))
        if not len(inserts) % JOBS_PER_TURN:
            await asyncio.sleep(0)
    return inserts


@dataclass(frozen=True, slots=True)
class PinJob:
    """Keep a job that another request has recorded, since a caller now relies on it: its insert is
    no longer rolled back."""

    order: ClassVar[int] = 2
    job_id: str

    def apply(self, rows: Rows) -> State | None:
        """Change the row, and return the job's state; None if the job is gone."""
        row = rows.jobs.get(self.job_id)
        if row is None:
            return None
        _pin_row(row)
        return row.state


@dataclass(frozen=True, slots=True)
class MarkQueued:
    """Operation: the broker has confirmed the job."""

    order: ClassVar[int] = 2
    job_id: str
    at: float

    def apply(self, rows: Rows) -> None:
        row = rows.jobs.get(self.job_id)
        if row is not None and rules.may_queue(row):
            row.state = State.QUEUED
            row.queued_at = row.updated_at = self.at
            row.changed = True


@dataclass(frozen=True, slots=True)
class RollbackInsert:
    """Operation: forget a job that the broker refused, unless another caller relies on it. Runs
    last, as that caller's operation may be in the same transaction."""

    order: ClassVar[int] = 6
    made: Created

    @property
    def job_id(self) -> str:
        return self.made.job_id

    def apply(self, rows: Rows) -> State | None:
        """Change the row, and return the job's state; None if the row is deleted."""
        row = rows.jobs.get(self.job_id)
        if row is None:
            return None
        if not rules.is_revocable_by(row, self.made.receipt):
            return row.state
        _delete_row(rows, row)
        notice = rows.jobs.get(self.made.notice_id or "")
        if notice is not None:
            _delete_row(rows, notice)
        return None


def _delete_row(rows: Rows, row: JobRow) -> None:
    del rows.jobs[row.id]
    rows.new_joins.pop(row.id, None)
    if row.new is None:  # else it has not been inserted yet
        rows.deleted.append(row)


def _pin_row(row: JobRow) -> None:
    if rules.is_revocable(row):
        row.claim_id = None
        row.changed = True
