"""Record what redrives sent and changed, and the outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, case, delete, func, select, text, update

from switchyard.broker.lanes import queue_name
from switchyard.services.engine.ledger.bulk_operations import lock_if_held
from switchyard.services.engine.ledger.job_reads import to_record
from switchyard.services.engine.ledger.sql import dialect as sql
from switchyard.services.engine.ledger.sql.codec import to_json
from switchyard.services.engine.ledger.sql.dead_letter_ops import MarkRedriven, UndoRedrive
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import (
    dead_letters,
    jobs,
    leftover_letters,
    letter_edits,
    redriven_letters,
)
from switchyard.services.engine.records.requests import (
    LeftoverLetter,
    LetterEdit,
    NewJob,
    RedrivenCopy,
)
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import RedriveOutcome, State

_COPIES: sql.Columns = {"id": "text", "redrives": "integer"}
_LEFTOVERS: sql.Columns = {"letter_id": "text", "redrives": "integer", "copies": "integer"}


class RedriveRepository(Repository):
    """Stores what redrives plan, send and change. All methods raise LedgerUnavailable when the
    database is away."""

    @read
    def job_generations(
        self, connection: Connection, job_ids: Sequence[str]
    ) -> dict[str, tuple[State, int]]:
        """Return state and redrives of those jobs that the ledger has, by id."""
        dialect = self._database.dialect
        query = text(
            f"SELECT id, state, redrives FROM jobs WHERE {sql.keys_condition(dialect, 'id')}"
        )
        keys = sql.keys_parameter(dialect, job_ids)
        return {row.id: (State(row.state), row.redrives) for row in connection.execute(query, keys)}

    @read
    def job_queues(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the queues of those jobs that the ledger knows, with the kinds of their
        workers."""
        dialect = self._database.dialect
        query = text(
            "SELECT id, lane, worker FROM jobs "
            f"WHERE {sql.keys_condition(dialect, 'id')} AND worker <> ''"
        )
        keys = sql.keys_parameter(dialect, job_ids)
        rows = connection.execute(query, keys)
        return {row.id: queue_name(row.lane, row.worker) for row in rows}

    async def record_redriven(
        self,
        copies: Sequence[RedrivenCopy],
        now: float,
        leftovers: Sequence[LeftoverLetter] = (),
    ) -> None:
        """Record that the broker has these copies: their jobs are queued again unless a worker has
        already started them, and their letters no longer wait unless the jobs have died again.
        `leftovers`: see `record_leftovers`."""
        if not copies:
            return
        redriven = [
            MarkRedriven(each.letter_id, each.redrives, now, each.changed) for each in copies
        ]
        source = sql.rows_source(self._database.dialect, _COPIES)
        letters = text(
            f"UPDATE dead_letters SET state = 'redriven', updated_at = :now FROM {source} "
            "WHERE dead_letters.id = r.id AND dead_letters.redrives < r.redrives"
        )
        rows = sorted((each.letter_id, each.redrives) for each in copies)
        parameters = sql.rows_parameters(self._database.dialect, _COPIES, rows) | {"now": now}

        def work(connection: Connection) -> None:
            self._writer.run(connection, redriven)
            connection.execute(letters, parameters)
            _add_leftovers(connection, leftovers)

        await self._database.write(work)

    # --- letters that no longer wait, but are still in the queue -----------------------------

    async def record_leftovers(self, leftovers: Sequence[LeftoverLetter]) -> None:
        """Record letters that no longer wait, but whose messages are still in `jobs.dead`: the next
        scan of it removes the messages."""
        if leftovers:
            await self._database.write(lambda connection: _add_leftovers(connection, leftovers))

    @read
    def leftover_letters(self, connection: Connection) -> list[LeftoverLetter]:
        """Return all leftover letters."""
        query = select(leftover_letters)
        return [LeftoverLetter(*row) for row in connection.execute(query)]

    @read
    def count_leftovers(self, connection: Connection) -> int:
        """Return the number of messages of leftover letters in `jobs.dead`."""
        query = select(func.coalesce(func.sum(leftover_letters.c.copies), 0))
        return int(connection.scalar(query) or 0)

    async def forget_leftovers(self, removed: Sequence[LeftoverLetter]) -> None:
        """Record that messages of leftover letters were removed from `jobs.dead`; `copies`: their
        number."""
        if not removed:
            return
        dialect = self._database.dialect
        update = text(
            f"UPDATE leftover_letters SET copies = leftover_letters.copies - r.copies "
            f"FROM {sql.rows_source(dialect, _LEFTOVERS)} "
            "WHERE leftover_letters.letter_id = r.letter_id"
        )
        rows = sorted((each.letter_id, each.redrives, each.copies) for each in removed)
        parameters = sql.rows_parameters(dialect, _LEFTOVERS, rows)

        def work(connection: Connection) -> None:
            connection.execute(update, parameters)
            connection.execute(delete(leftover_letters).where(leftover_letters.c.copies <= 0))

        await self._database.write(work)

    # --- one operation ----------------------------------------------------------------------

    async def record_plan(
        self,
        operation_id: str,
        holder: str,
        copies: Mapping[str, int],
        edits: Sequence[LetterEdit] = (),
    ) -> bool:
        """Record which copies an operation is about to send: their redrives by letter, and their
        changes.

        Called before they are sent, so that after a crash the next holder does not send them twice.
        False when the holder has lost the operation: nothing was recorded.
        """
        if not copies:
            return True
        planned_rows = [
            {"operation_id": operation_id, "letter_id": letter, "redrives": redrives}
            for letter, redrives in sorted(copies.items())
        ]
        edit_rows = [_edit_columns(edit) for edit in sorted(edits, key=lambda edit: edit.letter_id)]

        def work(connection: Connection) -> bool:
            if not lock_if_held(connection, operation_id, holder):
                return False
            statement = sql.insert_into(connection, redriven_letters)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["operation_id", "letter_id"],
                    set_={"redrives": statement.excluded.redrives},
                ),
                planned_rows,
            )
            if edit_rows:
                edit = sql.insert_into(connection, letter_edits)
                connection.execute(
                    edit.on_conflict_do_update(
                        index_elements=["letter_id", "redrives"],
                        set_={
                            column.name: edit.excluded[column.name]
                            for column in letter_edits.c
                            if not column.primary_key
                        },
                    ),
                    edit_rows,
                )
            return True

        return await self._database.write(work)

    @read
    def planned_redrives(
        self, connection: Connection, operation_id: str, letter_ids: Sequence[str]
    ) -> dict[str, int]:
        """Return those of these letters that the operation has sent, or was about to send, each
        with the redrive number of its copy."""
        dialect = self._database.dialect
        query = text(
            sql.select_by_keys(
                dialect,
                "letter_id, redrives",
                "redriven_letters",
                "letter_id",
                where="operation_id = :operation",
            )
        )
        parameters = {"operation": operation_id, **sql.keys_parameter(dialect, letter_ids)}
        return {row.letter_id: row.redrives for row in connection.execute(query, parameters)}

    async def forget_planned(
        self, operation_id: str, holder: str, letter_ids: Sequence[str]
    ) -> bool:
        """Forget planned copies that the broker did not take. False when the holder has lost the
        operation: nothing is forgotten, as the new holder may have planned and sent the same
        letters."""
        if not letter_ids:
            return True
        dialect = self._database.dialect
        statement = text(
            "DELETE FROM redriven_letters WHERE operation_id = :operation "
            f"AND {sql.keys_condition(dialect, 'letter_id')}"
        )
        parameters = {"operation": operation_id, **sql.keys_parameter(dialect, letter_ids)}

        def work(connection: Connection) -> bool:
            if not lock_if_held(connection, operation_id, holder):
                return False
            connection.execute(statement, parameters)
            return True

        return await self._database.write(work)

    @write
    def settle_redriven(
        self, connection: Connection, operation_id: str
    ) -> dict[RedriveOutcome | None, int]:
        """Settle the outcomes of an operation's letters; return the number of letters by outcome,
        None for open ones."""
        # A copy that died again, of a job without a record, is known only by its dead letter.
        ended = text(
            "UPDATE redriven_letters SET outcome = CASE WHEN j.state = 'succeeded' "
            "AND j.redrives = redriven_letters.redrives THEN 'succeeded' ELSE 'failed' END "
            "FROM jobs j "
            "WHERE redriven_letters.operation_id = :operation AND outcome IS NULL "
            "AND j.id = letter_id AND (j.redrives > redriven_letters.redrives OR (j.redrives = "
            "redriven_letters.redrives AND j.state IN ('succeeded', 'dead', 'cancelled')))"
        )
        died_again = text(
            "UPDATE redriven_letters SET outcome = 'failed' FROM dead_letters d "
            "WHERE redriven_letters.operation_id = :operation AND outcome IS NULL "
            "AND d.id = letter_id AND d.redrives >= redriven_letters.redrives"
        )
        condition = redriven_letters.c.operation_id == operation_id
        outcome = redriven_letters.c.outcome
        query = select(outcome, func.count()).where(condition).group_by(outcome)
        parameters = {"operation": operation_id}
        connection.execute(ended, parameters)
        connection.execute(died_again, parameters)
        return {
            None if each is None else RedriveOutcome(each): number
            for each, number in connection.execute(query)
        }

    @read
    def redriven_letters(
        self,
        connection: Connection,
        operation_id: str,
        outcome: RedriveOutcome | None,
        *,
        limit: int,
    ) -> list[str]:
        """Return ids of an operation's letters with that outcome; None: letters without an outcome
        yet."""
        query = (
            select(redriven_letters.c.letter_id)
            .where(
                redriven_letters.c.operation_id == operation_id,
                redriven_letters.c.outcome.is_not_distinct_from(outcome),
            )
            .order_by(redriven_letters.c.letter_id)
            .limit(limit)
        )
        return list(connection.execute(query).scalars())

    # --- edits ------------------------------------------------------------------------------

    @read
    def letter_edits(
        self,
        connection: Connection,
        *,
        letter_id: str | None = None,
        operation_id: str | None = None,
        limit: int = 1_000,
    ) -> list[LetterEdit]:
        """Return the edits of one letter, or of one operation, latest first."""
        query = select(letter_edits)
        if letter_id is not None:
            query = query.where(letter_edits.c.letter_id == letter_id)
        if operation_id is not None:
            query = query.where(letter_edits.c.operation_id == operation_id)
        query = query.order_by(
            letter_edits.c.edited_at.desc(),
            letter_edits.c.letter_id,
            letter_edits.c.redrives.desc(),
        ).limit(limit)
        return [_to_edit(row) for row in connection.execute(query)]

    @write
    def undo_edit(
        self, connection: Connection, edit: LetterEdit, job: NewJob, restored: bytes, reason: str
    ) -> bool:
        """Undo a redrive with an edit whose copy has not run. The copy never runs then, and the job
        is dead, and `job` again; its letter waits again, with the body `restored`. False when it is
        too late, as when the copy runs."""
        condition = (letter_edits.c.letter_id == edit.letter_id) & (
            letter_edits.c.redrives == edit.redrives
        )
        undo = UndoRedrive(job, edit.redrives + 1, reason)
        if self._writer.run(connection, [undo]) != [True]:
            return False
        connection.execute(update(letter_edits).where(condition).values(undone_at=job.now))
        connection.execute(
            update(dead_letters)
            .where(dead_letters.c.id == edit.letter_id)
            .values(state="waiting", body=restored, updated_at=job.now)
        )
        connection.execute(
            update(redriven_letters)
            .where(
                redriven_letters.c.operation_id == edit.operation_id,
                redriven_letters.c.letter_id == edit.letter_id,
            )
            .values(outcome=RedriveOutcome.UNDONE.value)
        )
        return True

    @write
    def mark_restored(self, connection: Connection, edit: LetterEdit, now: float) -> None:
        """Record that the original of an undone edit is in `jobs.dead` again."""
        statement = (
            update(letter_edits)
            .where(
                letter_edits.c.letter_id == edit.letter_id,
                letter_edits.c.redrives == edit.redrives,
            )
            .values(restored_at=now)
        )
        connection.execute(statement)

    # --- jobs whose letter nobody has -------------------------------------------------------

    @read
    def dead_jobs_without_letter(
        self, connection: Connection, *, after: str = "", limit: int = 500
    ) -> list[JobRecord]:
        """Return dead jobs of which the index has no letter, in the order of ids, from behind
        `after`."""
        has_letter = select(dead_letters.c.id).where(dead_letters.c.id == jobs.c.id).exists()
        query = (
            select(jobs)
            .where(jobs.c.state == State.DEAD, jobs.c.id > after, ~has_letter)
            .order_by(jobs.c.id)
            .limit(limit)
        )
        return [to_record(row) for row in connection.execute(query)]


