"""Save running jobs' progress and checkpoints, as part of the transactions that change jobs.

Only the claim that holds the job may write these: a runner whose job was taken over can't overwrite
the progress of the new one. The transaction in which a job succeeds or is cancelled deletes its
checkpoint; a dead job keeps it, for the attempt after a redrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql import dialect as sql
from switchyard.services.engine.ledger.sql.codec import clean, fingerprint, to_json
from switchyard.services.engine.ledger.sql.job_rows import Rows
from switchyard.services.engine.records.progress import ProgressRequest
from switchyard.services.engine.records.states import State

HAS_CHECKPOINT: Final = "(SELECT 1 FROM job_checkpoints WHERE job_id = jobs.id LIMIT 1) IS NOT NULL"
"""SQL for whether a job has a checkpoint. Not EXISTS, for which PostgreSQL may read all checkpoints
once for each batch of jobs."""

_PROGRESS: Final[sql.Columns] = {
    "job_id": "text",
    "claim_id": "text",
    "fraction": "double precision",
    "note": "text",
    "reported_at": "double precision",
}
_CHECKPOINT: Final[sql.Columns] = {
    "job_id": "text",
    "work": "text",
    "kept_at": "double precision",
    "data": "text",
}


_RowsByJob = Mapping[str, Sequence[Any]]
"""Rows by the job's id."""


class SaveProgress:
    """Operation: save the progress or checkpoint of a running job. Hashes the payload in the
    constructor, so that its errors reach the caller."""

    __slots__ = ("_content_hash", "_request")
    order: ClassVar[int] = 4

    def __init__(self, request: ProgressRequest) -> None:
        self._request = request
        message = request.message
        self._content_hash = (
            None
            if request.checkpoint is None
            else fingerprint(message.job_type, to_json(message.payload))
        )

    @property
    def job_id(self) -> str:
        return self._request.message.job_id

    def apply(self, rows: Rows) -> bool:
        """Change the row; return False when this claim does not hold the job."""
        request = self._request
        row = rows.jobs.get(self.job_id)
        if row is None or row.state is not State.RUNNING or row.claim_id != request.claim_id:
            return False
        if request.progress is not None:
            progress = request.progress
            note = clean(progress.note) or ""
            rows.progress[row.id] = [row.id, row.claim_id, progress.fraction, note, request.now]
        if request.checkpoint is not None:
            rows.checkpoints[row.id] = [row.id, self._content_hash, request.now, request.checkpoint]
            row.has_checkpoint = True
        return True


@dataclass(frozen=True, slots=True)
class ProgressStatements:
    """Writes the progress and checkpoints in `Rows`, for one kind of database."""

    dialect: str

    def write(self, connection: Connection, rows: Rows) -> None:
        if rows.progress:
            self._upsert(connection, "job_progress", _PROGRESS, rows.progress)
        if rows.checkpoints:
            self._upsert(connection, "job_checkpoints", _CHECKPOINT, rows.checkpoints)
        if rows.forgotten:
            condition = sql.keys_condition(self.dialect, "job_id")
            connection.execute(
                text(f"DELETE FROM job_checkpoints WHERE {condition}"),
                sql.keys_parameter(self.dialect, sorted(rows.forgotten)),
            )

    def _upsert(
        self,
        connection: Connection,
        table: str,
        columns: sql.Columns,
        rows_by_job: _RowsByJob,
    ) -> None:
        names = ", ".join(columns)
        new = ", ".join(f"{name} = excluded.{name}" for name in columns if name != "job_id")
        statement = text(
            f"INSERT INTO {table} ({names}) "
            f"SELECT {names} FROM {sql.rows_source(self.dialect, columns)} WHERE true "
            f"ON CONFLICT (job_id) DO UPDATE SET {new}"
        )
        ordered = [rows_by_job[job_id] for job_id in sorted(rows_by_job)]
        connection.execute(statement, sql.rows_parameters(self.dialect, columns, ordered))
