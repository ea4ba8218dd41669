"""The index of `jobs.dead`: its letters, the causes of their deaths, and their states."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, select, text

from switchyard.broker.message import JobMessage
from switchyard.services.engine.ledger.sql import job_rules as rules
from switchyard.services.engine.ledger.sql.codec import clean, to_json
from switchyard.services.engine.ledger.sql.copy_validation import is_foreign_letter
from switchyard.services.engine.ledger.sql.dead_letter_ops import MarkDead
from switchyard.services.engine.ledger.sql.dialect import (
    insert_into,
    keys_condition,
    keys_parameter,
)
from switchyard.services.engine.ledger.sql.job_content import JobContent, load_edits, load_recorded
from switchyard.services.engine.ledger.sql.paging import fetch_page
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import IS_WAITING, dead_letters, jobs
from switchyard.services.engine.records.errors import RowRejected, UnknownDeadLetter
from switchyard.services.engine.records.requests import (
    DeadLetterFilter,
    DeadLetterRecord,
    FoundLetter,
)
from switchyard.services.engine.records.results import DeadLetter, Page
from switchyard.services.engine.records.states import DeadLetterState

REFUSED = "refused"
"""Reason of letters that are in the ledger alone."""


class DeadLetterIndex(Repository):
    """Indexes dead letters, and reads the index. All methods raise LedgerUnavailable when the
    database is away."""

    async def index_dead(
        self, letters: Sequence[DeadLetterRecord], *, recount: bool = False
    ) -> None:
        """Index letters, and mark their jobs dead, in one transaction. With `recount`, these are
        all letters of their ids in `jobs.dead`: `copies` is set, not increased.

        A job stays as it is when it has finished, when a newer copy than the letter's was seen,
        when it runs and the letter's copy never ran (expired, overflowed, …), or when the letter is
        returned automatically (displaced). A job without a record gets one.
        """
        if not letters:
            return
        now = self.clock.time()
        rows = [_columns(letter, now) for letter in sorted(letters, key=lambda letter: letter.id)]
        mark_dead_operations = [MarkDead(letter) for letter in letters if letter.job_id is not None]

        def work(connection: Connection) -> None:
            if mark_dead_operations:
                self._writer.run(connection, mark_dead_operations)
            insert = insert_into(connection, dead_letters)
            # A letter of a later generation is no copy: its job was redriven in between.
            is_copy = (dead_letters.c.state == DeadLetterState.WAITING) & (
                dead_letters.c.redrives == insert.excluded.redrives
            )
            # Of several letters of one death the first is kept, as when `jobs.dead` is read; a
            # letter of fewer attempts than the known one changes nothing.
            is_same_death = is_copy & (dead_letters.c.attempts >= insert.excluded.attempts)
            changes: dict[str, Any] = {
                column.name: case((is_same_death, column), else_=insert.excluded[column.name])
                for column in dead_letters.c
                if column.name not in ("id", "first_at", "updated_at")
            }
            changes["updated_at"] = insert.excluded.updated_at
            copies = insert.excluded.copies
            changes["copies"] = (
                copies if recount else case((is_copy, dead_letters.c.copies + copies), else_=copies)
            )
            connection.execute(
                insert.on_conflict_do_update(index_elements=["id"], set_=changes), rows
            )

        await self._database.write(work)

    async def record_dead(self, letters: Sequence[DeadLetterRecord]) -> None:
        """Mark the jobs of letters dead, as `index_dead` does, without indexing the letters."""
        mark_dead_operations = [MarkDead(letter) for letter in letters]
        if mark_dead_operations:
            await self._database.write(
                lambda connection: self._writer.run(connection, mark_dead_operations)
            )

    @write
    def record_returned(
        self, connection: Connection, letter_ids: Sequence[str], now: float
    ) -> None:
        """Record that displaced jobs were returned to their queues unchanged."""
        dialect = self._database.dialect
        # A job that has died again meanwhile has another letter, which stays as it is.
        statement = text(
            "UPDATE dead_letters SET state = 'redriven', updated_at = :now "
            f"WHERE {keys_condition(dialect, 'id')} AND state = 'waiting' AND reason = :reason"
        )
        parameters = {
            "now": now,
            "reason": rules.DISPLACED,
            **keys_parameter(dialect, letter_ids),
        }
        connection.execute(statement, parameters)

    async def record_not_displaced(self, letters: Sequence[DeadLetterRecord]) -> None:
        """Record that displaced letters are not returned to their queues after all: their jobs are
        dead, and the letters wait for a redrive."""
        mark_dead_operations = [MarkDead(letter) for letter in letters]
        statement = text(
            "UPDATE dead_letters SET reason = :reason, error_message = :message, "
            "fingerprint = :fingerprint WHERE id = :letter AND reason = :before"
        )
        rows = [
            {
                "letter": letter.id,
                "reason": letter.reason,
                "message": clean(letter.error_message),
                "fingerprint": letter.fingerprint,
                "before": rules.DISPLACED,
            }
            for letter in letters
        ]

        def work(connection: Connection) -> None:
            self._writer.run(connection, mark_dead_operations)
            connection.execute(statement, rows)

        if letters:
            await self._database.write(work)

    async def find_foreign(self, letters: Sequence[FoundLetter]) -> set[int]:
        """Return the indexes of letters that carry another job's id: see
        `copy_validation.is_foreign_letter`."""
        contents = [(each, each.message.job_id, _content_of(each.message)) for each in letters]
        dialect, at = self._database.dialect, self.clock.time()

        def work(connection: Connection) -> set[int]:
            known = load_recorded(
                connection, dialect, sorted({job_id for _, job_id, _ in contents})
            )

            def list_foreign() -> set[int]:
                return {
                    index
                    for index, (letter, job_id, each) in enumerate(contents)
                    if each is None or is_foreign_letter(letter, each, at, known.get(job_id))
                }

            suspects = list_foreign()
            unsure_ids = {contents[index][1] for index in suspects} & known.keys()
            if not unsure_ids:
                return suspects
            load_edits(connection, dialect, known, unsure_ids)
            return list_foreign()

        return await self._database.read(work) if contents else set()

    @read
    def list_dead(
        self,
        connection: Connection,
        letter_filter: DeadLetterFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[DeadLetter]:
        """List dead letters, the latest first. Raises ValueError for a limit outside 1 to 1,000 or
        a cursor that is not from a page before."""
        letter_filter = letter_filter or DeadLetterFilter()
        query = filter_letters(select(dead_letters), letter_filter, self._database.dialect)
        at, key = dead_letters.c.dead_at, dead_letters.c.id
        return fetch_page(connection, query, at, key, to_letter, limit, cursor)

    @read
    def count_dead(self, connection: Connection, letter_filter: DeadLetterFilter) -> int:
        """Count the dead letters that match."""
        query = filter_letters(
            select(func.count()).select_from(dead_letters), letter_filter, self._database.dialect
        )
        return connection.scalar(query) or 0

    async def count_messages(self) -> int:
        """Return the number of messages that `jobs.dead` must have according to the index. Letters
        that the broker never took (`refused`) are in the ledger alone, and not counted."""
        query = select(func.coalesce(func.sum(dead_letters.c.copies), 0)).where(
            IS_WAITING, dead_letters.c.reason != REFUSED
        )
        return int(await self._database.read(lambda connection: connection.scalar(query) or 0))

    async def drop_absent(self, present: Collection[str], until: float) -> int:
        """Mark letters that were indexed until `until` and are not `present` as dropped: the broker
        no longer has them. Returns their number."""
        query = select(dead_letters.c.id).where(
            dead_letters.c.state == DeadLetterState.WAITING,
            dead_letters.c.reason != REFUSED,
            dead_letters.c.updated_at <= until,
        )
        letter_ids = await self._database.read(
            lambda connection: list(connection.execute(query).scalars())
        )
        absent = sorted(set(letter_ids) - set(present))
        if not absent:
            return 0
        return await self.mark_dead_state(absent, DeadLetterState.DROPPED, self.clock.time())

    @read
    def get_dead(self, connection: Connection, letter_id: str) -> DeadLetter | None:
        """Return one dead letter."""
        query = select(dead_letters).where(dead_letters.c.id == letter_id)
        row = connection.execute(query).one_or_none()
        return None if row is None else to_letter(row)

    async def require_dead(self, letter_id: str) -> DeadLetter:
        """Return one dead letter. Raises UnknownDeadLetter."""
        letter = await self.get_dead(letter_id)
        if letter is None:
            raise UnknownDeadLetter(letter_id)
        return letter

    @write
    def mark_dead_state(
        self, connection: Connection, letter_ids: Sequence[str], state: DeadLetterState, now: float
    ) -> int:
        """Record a new state of letters; return the number of letters found. For a redrive, see
        `record_redriven`."""
        dialect = self._database.dialect
        statement = text(
            "UPDATE dead_letters SET state = :state, updated_at = :now "
            f"WHERE {keys_condition(dialect, 'id')} RETURNING id"
        )
        parameters = {
            "state": state.value,
            "now": now,
            **keys_parameter(dialect, letter_ids),
        }
        return len(connection.execute(statement, parameters).all())


def _content_of(message: JobMessage) -> JobContent | None:
    try:
        return JobContent.from_message(message)
    except RowRejected:
        return None  # no record has such a payload


def _columns(letter: DeadLetterRecord, now: float) -> dict[str, Any]:
    return {
        "id": letter.id,
        "job_id": letter.job_id,
        "job_type": clean(letter.job_type),
        "lane": clean(letter.lane),
        "routing_key": clean(letter.routing_key),
        "reason": clean(letter.reason),
        "error_type": clean(letter.error_type),
        "error_message": clean(letter.error_message),
        "traceback": clean(letter.traceback),
        "attempts": letter.attempts,
        "redrives": letter.redrives,
        "worker": clean(letter.worker),
        "first_at": letter.dead_at,
        "dead_at": letter.dead_at,
        "copies": letter.copies,
        "state": DeadLetterState.WAITING.value,
        "updated_at": now,
        "fingerprint": letter.fingerprint,
        "headers": to_json(letter.headers),
        "body": letter.body,
    }


def filter_letters(
    query: Select[Any], letter_filter: DeadLetterFilter, dialect: str
) -> Select[Any]:
    """Add the conditions of a filter to a query."""
    for name in ("state", "reason", "job_type", "lane", "error_type"):
        value = getattr(letter_filter, name)
        if name == "state" and value == DeadLetterState.WAITING:
            query = query.where(IS_WAITING)
        elif value is not None:
            query = query.where(dead_letters.c[name] == value)
    if letter_filter.group is not None:
        # A range, which an index serves, and not LIKE.
        query = query.where(
            dead_letters.c.fingerprint >= letter_filter.group,
            dead_letters.c.fingerprint < letter_filter.group + "~",
        )
    if letter_filter.operation is not None:
        job_of_operation = select(jobs.c.id).where(
            jobs.c.id == dead_letters.c.id, jobs.c.operation_id == letter_filter.operation
        )
        query = query.where(job_of_operation.exists())
    if letter_filter.ids:
        keys = keys_parameter(dialect, sorted(letter_filter.ids))
        query = query.where(text(keys_condition(dialect, "dead_letters.id")).bindparams(**keys))
    if letter_filter.since is not None:
        query = query.where(dead_letters.c.dead_at >= letter_filter.since)
    if letter_filter.until is not None:
        query = query.where(dead_letters.c.dead_at <= letter_filter.until)
    return query


def to_letter(row: Row[Any]) -> DeadLetter:
    """Make a dead letter of a row."""
    fields = {column.name: row._mapping[column.name] for column in dead_letters.c}
    return DeadLetter(**{**fields, "headers": json.loads(fields["headers"])})