def _add_leftovers(connection: Connection, leftovers: Sequence[LeftoverLetter]) -> None:
    if not leftovers:
        return
    insert = sql.insert_into(connection, leftover_letters)
    # The same redrive written twice counts once; an earlier one of the letter counts in addition.
    is_same = leftover_letters.c.redrives == insert.excluded.redrives
    earlier_copies = case((is_same, 0), else_=leftover_letters.c.copies)
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["letter_id"],
            set_={
                "redrives": insert.excluded.redrives,
                "copies": insert.excluded.copies + earlier_copies,
            },
        ),
        [asdict(each) for each in sorted(leftovers, key=lambda each: each.letter_id)],
    )


def _edit_columns(edit: LetterEdit) -> dict[str, Any]:
    return {
        "letter_id": edit.letter_id,
        "redrives": edit.redrives,
        "operation_id": edit.operation_id,
        "routing_key": edit.routing_key,
        "edited_by": edit.edited_by,
        "edited_at": edit.edited_at,
        "undone_at": edit.undone_at,
        "restored_at": edit.restored_at,
        "headers": to_json(edit.headers),
        "original": edit.original,
        "edited": edit.edited,
    }


def _to_edit(row: Row[Any]) -> LetterEdit:
    fields = {column.name: row._mapping[column.name] for column in letter_edits.c}
    return LetterEdit(**{**fields, "headers": json.loads(fields["headers"])})
