"""Bulk operations (backfills, redrives, purges): their records, and who runs them.

Times that decide who runs an operation are the database's own. One process at a time holds an
operation. Each of its checkpoints renews the hold, and returns the operation, which an operator may
have paused or cancelled meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    TextClause,
    func,
    or_,
    select,
    text,
    update,
)

from switchyard.services.engine.ledger.sql import job_operations as ops
from switchyard.services.engine.ledger.sql.codec import clean, to_json
from switchyard.services.engine.ledger.sql.dialect import now_sql, now_sql_of
from switchyard.services.engine.ledger.sql.job_id_key import read_job_ids
from switchyard.services.engine.ledger.sql.paging import fetch_page
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import bulk_operations
from switchyard.services.engine.records.bulk import (
    ACTIVE,
    ENDED,
    STOPPED,
    WEIGHT,
    BulkHold,
    BulkOperation,
    BulkState,
    notice_id_of,
)
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.results import Page


class BulkRepository(Repository):
    """Stores bulk operations, and which process runs each. All methods raise LedgerUnavailable when
    the database is away."""

    @write
    def create_bulk(
        self,
        connection: Connection,
        operation_id: str,
        *,
        kind: str,
        title: str,
        spec: Mapping[str, Any],
        created_by: str,
        reason: str | None = None,
        rate: float | None = None,
        max_open: int | None = None,
        counts: Mapping[str, Any] | None = None,
        notice: NewJob | None = None,
        budget: float | None = None,
        hold: BulkHold | None = None,
    ) -> BulkOperation:
        """Record an operation that waits for a process to run it; with `hold`, that process has it
        at once. The same id again returns the existing record. `notice` is a held job whose id is
        `notice_id_of` the operation: the transaction that first ends the operation releases it."""
        now = self.clock.time()
        values = {
            "id": operation_id,
            "kind": kind,
            "title": clean(title),
            "state": BulkState.WAITING.value,
            "rate": rate,
            "max_open": max_open,
            "created_by": clean(created_by),
            "reason": clean(reason),
            "created_at": now,
            "updated_at": now,
            "spec": to_json(spec),
            "counts": to_json(counts or {}),
            "budget": budget,
        }
        existing = _fetch(connection, operation_id)
        if existing is not None:
            return existing
        row = connection.execute(
            bulk_operations.insert().values(values).returning(bulk_operations)
        ).one()
        if notice is not None:
            self._writer.run(connection, [ops.InsertJob(notice)])
        return self._take(connection, operation_id, hold) or _operation(row)

    @read
    def get_bulk(self, connection: Connection, operation_id: str) -> BulkOperation | None:
        """Return one operation."""
        return _fetch(connection, operation_id)

    @read
    def list_bulk(
        self,
        connection: Connection,
        *kinds: str,
        states: Collection[BulkState] = (),
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[BulkOperation]:
        """List operations, newest first; of these kinds, in one of the states. Raises ValueError
        for a limit outside 1 to 1,000, or a cursor that no earlier page gave."""
        query = select(bulk_operations)
        if kinds:
            query = query.where(bulk_operations.c.kind.in_(kinds))
        if states:
            query = query.where(bulk_operations.c.state.in_([state.value for state in states]))
        at, key = bulk_operations.c.created_at, bulk_operations.c.id
        return fetch_page(connection, query, at, key, _operation, limit, cursor)

    @read
    def has_free_bulk(self, connection: Connection) -> bool:
        """Tell whether there is an operation that no process runs, for `claim_bulk`. Unlike
        `claim_bulk`, this blocks no writer."""
        return bool(
            connection.scalar(text(f"SELECT {free_bulk_condition(connection.dialect.name)}"))
        )

    @write
    def claim_bulk(
        self,
        connection: Connection,
        hold: BulkHold,
        *,
        kinds: Collection[str],
        operation_id: str | None = None,
    ) -> BulkOperation | None:
        """Take the oldest operation that no process runs; with `operation_id`, only that one, also
        where it was taken with the same hold before. None when there is none to take."""
        free = (
            select(bulk_operations.c.id)
            .where(
                bulk_operations.c.state.in_([state.value for state in ACTIVE]),
                bulk_operations.c.kind.in_(list(kinds)),
                _is_free(connection, None if operation_id is None else hold),
            )
            .order_by(bulk_operations.c.created_at)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        if operation_id is not None:
            free = free.where(bulk_operations.c.id == operation_id)
        free_id = connection.scalar(free)
        return None if free_id is None else self._take(connection, free_id, hold)

    def _take(
        self, connection: Connection, operation_id: str, hold: BulkHold | None
    ) -> BulkOperation | None:
        """Give an operation to the holder of `hold`. None where another process has it."""
        if hold is None:
            return None
        until = text(f"{now_sql(connection)} + :ttl").bindparams(ttl=hold.seconds)
        taken_row = connection.execute(
            update(bulk_operations)
            .where(bulk_operations.c.id == operation_id, _is_free(connection, hold))
            .values(
                holder=hold.holder,
                lease_until=until,
                started_at=func.coalesce(bulk_operations.c.started_at, self.clock.time()),
                updated_at=self.clock.time(),
            )
            .returning(bulk_operations)
        ).one_or_none()
        return None if taken_row is None else _operation(taken_row)

    @write
    def checkpoint_bulk(
        self,
        connection: Connection,
        operation_id: str,
        holder: str,
        ttl: float,
        *,
        state: BulkState | None = None,
        note: str | None = None,
        cursor: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
    ) -> BulkOperation | None:
        """Record the progress of the holder, and renew its hold for `ttl` seconds.

        `cursor` and `counts` are written even when an operator has paused or cancelled the
        operation meanwhile, as that work was done; `state` and `note` are not. Returns the new
        record; None when the holder has lost the operation, and nothing was written.
        """
        values: dict[str, Any] = {
            "lease_until": text(f"{now_sql(connection)} + :ttl").bindparams(ttl=ttl),
            "updated_at": self.clock.time(),
        }
        if cursor is not None:
            values["cursor"] = to_json(cursor)
        if counts is not None:
            values["counts"] = to_json(counts)
        condition = (bulk_operations.c.id == operation_id) & (bulk_operations.c.holder == holder)
        updated_row = connection.execute(
            update(bulk_operations).where(condition).values(values).returning(bulk_operations)
        ).one_or_none()
        if updated_row is None:
            return None
        operation = _operation(updated_row)
        if state is None or operation.state not in ACTIVE:
            return operation
        changed_row = connection.execute(
            update(bulk_operations)
            .where(condition)
            .values(_state_change(state, note, self.clock.time()))
            .returning(bulk_operations)
        ).one()
        self._notify(connection, changed_row)
        return _operation(changed_row)

    @write
    def release_bulk(self, connection: Connection, operation_id: str, holder: str) -> None:
        """Give an operation back; another process may take it at once."""
        statement = (
            update(bulk_operations)
            .where(bulk_operations.c.id == operation_id, bulk_operations.c.holder == holder)
            .values(holder=None, lease_until=None)
        )
        connection.execute(statement)

    @write
    def move_bulk(
        self,
        connection: Connection,
        operation_id: str,
        to: BulkState,
        *,
        among: Collection[BulkState],
        note: str | None = None,
        hold: BulkHold | None = None,
    ) -> tuple[BulkOperation | None, bool]:
        """Move an operation to a state if it is in one of those in `among`; with `hold`, also take
        it, unless another process has it. Returns the record (None when there is none), and whether
        it was moved. Its holder sees the new state at its next checkpoint."""
        changed_row = connection.execute(
            update(bulk_operations)
            .where(
                bulk_operations.c.id == operation_id,
                bulk_operations.c.state.in_([state.value for state in among]),
            )
            .values(_state_change(to, note, self.clock.time()))
            .returning(bulk_operations)
        ).one_or_none()
        if changed_row is not None:
            self._notify(connection, changed_row)
            return self._take(connection, operation_id, hold) or _operation(changed_row), True
        return _fetch(connection, operation_id), False

    async def set_bulk_limits(
        self, operation_id: str, changes: Mapping[str, float | int | None]
    ) -> BulkOperation | None:
        """Set `rate`, `max_open`, `budget` or the `weight` of its plan, also while it runs. None
        when there is no such operation."""
        if not changes or not changes.keys() <= {"rate", "max_open", "budget", WEIGHT}:
            raise ValueError("only rate, max_open, budget and weight can be set")
        condition = bulk_operations.c.id == operation_id

        def work(connection: Connection) -> BulkOperation | None:
            values: dict[str, Any] = dict(changes)
            if WEIGHT in values:
                spec = connection.scalar(
                    select(bulk_operations.c.spec).where(condition).with_for_update()
                )
                if spec is None:
                    return None
                values["spec"] = to_json({**json.loads(spec), WEIGHT: values.pop(WEIGHT)})
            row = connection.execute(
                update(bulk_operations).where(condition).values(values).returning(bulk_operations)
            ).one_or_none()
            return None if row is None else _operation(row)

        return await self._database.write(work)

    def _notify(self, connection: Connection, changed_row: Row[Any]) -> None:
        """Release the operation's notice, if it has one, once the operation has ended or needs an
        operator."""
        if BulkState(changed_row.state) in STOPPED:
            notice_id = notice_id_of(read_job_ids(connection), changed_row.id)
            self._writer.joins.seal(connection, notice_id, self.clock.time())


def lock_if_held(connection: Connection, operation_id: str, holder: str) -> bool:
    """Lock an operation until the transaction ends, so that no other process takes it; return False
    where the holder has lost it. PostgreSQL locks the row; in SQLite no other transaction may
    write."""
    held_row = (
        select(bulk_operations.c.id)
        .where(bulk_operations.c.id == operation_id, bulk_operations.c.holder == holder)
        .with_for_update(read=True)
    )
    return connection.scalar(held_row) is not None


def _state_change(state: BulkState, note: str | None, now: float) -> dict[str, Any]:
    return {
        "state": state.value,
        "note": clean(note),
        "updated_at": now,
        "finished_at": now if state in ENDED else None,
    }


def _is_free(connection: Connection, hold: BulkHold | None) -> ColumnElement[bool] | TextClause:
    """Return the condition that no process runs an operation, or that the process with that hold
    does."""
    free = text(_is_unheld(connection.dialect.name))
    return free if hold is None else or_(free, bulk_operations.c.holder == hold.holder)


def _is_unheld(dialect: str) -> str:
    """Return the condition that nobody runs an operation, as SQL."""
    return f"(holder IS NULL OR lease_until <= {now_sql_of(dialect)})"


def free_bulk_condition(dialect: str) -> str:
    """Return the condition that there is an operation that nobody runs, as SQL."""
    states = ", ".join(f"'{state.value}'" for state in sorted(ACTIVE))
    condition = f"state IN ({states}) AND {_is_unheld(dialect)}"
    return f"EXISTS (SELECT 1 FROM bulk_operations WHERE {condition})"


def _fetch(connection: Connection, operation_id: str) -> BulkOperation | None:
    query = select(bulk_operations).where(bulk_operations.c.id == operation_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else _operation(row)


def _operation(row: Row[Any]) -> BulkOperation:
    fields = {column.name: row._mapping[column.name] for column in bulk_operations.c}
    return BulkOperation(
        **{
            **fields,
            "state": BulkState(fields["state"]),
            "spec": json.loads(fields["spec"]),
            "cursor": None if fields["cursor"] is None else json.loads(fields["cursor"]),
            "counts": json.loads(fields["counts"]),
        }
    )
