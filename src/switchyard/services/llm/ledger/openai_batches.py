"""Records of the files and batches of the OpenAI-compatible API. The file storage has the files'
contents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Row,
    Select,
    Table,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from switchyard.services.engine.ledger.sql.codec import clean, to_json
from switchyard.services.engine.ledger.sql.dialect import among
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.records.retention import Removal
from switchyard.services.llm.ledger.llm_tables import openai_batches, openai_files
from switchyard.services.llm.records.openai_batches import (
    OPEN_STATES,
    OpenAiBatch,
    OpenAiBatchState,
    OpenAiFile,
)

BATCHES_PER_TURN = 200
"""Batches that one turn of the scheduler advances, the oldest first."""
_OPEN = sorted(OPEN_STATES)
_BATCH_COLUMNS = ("id", "owner", "state", "created_at")
files, batches = openai_files.c, openai_batches.c


class OpenAiBatchRepository(Repository):
    """Files and batches of clients. All methods raise LedgerUnavailable when the database is
    unreachable."""

    # --- files --------------------------------------------------------------------------------

    @write
    def add_file(self, connection: Connection, file: OpenAiFile) -> None:
        """Record a file that is about to be written, perhaps once more after a crash."""
        connection.execute(delete(openai_files).where(files.id == file.id))
        values = {**asdict(file), "filename": clean(file.filename)}
        connection.execute(insert(openai_files).values(values))

    @write
    def complete_file(self, connection: Connection, file: OpenAiFile) -> None:
        """Record the size of a written file, and when it expires: from now on its owner sees it."""
        values = {"size": file.size, "expires_at": file.expires_at}
        connection.execute(update(openai_files).where(files.id == file.id).values(values))

    @read
    def file(self, connection: Connection, file_id: str, owner: str) -> OpenAiFile | None:
        """Return a written file of an owner; None if there is none."""
        conditions = (files.id == file_id, files.owner == owner, files.size.is_not(None))
        row = connection.execute(select(openai_files).where(*conditions)).one_or_none()
        return None if row is None else _file_of(row)

    @read
    def list_files(
        self,
        connection: Connection,
        owner: str,
        *,
        purpose: str | None = None,
        newest_first: bool = True,
        after: str | None = None,
        limit: int,
    ) -> list[OpenAiFile]:
        """List written files of an owner; with `after`, those that follow the file of this id."""
        query = select(openai_files).where(files.owner == owner, files.size.is_not(None))
        if purpose is not None:
            query = query.where(files.purpose == purpose)
        query = _page_query(query, openai_files, owner, newest_first, after, limit)
        return [_file_of(row) for row in connection.execute(query)]

    @write
    def drop_file(self, connection: Connection, file_id: str) -> None:
        """Delete the record of a file whose content is deleted already."""
        connection.execute(delete(openai_files).where(files.id == file_id))

    @read
    def is_read_by_open_batch(self, connection: Connection, file_id: str) -> bool:
        """Return whether a batch that has not ended reads the file."""
        open_batch = select(batches.id).where(
            batches.state.in_(_OPEN), batches.input_file == file_id
        )
        return connection.execute(open_batch.limit(1)).first() is not None

    @read
    def old_files(
        self, connection: Connection, now: float, *, unwritten_before: float, limit: int
    ) -> list[OpenAiFile]:
        """List files that no open batch reads and that have expired by `now`, or are unfinished and
        were created before `unwritten_before`."""
        is_unwritten = files.size.is_(None) & (files.created_at < unwritten_before)
        read_files = select(batches.input_file).where(batches.state.in_(_OPEN))
        query = (
            select(openai_files)
            .where(or_(files.expires_at <= now, is_unwritten), files.id.not_in(read_files))
            .limit(limit)
        )
        return [_file_of(row) for row in connection.execute(query)]

    # --- batches ------------------------------------------------------------------------------

    @write
    def add_batch(self, connection: Connection, batch: OpenAiBatch) -> OpenAiBatch:
        """Record a batch. Returns the recorded one if there is one of this id already."""
        recorded = _fetch(connection, batch.id)
        if recorded is None:
            connection.execute(insert(openai_batches).values(_columns_of(batch)))
        return recorded or batch

    @read
    def batch(
        self, connection: Connection, batch_id: str, owner: str | None = None
    ) -> OpenAiBatch | None:
        """Return a batch; None if there is none, or if it belongs to another than `owner`."""
        batch = _fetch(connection, batch_id)
        return batch if batch is not None and owner in (None, batch.owner) else None

    @read
    def list_batches(
        self, connection: Connection, owner: str, *, after: str | None = None, limit: int
    ) -> list[OpenAiBatch]:
        """List batches of an owner, newest first; with `after`, those that follow the batch of this
        id."""
        query = select(openai_batches).where(batches.owner == owner)
        query = _page_query(query, openai_batches, owner, True, after, limit)
        return [_batch_of(row) for row in connection.execute(query)]

    @read
    def open_batches(self, connection: Connection) -> list[OpenAiBatch]:
        """List the batches that have not ended, oldest first, up to BATCHES_PER_TURN."""
        query = (
            select(openai_batches)
            .where(batches.state.in_(_OPEN))
            .order_by(batches.created_at, batches.id)
            .limit(BATCHES_PER_TURN)
        )
        return [_batch_of(row) for row in connection.execute(query)]

    @read
    def count_open(self, connection: Connection, owner: str) -> int:
        """Count the owner's batches that have not ended."""
        conditions = (batches.owner == owner, batches.state.in_(_OPEN))
        return connection.scalar(select(func.count()).where(*conditions)) or 0

    @write
    def move_batch(
        self,
        connection: Connection,
        batch_id: str,
        new_state: OpenAiBatchState,
        *,
        from_states: Collection[OpenAiBatchState],
        changes: Mapping[str, Any] | None = None,
    ) -> OpenAiBatch | None:
        """Move a batch to another state, and change fields with it, if it is in one of
        `from_states`. Returns the batch as it is then; None if there is none of this id."""
        recorded = _fetch(connection, batch_id, lock=True)
        if recorded is None or recorded.state not in from_states:
            return recorded
        reached_at = {**recorded.moments, new_state.value: self.clock.time()}
        moved = replace(recorded, state=new_state, moments=reached_at, **(changes or {}))
        connection.execute(
            update(openai_batches).where(batches.id == batch_id).values(_columns_of(moved))
        )
        return moved

    @write
    def drop_ended_batches(self, connection: Connection, before: float, *, limit: int) -> Removal:
        """Delete the records of up to `limit` batches that have ended and were created before
        `before`."""
        watch = Stopwatch(connection)
        old = select(batches.id).where(batches.state.not_in(_OPEN), batches.created_at < before)
        ids = list(connection.scalars(old.limit(limit)))
        connection.execute(delete(openai_batches).where(among(connection, batches.id, ids)))
        removed = Counter({"openai_batches": len(ids)})
        return Removal(removed, len(ids) < limit, watch.seconds())

    @read
    def job_ends(
        self, connection: Connection, job_ids: Sequence[str]
    ) -> dict[str, Mapping[str, Any]]:
        """Return `state`, `reason`, `error_type`, `error_message` and `result` of jobs, by id;
        unknown jobs are left out."""
        columns = (jobs.c.state, jobs.c.reason, jobs.c.error_type, jobs.c.error_message)
        query = select(jobs.c.id, *columns, jobs.c.result).where(
            among(connection, jobs.c.id, job_ids)
        )
        return {
            row.id: {
                **row._mapping,
                "result": None if row.result is None else json.loads(row.result),
            }
            for row in connection.execute(query)
        }


