"""Apply many operations in one transaction: load their rows, change them in memory, write the
changed ones.

A batch of only new jobs and confirms needs no rows: `JobWriter.run_without_loading`. For other
batches, there are at most one SELECT, one UPDATE, one INSERT of jobs and one of attempts, each for
the whole batch; and the statements of `services.engine.ledger.sql.join_writer`, where jobs with a
join have begun or ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql import dialect as sql
from switchyard.services.engine.ledger.sql.attempt_ops import UNENDED, Claim
from switchyard.services.engine.ledger.sql.driver_errors import TransactionConflict
from switchyard.services.engine.ledger.sql.job_content import (
    METADATA_COLUMNS,
    ContentHistory,
    JobContent,
    RecordedMetadata,
    load_edits,
)
from switchyard.services.engine.ledger.sql.job_operations import (
    InsertJob,
    JobOperation,
    MarkQueued,
    RollbackInsert,
)
from switchyard.services.engine.ledger.sql.job_rows import JobRow, KeyHolder, Rows
from switchyard.services.engine.ledger.sql.join_writer import JoinWriter
from switchyard.services.engine.ledger.sql.pausing import load_pauses, pauses_in_force
from switchyard.services.engine.ledger.sql.progress_ops import HAS_CHECKPOINT, ProgressStatements
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.pauses import ActivePauses
from switchyard.services.engine.records.states import UNCONFIRMED, State

INSERT_CHARACTERS: Final = 8_000_000
"""Characters of payload in one INSERT, at most; more are split over several."""

_LOADED_COLUMNS: Final = (
    "id, state, redrives, attempts, crashes, worker_id, claim_id, started_at, "
    f"idempotency_key, fingerprint, join_id, joins, cancel_asked_at, {HAS_CHECKPOINT}"
)

_UPDATED_COLUMNS: Final[sql.Columns] = {
    "id": "text",
    "state": "text",
    "redrives": "integer",
    "attempts": "integer",
    "crashes": "integer",
    "worker_id": "text",
    "claim_id": "text",
    "queued_at": "double precision",
    "started_at": "double precision",
    "finished_at": "double precision",
    "updated_at": "double precision",
    "ended": "integer",
    "reason": "text",
    "error_type": "text",
    "error_message": "text",
    "result": "text",
    "cancel_asked_at": "double precision",
}

_NEW_COLUMNS: Final[sql.Columns] = {
    "job_type": "text",
    "lane": "text",
    "routing_key": "text",
    "worker": "text",
    "priority": "integer",
    "source": "text",
    "parent_id": "text",
    "pipeline": "text",
    "max_attempts": "integer",
    "created_at": "double precision",
    "run_at": "double precision",
    "expires_at": "double precision",
    "idempotency_key": "text",
    "fingerprint": "text",
    "operation_id": "text",
    "metadata": "text",
    "payload": "text",
    "join_id": "text",
    "joins": "integer",
}

_INSERTED_COLUMNS: Final[sql.Columns] = {
    name: kind for name, kind in {**_UPDATED_COLUMNS, **_NEW_COLUMNS}.items() if name != "ended"
}

_REWRITTEN_COLUMNS: Final[sql.Columns] = {
    "id": "text",
    **{
        name: _NEW_COLUMNS[name]
        for name in (
            "job_type", "lane", "routing_key", "worker", "priority", "max_attempts", "expires_at",
            "metadata", "payload",
        )
    },
}  # fmt: skip
"""Columns of a job that a redrive may change."""

_CONFIRM_COLUMNS: Final[sql.Columns] = {"id": "text", "at": "double precision"}

_TAG_COLUMNS: Final[sql.Columns] = {
    "job_id": "text",
    "name": "text",
    "value": "text",
    "created_at": "double precision",
}

_ATTEMPT_COLUMNS: Final[sql.Columns] = {
    "job_id": "text",
    "redrive": "integer",
    "attempt": "integer",
    "worker_id": "text",
    "started_at": "double precision",
    "finished_at": "double precision",
    "outcome": "text",
    "error_type": "text",
    "error_message": "text",
}


class JobWriter:
    """Runs operations on a connection that is in a transaction. Keeps only prepared statements."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._progress = ProgressStatements(dialect)
        self._select = sql.select_locked(dialect, _LOADED_COLUMNS, "id")
        # Payloads may be long: they are only loaded for claims, which compare them with the
        # message.
        content = ", ".join(
            (UNENDED, "job_type", "payload", "run_at", "routing_key", *METADATA_COLUMNS)
        )
        self._select_with_content = sql.select_locked(
            dialect, f"{_LOADED_COLUMNS}, {content}", "id"
        )
        self._select_keys = sql.select_locked(dialect, _LOADED_COLUMNS, "idempotency_key")
        self._delete = text(f"DELETE FROM jobs WHERE {sql.keys_condition(dialect, 'id')}")
        self._delete_tags = text(
            f"DELETE FROM job_tags WHERE {sql.keys_condition(dialect, 'job_id')}"
        )
        names = ", ".join(_TAG_COLUMNS)
        self._insert_tags = text(
            f"INSERT INTO job_tags ({names}) SELECT {names} "
            f"FROM {sql.rows_source(dialect, _TAG_COLUMNS)} WHERE true ON CONFLICT DO NOTHING"
        )
        self._update = text(
            f"""UPDATE jobs SET
                state = r.state, redrives = r.redrives, attempts = r.attempts,
                crashes = r.crashes, worker_id = r.worker_id, claim_id = r.claim_id,
                queued_at = COALESCE(r.queued_at, jobs.queued_at),
                started_at = COALESCE(r.started_at, jobs.started_at),
                finished_at = CASE WHEN r.state IN ('succeeded', 'dead', 'cancelled')
                    THEN COALESCE(r.finished_at, jobs.finished_at) END,
                updated_at = COALESCE(r.updated_at, jobs.updated_at),
                reason = CASE WHEN r.ended = 1 THEN r.reason ELSE jobs.reason END,
                error_type = CASE WHEN r.ended = 1 THEN r.error_type ELSE jobs.error_type END,
                error_message =
                    CASE WHEN r.ended = 1 THEN r.error_message ELSE jobs.error_message END,
                result = COALESCE(r.result, jobs.result),
                cancel_asked_at = COALESCE(r.cancel_asked_at, jobs.cancel_asked_at)
            FROM {sql.rows_source(dialect, _UPDATED_COLUMNS)} WHERE jobs.id = r.id"""
        )
        changes = ", ".join(f"{name} = r.{name}" for name in _REWRITTEN_COLUMNS if name != "id")
        self._rewrite = text(
            f"UPDATE jobs SET {changes} FROM {sql.rows_source(dialect, _REWRITTEN_COLUMNS)} "
            "WHERE jobs.id = r.id"
        )
        names = ", ".join(_INSERTED_COLUMNS)
        self._insert = text(
            f"INSERT INTO jobs ({names}) SELECT {names} "
            f"FROM {sql.rows_source(dialect, _INSERTED_COLUMNS)} WHERE true ON CONFLICT DO NOTHING"
        ).execution_options(preserve_rowcount=True)
        self._insert_unless_paused = text(
            f"INSERT INTO jobs ({names}) SELECT {names} "
            f"FROM {sql.rows_source(dialect, _INSERTED_COLUMNS)} "
            f"WHERE NOT EXISTS (SELECT 1 {pauses_in_force(dialect)}) ON CONFLICT DO NOTHING"
        ).execution_options(preserve_rowcount=True)
        states = ", ".join(f"'{state}'" for state in sorted(UNCONFIRMED))
        self._mark_queued = text(
            "UPDATE jobs SET state = 'queued', queued_at = r.at, updated_at = r.at "
            f"FROM {sql.rows_source(dialect, _CONFIRM_COLUMNS)} "
            f"WHERE jobs.id = r.id AND jobs.state IN ({states})"
        )
        self.joins = JoinWriter(dialect)
        names = ", ".join(_ATTEMPT_COLUMNS)
        self._insert_attempts = text(
            f"INSERT INTO attempts ({names}) "
            f"SELECT {names} FROM {sql.rows_source(dialect, _ATTEMPT_COLUMNS)} WHERE true"
        )

    def run(
        self, connection: Connection, operations: Sequence[JobOperation[Any]]
    ) -> list[Any | LedgerError]:
        """Apply the operations and write the changed rows. Return the result of each, or its
        LedgerError. Raises TransactionConflict when another process inserted the same job: run it
        again.
        """
        rows = self._load(connection, operations)
        results: list[Any] = [None] * len(operations)
        for index in sorted(range(len(operations)), key=lambda index: operations[index].order):
            try:
                results[index] = operations[index].apply(rows)
            except LedgerError as error:
                results[index] = error
        self._write(connection, rows)
        return results

    def run_without_loading(
        self, connection: Connection, operations: Sequence[JobOperation[Any]]
    ) -> list[Any] | None:
        """Insert new jobs and mark confirmed ones without loading their rows: one statement for the
        inserts, one for the confirms. Only where `can_skip_loading`. Return the results; None if a
        job exists already or a pause is in force. Then call `run` with the same operations: it
        recognises the rows inserted here by their receipts.
        """
        new = [each for each in operations if isinstance(each, InsertJob)]
        confirmed = [each for each in operations if isinstance(each, MarkQueued)]
        for batch in _insert_batches([each.row() for each in new]):
            parameters = self._parameters(_INSERTED_COLUMNS, [_insert_values(row) for row in batch])
            if connection.execute(self._insert_unless_paused, parameters).rowcount != len(batch):
                return None
        if confirmed:
            self.mark_queued(connection, [(each.job_id, each.at) for each in confirmed])
        return [each.created() if isinstance(each, InsertJob) else None for each in operations]

    def mark_queued(self, connection: Connection, confirmed: Sequence[tuple[str, float]]) -> None:
        """Mark jobs queued, given as pairs of id and confirm time. This is `rules.may_queue` as one
        statement: loading, changing and writing the rows costs three times as much."""
        # In the order in which other transactions lock them.
        connection.execute(self._mark_queued, self._parameters(_CONFIRM_COLUMNS, sorted(confirmed)))

    def _load(self, connection: Connection, operations: Sequence[JobOperation[Any]]) -> Rows:
        rows = Rows()
        job_ids = {operation.job_id for operation in operations}
        rollbacks = [each.made for each in operations if isinstance(each, RollbackInsert)]
        job_ids.update(each.notice_id for each in rollbacks if each.notice_id is not None)
        ids = list(job_ids)
        claims = [each for each in operations if isinstance(each, Claim)]
        select = self._select_with_content if claims else self._select
        locked_rows = list(sql.fetch_locked(connection, select, ids))
        records = [each for each in operations if isinstance(each, InsertJob)]
        if claims or records:
            rows.pauses = ActivePauses.from_records(load_pauses(connection))
        keys = list({each.idempotency_key for each in records if each.idempotency_key is not None})
        if keys:
            locked_rows += sql.fetch_locked(connection, self._select_keys, keys)
        for job_id, state, redrives, attempts, crashes, worker_id, claim_id, *rest in locked_rows:
            started_at, key, fingerprint, join_id, joins, cancel_asked, has_checkpoint, *content = (
                rest
            )
            loaded_state = State(state)
            rows.jobs[job_id] = row = JobRow(
                job_id,
                loaded_state,
                redrives,
                attempts,
                crashes,
                worker_id,
                claim_id,
                loaded_state=loaded_state,
            )
            row.started_at, row.has_checkpoint = started_at, bool(has_checkpoint)
            row.join_id, row.joins, row.cancel_asked_at = join_id, bool(joins), cancel_asked
            if key is not None:
                rows.keys[key] = KeyHolder(job_id, fingerprint)
            if content:
                row.unended, job_type, payload, run_at, routing_key, *stored_content = content
                rows.contents[job_id] = ContentHistory(
                    JobContent(job_type, payload),
                    redrives=redrives,
                    state=loaded_state,
                    run_at=run_at,
                    routing_key=routing_key,
                    metadata=RecordedMetadata(*stored_content),
                )
        doubtful_ids = [each.job_id for each in claims if _is_doubtful(each, rows)]
        load_edits(connection, self._dialect, rows.contents, doubtful_ids)
        return rows

    def _write(self, connection: Connection, rows: Rows) -> None:
        if rows.deleted:
            deleted_ids = [row.id for row in rows.deleted]
            connection.execute(self._delete, sql.keys_parameter(self._dialect, deleted_ids))
            connection.execute(self._delete_tags, sql.keys_parameter(self._dialect, deleted_ids))
        new = [row for row in rows.jobs.values() if row.new is not None]
        for batch in _insert_batches(new):
            parameters = self._parameters(_INSERTED_COLUMNS, [_insert_values(row) for row in batch])
            if connection.execute(self._insert, parameters).rowcount != len(batch):
                raise TransactionConflict("another process has recorded the same job")
        tags = [line for row in new for line in _tag_lines(row)]
        if tags:
            connection.execute(self._insert_tags, self._parameters(_TAG_COLUMNS, tags))
        changed = [row for row in rows.jobs.values() if row.changed and row.new is None]
        if changed:
            parameters = self._parameters(
                _UPDATED_COLUMNS, [_update_values(row) for row in changed]
            )
            connection.execute(self._update, parameters)
        if rows.rewritten:
            lines = [
                [line[name] for name in _REWRITTEN_COLUMNS] for line in rows.rewritten.values()
            ]
            connection.execute(self._rewrite, self._parameters(_REWRITTEN_COLUMNS, lines))
        if rows.attempts:
            connection.execute(
                self._insert_attempts, self._parameters(_ATTEMPT_COLUMNS, rows.attempts)
            )
        self._progress.write(connection, rows)
        self.joins.write(connection, rows)

    def _parameters(self, columns: sql.Columns, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        return sql.rows_parameters(self._dialect, columns, rows)


def can_skip_loading(operations: Sequence[JobOperation[Any]]) -> bool:
    """Tell whether `JobWriter.run_without_loading` can do all of these operations."""
    return all(
        isinstance(each, MarkQueued) or (isinstance(each, InsertJob) and each.is_plain)
        for each in operations
    )


def _is_doubtful(claim: Claim, rows: Rows) -> bool:
    """Tell whether the job's redrive edits must be loaded: the claim's message differs from the
    record, or is of a later redrive."""
    history = rows.contents.get(claim.job_id)
    if history is None:
        return False
    is_newer = claim.request.message.metadata.redrives > rows.jobs[claim.job_id].redrives
    return is_newer or not claim.content.is_same(history.recorded)


def _update_values(row: JobRow) -> list[Any]:
    return [
        row.id,
        row.state,
        row.redrives,
        row.attempts,
        row.crashes,
        row.worker_id,
        row.claim_id,
        row.queued_at,
        row.started_at,
        row.finished_at,
        row.updated_at,
        int(row.ended),
        row.reason,
        row.error_type,
        row.error_message,
        row.result,
        row.cancel_asked_at,
    ]


def _insert_values(row: JobRow) -> list[Any]:
    assert row.new is not None
    changed = _update_values(row)
    del changed[list(_UPDATED_COLUMNS).index("ended")]
    return changed + [row.new.get(name) for name in _NEW_COLUMNS]


def _tag_lines(row: JobRow) -> list[list[Any]]:
    assert row.new is not None
    made_at = row.new["created_at"]
    return [[row.id, name, value, made_at] for name, value in row.new.get("tags", {}).items()]


def _insert_batches(rows: Sequence[JobRow]) -> Iterator[list[JobRow]]:
    """Cut the rows to insert into batches of INSERT_CHARACTERS, sorted by id: in one order, two
    processes do not block each other."""
    batch: list[JobRow] = []
    size = 0
    for row in sorted(rows, key=lambda row: row.id):
        assert row.new is not None
        batch.append(row)
        size += len(row.new["payload"])
        if size >= INSERT_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
