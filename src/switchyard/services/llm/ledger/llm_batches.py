"""Questions that are collected for a provider's Batch API, the batches that they are sent in, and
the jobs that wait for them. All times are the database's own.

A question is in one batch at a time, and a batch is in the ledger, with its questions chosen,
before the provider hears of it: a process that goes on after a crash knows what may have been
sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Update,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from switchyard.services.engine.ledger.sql.clock import latest_end
from switchyard.services.engine.ledger.sql.codec import clean
from switchyard.services.engine.ledger.sql.dialect import among, db_now, insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.records.retention import Removal
from switchyard.services.engine.records.states import FINISHED, State
from switchyard.services.llm.ledger.llm_tables import (
    llm_batch_items,
    llm_batch_waits,
    llm_batches,
)
from switchyard.services.llm.records.llm_batches import BatchItem, BatchState, ItemState, LlmBatch
from switchyard.services.llm.records.llm_spend import CallState, LlmCall, Requester

ENDED_STATES = (ItemState.ANSWERED.value, ItemState.LIVE.value)
WAKE_RETRY_INTERVAL = 600.0
"""Seconds after which a job that has not read its answer is woken again."""

items, waits, batches = llm_batch_items.c, llm_batch_waits.c, llm_batches.c


class LlmBatchRepository(Repository):
    """Questions for Batch APIs, their batches, and the jobs that wait. All methods raise
    LedgerUnavailable when the database is unreachable."""

    @write
    def record_llm_wait(self, connection: Connection, key: str, job_id: str) -> ItemState | None:
        """Return the state of a question; None if it was not collected. Record that the job waits
        for it, unless it is answered or to be asked live."""
        state = connection.scalar(select(items.state).where(items.key == key))
        if state is not None and state not in ENDED_STATES:
            _add_wait(connection, key, job_id)
        return None if state is None else ItemState(state)

    @write
    def collect_llm_question(
        self, connection: Connection, item: BatchItem, job_id: str, *, size: int
    ) -> None:
        """Keep a question for the next batch, and the job that waits for it."""
        values = {
            "key": item.key,
            "state": item.state.value,
            "provider": item.provider,
            "size": size,
            "call": json.dumps(asdict(item.call), ensure_ascii=False),
            "question": json.dumps(dict(item.question), ensure_ascii=False),
        }
        connection.execute(
            insert_into(connection, llm_batch_items)
            .values(**values, created_at=db_now(connection))
            .on_conflict_do_nothing()
        )
        _add_wait(connection, item.key, job_id)

    @write
    def end_llm_wait(self, connection: Connection, key: str, job_id: str) -> bool:
        """Delete a job's wait for a question; if the question is done and no other job waits for
        it, delete it, too. Returns whether a batch answered the question, and this job was the
        first to ask it."""
        condition = (waits.key == key) & (waits.job_id == job_id)
        connection.execute(delete(llm_batch_waits).where(condition))
        has_ended = (items.key == key) & items.state.in_(ENDED_STATES)
        row = connection.execute(select(items.state, items.call).where(has_ended)).one_or_none()
        if row is None:
            return False
        has_other_waits = exists().where(waits.key == key)
        connection.execute(delete(llm_batch_items).where(has_ended, ~has_other_waits))
        is_first = json.loads(row.call)["asked_by"]["job_id"] == job_id
        return bool(is_first and row.state == ItemState.ANSWERED)

    @read
    def unfit_llm_questions(
        self,
        connection: Connection,
        providers: Sequence[str],
        *,
        expires_within: float,
        limit: int = 200,
    ) -> list[BatchItem]:
        """List collected questions that must not go into a batch: those for a provider that is not
        in `providers`, and those of a job that expires within `expires_within` seconds."""
        expires_soon = exists().where(
            waits.key == items.key,
            waits.job_id == jobs.c.id,
            jobs.c.state.not_in([each.value for each in FINISHED]),
            jobs.c.expires_at < db_now(connection) + expires_within,
        )
        query = (
            select(llm_batch_items)
            .where(
                items.state == ItemState.COLLECTED,
                or_(items.provider.not_in(providers), expires_soon),
            )
            .limit(limit)
        )
        return [_item_of(row) for row in connection.execute(query)]

    async def release_llm_question(self, key: str) -> bool:
        """Let the jobs of a collected question ask live. Returns False if the question is in a
        batch by now."""
        condition = (items.key == key) & (items.state == ItemState.COLLECTED)
        return await self._execute_update(
            update(llm_batch_items).where(condition).values(state=ItemState.LIVE.value)
        )

    # --- batches ------------------------------------------------------------------------------

    @write
    def open_llm_batch(
        self,
        connection: Connection,
        batch_id: str,
        provider: str,
        *,
        max_wait: float,
        max_questions: int,
        max_bytes: int,
    ) -> LlmBatch | None:
        """Open a batch with the questions collected for a provider: up to `max_questions`, with
        `max_bytes` in all. Returns None while there are fewer than `max_questions` and the oldest
        has waited for less than `max_wait` seconds. Questions whose jobs have all ended are left
        out."""
        now = db_now(connection)
        has_open_job = exists().where(
            waits.key == items.key,
            waits.job_id == jobs.c.id,
            jobs.c.state.not_in([each.value for each in FINISHED]),
        )
        condition = and_(
            items.state == ItemState.COLLECTED, items.provider == provider, has_open_job
        )
        query = (
            select(items.key, items.size, items.created_at)
            .where(condition)
            .order_by(items.created_at, items.key)
            .limit(max_questions)
        )
        rows = connection.execute(query).all()
        if not rows or (len(rows) < max_questions and rows[0].created_at > now - max_wait):
            return None
        keys: list[str] = []
        size = 0
        for row in rows:
            size += row.size
            if keys and size > max_bytes:
                break
            keys.append(row.key)
        values = {
            "id": batch_id,
            "provider": provider,
            "state": BatchState.SENDING.value,
            "questions": len(keys),
            "created_at": now,
            "fenced_until": 0.0,
        }
        connection.execute(insert_into(connection, llm_batches).values(**values))
        sent_rows = connection.execute(
            update(llm_batch_items)
            .where(among(connection, items.key, keys), items.state == ItemState.COLLECTED)
            .values(state=ItemState.SENT.value, batch_id=batch_id)
            .returning(items.key)
        ).all()
        condition = batches.id == batch_id
        if not sent_rows:  # another process was faster
            connection.execute(delete(llm_batches).where(condition))
            return None
        connection.execute(update(llm_batches).where(condition).values(questions=len(sent_rows)))
        return _batch_of(connection.execute(select(llm_batches).where(condition)).one())

    @read
    def llm_batches(self, connection: Connection) -> list[LlmBatch]:
        """List the batches that are not done, the oldest first."""
        query = (
            select(llm_batches)
            .where(batches.state != BatchState.DONE)
            .order_by(batches.created_at, batches.id)
        )
        return [_batch_of(row) for row in connection.execute(query)]

    @write
    def fence_llm_batch(self, connection: Connection, batch_id: str, seconds: float) -> bool:
        """Keep other processes from sending a batch for `seconds`. Returns False if another process
        keeps this one from it, or the batch is sent."""
        now = db_now(connection)
        is_free = (batches.id == batch_id) & (batches.state == BatchState.SENDING)
        until = batches.fenced_until
        is_free &= (until <= now) | (until > latest_end(now, seconds))
        fence = update(llm_batches).where(is_free).values(fenced_until=now + seconds)
        return connection.execute(fence).rowcount > 0

    async def update_llm_batch_state(
        self,
        batch: LlmBatch,
        *,
        state: BatchState,
        remote_id: str | None = None,
        note: str | None = None,
    ) -> bool:
        """Record the new state of a batch. Returns False, and changes nothing, if the batch is no
        longer in the state in which it was read: another process has advanced it while this one
        was frozen."""
        values: dict[str, Any] = {"state": state.value, "note": clean(note)}
        if remote_id is not None:
            values["remote_id"] = remote_id
        condition = (batches.id == batch.id) & (batches.state == batch.state.value)
        return await self._execute_update(update(llm_batches).where(condition).values(values))

    @read
    def open_llm_questions(self, connection: Connection, batch: LlmBatch) -> dict[str, BatchItem]:
        """Return a batch's questions that are not done, by key; none if the batch is no longer in
        the state in which it was read."""
        query = select(llm_batch_items).where(_is_open_in(batch)).order_by(items.key)
        return {row.key: _item_of(row) for row in connection.execute(query)}

    async def finish_llm_question(self, key: str, batch: LlmBatch, state: ItemState) -> bool:
        """Record that one of a batch's questions is done: answered, or to be asked live. Returns
        False if it was done before, or the batch is no longer in the state in which it was read."""
        condition = (items.key == key) & _is_open_in(batch)
        return await self._execute_update(
            update(llm_batch_items).where(condition).values(state=state.value)
        )

    @write
    def _execute_update(self, connection: Connection, statement: Update) -> bool:
        return connection.execute(statement).rowcount > 0

    # --- waiting jobs, old records ------------------------------------------------------------

    @write
    def claim_jobs_to_wake(self, connection: Connection, limit: int = 200) -> list[str]:
        """Return the ids of retrying jobs whose question is done, for the caller to publish them.
        Each is returned again after WAKE_RETRY_INTERVAL, until its wait has ended."""
        now = db_now(connection)
        due = (
            select(waits.key, waits.job_id)
            .join(llm_batch_items, items.key == waits.key)
            .join(jobs, jobs.c.id == waits.job_id)
            .where(
                items.state.in_(ENDED_STATES),
                jobs.c.state == State.RETRYING,
                waits.called_at <= now - WAKE_RETRY_INTERVAL,
            )
            .order_by(waits.called_at)
            .limit(limit)
        )
        rows = connection.execute(due).all()
        for row in rows:
            condition = (waits.key == row.key) & (waits.job_id == row.job_id)
            connection.execute(update(llm_batch_waits).where(condition).values(called_at=now))
        return [row.job_id for row in rows]

    @write
    def delete_old_llm_batches(
        self, connection: Connection, *, max_age: float, limit: int
    ) -> tuple[list[LlmCall], Removal]:
        """Delete batches that are done and questions that are in no batch, once they are `max_age`
        seconds old, and waits without a question; up to `limit` of each. Returns the calls of
        questions that were never sent: their reservations are to be ended.
        """
        watch = Stopwatch(connection)
        min_created_at = db_now(connection) - max_age
        removed: Counter[str] = Counter()
        is_unwanted = (items.created_at < min_created_at) & (items.state != ItemState.SENT)
        unwanted_keys = select(items.key).where(is_unwanted).limit(limit)
        deleted = connection.execute(
            delete(llm_batch_items)
            .where(items.key.in_(unwanted_keys), is_unwanted)
            .returning(items.state, items.call)
        ).all()
        removed["llm_batch_items"] = len(deleted)
        for key, condition in (
            (waits.key, ~exists().where(items.key == waits.key)),
            (
                batches.id,
                (batches.created_at < min_created_at) & (batches.state == BatchState.DONE),
            ),
        ):
            keys = select(key).where(condition).limit(limit)
            removal = connection.execute(delete(key.table).where(key.in_(keys), condition))
            removed[key.table.name] = removal.rowcount
        is_complete = all(number < limit for number in removed.values())
        calls = [_call_of(row.call) for row in deleted if row.state == ItemState.COLLECTED]
        return calls, Removal(+removed, is_complete, watch.seconds())

    @read
    def llm_batch_counts(self, connection: Connection) -> Mapping[tuple[str, str], int]:
        """Count questions by provider and state."""
        query = select(items.provider, items.state, func.count()).group_by(
            items.provider, items.state
        )
        return {(row[0], row[1]): int(row[2]) for row in connection.execute(query)}


def _add_wait(connection: Connection, key: str, job_id: str) -> None:
    connection.execute(
        insert_into(connection, llm_batch_waits)
        .values(key=key, job_id=job_id, called_at=0.0)
        .on_conflict_do_nothing()
    )


def _is_open_in(batch: LlmBatch) -> ColumnElement[bool]:
    """Return the condition for questions of a batch that are not done, while the batch is in the
    state in which it was read."""
    is_in_state_read = exists().where(batches.id == batch.id, batches.state == batch.state.value)
    return and_(items.batch_id == batch.id, items.state == ItemState.SENT, is_in_state_read)


def _item_of(row: Row[Any]) -> BatchItem:
    return BatchItem(
        row.key, ItemState(row.state), row.provider, json.loads(row.question), _call_of(row.call)
    )


def _call_of(text: str) -> LlmCall:
    values = json.loads(text)
    values["asked_by"] = Requester(**values["asked_by"])
    return LlmCall(**values | {"state": CallState(values["state"])})


def _batch_of(row: Row[Any]) -> LlmBatch:
    return LlmBatch(
        row.id,
        row.provider,
        BatchState(row.state),
        row.remote_id,
        row.questions,
        row.created_at,
        row.note,
    )