def _page_query(
    query: Select[Any], table: Table, owner: str, newest_first: bool, after: str | None, limit: int
) -> Select[Any]:
    """Order a listing, and begin it behind the row with the id `after`; the listing is empty if
    there is no such row."""
    created_at: Column[Any]
    id_column: Column[Any]
    created_at, id_column = table.c.created_at, table.c.id
    if after is not None:
        last_row = (
            select(created_at, id_column)
            .where(id_column == after, table.c.owner == owner)
            .subquery()
        )
        last_position = tuple_(last_row.c.created_at, last_row.c.id)
        row_position = tuple_(created_at, id_column)
        query = query.join(
            last_row,
            (row_position < last_position) if newest_first else (row_position > last_position),
        )
    order = (created_at.desc(), id_column.desc()) if newest_first else (created_at, id_column)
    return query.order_by(*order).limit(limit)


def _fetch(connection: Connection, batch_id: str, *, lock: bool = False) -> OpenAiBatch | None:
    query = select(openai_batches).where(batches.id == batch_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else _batch_of(row)


def _file_of(row: Row[Any]) -> OpenAiFile:
    return OpenAiFile(**{column.name: row._mapping[column.name] for column in openai_files.c})


def _columns_of(batch: OpenAiBatch) -> dict[str, Any]:
    values = asdict(batch)
    columns = {name: values.pop(name) for name in _BATCH_COLUMNS}
    return {**columns, "input_file": batch.input_file_id, "content": to_json(values)}


def _batch_of(row: Row[Any]) -> OpenAiBatch:
    content = json.loads(row.content)
    outcome = content["outcome"]
    return OpenAiBatch(
        **{name: row._mapping[name] for name in _BATCH_COLUMNS if name != "state"},
        **{
            **content,
            "state": OpenAiBatchState(row.state),
            "errors": tuple(content["errors"]),
            "outcome": None if outcome is None else OpenAiBatchState(outcome),
        },
    )
