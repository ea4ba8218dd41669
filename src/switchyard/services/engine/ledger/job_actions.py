"""Apply bulk actions to jobs: each change and its record are one transaction.

So a process that continues an operation after a crash knows what was done, and does nothing twice.
Every method that changes something returns None or False, and changes nothing, where the holder has
lost the operation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select, text, update

from switchyard.services.engine.ledger.bulk_operations import lock_if_held
from switchyard.services.engine.ledger.sql.attempt_ops import Cancel
from switchyard.services.engine.ledger.sql.codec import to_json
from switchyard.services.engine.ledger.sql.dialect import among, insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import job_actions, jobs
from switchyard.services.engine.records.job_actions import MOVABLE, JobActionRecord, JobMove
from switchyard.services.engine.records.results import Cancelled, CancelResult, Running
from switchyard.services.engine.records.states import IN_QUEUES, State

_MAY_BE_ON_BROKER = IN_QUEUES | {State.PENDING}
MAX_NOTED_FOR_JOB = 50
"""Notes of one job that are read."""


class JobActionRepository(Repository):
    """Applies bulk actions to jobs. All methods raise LedgerUnavailable when the database is
    away."""

    @write
    def cancel(
        self,
        connection: Connection,
        operation_id: str,
        holder: str,
        job_ids: Sequence[str],
        now: float,
    ) -> dict[str, CancelResult] | None:
        """Cancel jobs, as `JobRepository.cancel` does each."""
        if not lock_if_held(connection, operation_id, holder):
            return None
        ids = sorted(job_ids)
        results = self._writer.run(connection, [Cancel(each, now) for each in ids])
        results_by_id: dict[str, Any] = dict(zip(ids, results, strict=True))
        _record_actions(
            connection,
            operation_id,
            now,
            {each: {} for each in ids if isinstance(results_by_id[each], (Cancelled, Running))},
        )
        return results_by_id

    @write
    def move(
        self,
        connection: Connection,
        operation_id: str,
        holder: str,
        moves: Sequence[JobMove],
        now: float,
    ) -> list[str] | None:
        """Give jobs that have not begun another lane or priority; return those to be published now.

        A copy that is still in a queue belongs to an older generation from now on, so workers skip
        it. A job that this operation has moved before is not moved again, but returned again, as
        its new copy may not have been sent.
        """
        if not lock_if_held(connection, operation_id, holder):
            return None
        moves_by_id = {each.job_id: each for each in moves}
        recorded_ids = set(
            connection.scalars(
                select(job_actions.c.job_id).where(
                    job_actions.c.operation_id == operation_id,
                    among(connection, job_actions.c.job_id, sorted(moves_by_id)),
                )
            )
        )
        rows = connection.execute(
            select(jobs.c.id, jobs.c.state, jobs.c.lane, jobs.c.priority, jobs.c.redrives)
            .where(
                among(connection, jobs.c.id, sorted(moves_by_id)), jobs.c.state.in_(sorted(MOVABLE))
            )
            .order_by(jobs.c.id)
            .with_for_update()
        ).all()
        publish: list[str] = []
        before: dict[str, dict[str, Any]] = {}
        for row in rows:
            is_sent = row.state in _MAY_BE_ON_BROKER
            if row.id in recorded_ids:
                publish += [row.id] if is_sent else []
                continue
            if is_sent or row.state == State.PAUSED:
                publish.append(row.id)
            before[row.id] = {"before": to_json({"lane": row.lane, "priority": row.priority})}
            _move_job(connection, row, moves_by_id[row.id], is_sent=is_sent, now=now)
        _record_actions(connection, operation_id, now, before)
        return publish

    @write
    def record_reruns(
        self,
        connection: Connection,
        operation_id: str,
        holder: str,
        reruns: Mapping[str, str],
        now: float,
    ) -> bool:
        """Note, for each job, the new one that does it again. False where the operation is no
        longer the holder's."""
        if not lock_if_held(connection, operation_id, holder):
            return False
        notes = {job_id: {"new_job_id": new} for job_id, new in reruns.items()}
        _record_actions(connection, operation_id, now, notes)
        return True

    @read
    def count(self, connection: Connection, operation_id: str) -> int:
        """Count the jobs that an operation has changed."""
        condition = job_actions.c.operation_id == operation_id
        return connection.scalar(select(func.count()).where(condition)) or 0

    @read
    def of_job(self, connection: Connection, job_id: str) -> list[JobActionRecord]:
        """Return what was done to a job, the latest first."""
        query = (
            select(job_actions)
            .where(job_actions.c.job_id == job_id)
            .order_by(job_actions.c.acted_at.desc(), job_actions.c.operation_id)
            .limit(MAX_NOTED_FOR_JOB)
        )
        return [_record(row) for row in connection.execute(query)]

    @read
    def of_operation(
        self, connection: Connection, operation_id: str, job_ids: Sequence[str]
    ) -> dict[str, JobActionRecord]:
        """Return what an operation did to those of these jobs that it has changed."""
        query = select(job_actions).where(
            job_actions.c.operation_id == operation_id,
            among(connection, job_actions.c.job_id, job_ids),
        )
        return {row.job_id: _record(row) for row in connection.execute(query)}


def _move_job(
    connection: Connection, row: Any, move: JobMove, *, is_sent: bool, now: float
) -> None:
    values: dict[str, Any] = {
        "lane": move.lane,
        "routing_key": move.routing_key,
        "priority": move.priority,
        "updated_at": now,
    }
    if is_sent or row.state == State.PAUSED:
        # Pending until its new copy is confirmed. No receipt: no request may roll the record back.
        values |= {"state": State.PENDING.value, "claim_id": None}
    if is_sent:
        values["redrives"] = row.redrives + 1
        # A redrive that has sent the job goes on waiting for its end.
        connection.execute(
            text(
                "UPDATE redriven_letters SET redrives = redrives + 1 WHERE letter_id = :id "
                "AND redrives = :redrives AND outcome IS NULL"
            ),
            {"id": row.id, "redrives": row.redrives},
        )
    connection.execute(update(jobs).where(jobs.c.id == row.id).values(values))


def _record_actions(
    connection: Connection, operation_id: str, now: float, notes: Mapping[str, Mapping[str, Any]]
) -> None:
    if not notes:
        return
    rows_to_insert = [
        {
            "operation_id": operation_id,
            "job_id": job_id,
            "acted_at": now,
            "new_job_id": values.get("new_job_id"),
            "before": values.get("before"),
        }
        for job_id, values in notes.items()
    ]
    statement = insert_into(connection, job_actions).on_conflict_do_nothing()
    connection.execute(statement, rows_to_insert)


def _record(row: Row[Any]) -> JobActionRecord:
    return JobActionRecord(
        operation_id=row.operation_id,
        job_id=row.job_id,
        acted_at=row.acted_at,
        new_job_id=row.new_job_id,
        before=None if row.before is None else json.loads(row.before),
    )
