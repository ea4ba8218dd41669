"""Calls under way to language models' servers, and what the fleet knows of each server.

A slot is the right to one call. It has a short life and is renewed by its holder, so that the slots
of a killed worker come back by themselves. All times are the database's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, select, text, update

from switchyard.services.common.durations import DAY
from switchyard.services.engine.ledger.sql.clock import latest_end
from switchyard.services.engine.ledger.sql.dialect import db_now, insert_into, is_sqlite, now_sql
from switchyard.services.engine.ledger.sql.repository import Repository, read, write, write_soon
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.records.states import State
from switchyard.services.llm.ledger.llm_answers import claim_answer
from switchyard.services.llm.ledger.llm_history import record_pause_change
from switchyard.services.llm.ledger.llm_spend import reserve_call, settle_call
from switchyard.services.llm.ledger.llm_tables import llm_servers, llm_slots
from switchyard.services.llm.records.llm_servers import (
    MAX_PAUSE,
    PAUSE_SPREAD,
    SLOT_TTL,
    WAIT_FOR_SERVER,
    AnswerClaimRequest,
    CacheHit,
    LeaseHeld,
    LlmServerReport,
    LlmServerState,
    PauseEnded,
    ServerPaused,
    SlotAcquired,
    SlotAnswer,
    SlotsFull,
    WaitingOutsideQueues,
)
from switchyard.services.llm.records.llm_spend import LlmCall, NoBudgetLeft, Reservation

MAX_COUNTED = 20_000
"""Highest number of delayed jobs that are counted; a larger one is reported as
this."""

HOT_WAIT_TTL = 0.5
"""Seconds for which a hot call that found no free slot keeps calls of other lanes out. This is
longer than the interval of its tries, so that it keeps them out for as long as it waits."""

LEARNED_TTL = 7 * DAY
"""Seconds after which processes find out again which parameters a server takes: the server may have
been upgraded by then."""

_IS_DELAYED = (jobs.c.state == State.RETRYING, jobs.c.error_type.in_(WAIT_FOR_SERVER))
"""Conditions for jobs that wait in a delay for a server."""

Change = Callable[[LlmServerState, int, float], LlmServerState]
"""Computes a server's next state from the present one, the number of calls under way (with the call
that ends) and the time."""


class LlmSlotRepository(Repository):
    """Slots of calls under way, and the state of each server. All methods raise LedgerUnavailable
    when the database is unreachable."""

    @write
    def take_llm_slot(
        self,
        connection: Connection,
        server: str,
        slot: str,
        holder: str,
        *,
        ttl: float,
        is_hot: bool,
        first_limit: float,
        max_limit: int,
        reservation: Reservation | None = None,
        claim: AnswerClaimRequest | None = None,
    ) -> SlotAnswer | NoBudgetLeft | CacheHit | LeaseHeld:
        """Take a slot for `ttl` seconds, if one is free, and reserve what its call may cost. With
        `claim`, the answer is claimed first, and kept even if no slot is free; CacheHit and
        LeaseHeld mean that the call is not to be made. The last free slot is kept for hot calls,
        and while a hot call waits, in whichever process, others get none. `first_limit` is the
        limit of a server that was never called; `max_limit` is the settings' maximum."""
        if claim is not None:
            answer_claim = claim_answer(connection, claim)
            if isinstance(answer_claim, CacheHit | LeaseHeld):
                return answer_claim
        state = _lock_server(connection, server, first_limit)
        slots = _count_slots(connection, server)
        now, in_flight = slots.now, slots.live
        state = _state_at(state, now)
        if state.paused_until > now:
            return ServerPaused(state.paused_until - now, state.pause_reason or "paused")
        if slots.live < slots.total:
            connection.execute(
                delete(llm_slots).where(llm_slots.c.server == server, ~_is_live(now))
            )
        limit = state.calls(max_limit)
        is_kept_out = not is_hot and state.hot_waits_until > now
        if is_kept_out or in_flight >= max(1, limit if is_hot else limit - 1):
            if is_hot and state.hot_waits_until < now + HOT_WAIT_TTL / 2:
                _record_hot_wait(connection, server, now + HOT_WAIT_TTL)
            return SlotsFull(in_flight, limit)
        if reservation is not None and reservation.is_needed:
            per_day = reservation.per_day
            refusal = reserve_call(connection, reservation.call, now, per_day=per_day)
            if isinstance(refusal, NoBudgetLeft):
                return refusal
        values = {"id": slot, "server": server, "holder": holder, "expires_at": now + ttl}
        connection.execute(_INSERT_SLOT, values)
        if is_hot and state.hot_waits_until:
            _record_hot_wait(connection, server, 0.0)  # other waiting hot calls set it again
        is_known = now - state.learned_at < LEARNED_TTL
        return SlotAcquired(state.learned if is_known else "")

    @write
    def end_llm_slot(
        self,
        connection: Connection,
        server: str,
        slot: str,
        change: Change | None,
        calls: Sequence[LlmCall] = (),
    ) -> None:
        """Give a slot back, store the server's next state, which `change` computes, and record the
        cost of `calls` as `settle_llm_call` does."""
        _end_slot(connection, server, slot, change, calls)

    # The answer must not be lost because of a failure here: the slot runs out by itself, and the
    # reservation counts as spent in two hours.
    @write_soon("model slot not released, nor call cost recorded")
    def end_llm_slot_soon(
        self,
        connection: Connection,
        server: str,
        slot: str,
        change: Change,
        calls: Sequence[LlmCall],
    ) -> None:
        """Do what `end_llm_slot` does, in the transaction of the next change of a job, such as the
        end of the job that made the call: either both are recorded, or none is."""
        _end_slot(connection, server, slot, change, calls)

    @write
    def renew_llm_slots(
        self, connection: Connection, held: Mapping[str, str], holder: str, ttl: float
    ) -> set[str]:
        """Hold slots (`held`: server by slot) for `ttl` seconds more. Returns those that had run
        out and were inserted again, even beyond the limit: the calls of a process that was frozen
        are still under way, so others get a slot only when the number is below the limit again."""
        until = db_now(connection) + ttl
        renewed = connection.execute(
            update(llm_slots)
            .where(llm_slots.c.id.in_(held))
            .values(expires_at=until)
            .returning(llm_slots.c.id)
        )
        lost_slots = held.keys() - set(renewed.scalars())
        if lost_slots:
            values = [
                {"id": slot, "server": held[slot], "holder": holder, "expires_at": until}
                for slot in sorted(lost_slots)
            ]
            connection.execute(insert_into(connection, llm_slots).values(values))
        return lost_slots

    @write
    def release_llm_slots(self, connection: Connection, holder: str) -> None:
        """Give back all slots of a holder: its process ends."""
        statement = delete(llm_slots).where(llm_slots.c.holder == holder)
        connection.execute(statement)

    @read
    def llm_servers(self, connection: Connection) -> list[LlmServerReport]:
        """List the servers that were called, by name."""
        now = db_now(connection)
        counts = select(llm_slots.c.server, func.count()).where(_is_live(now)).group_by("server")
        under_way = {row[0]: int(row[1]) for row in connection.execute(counts)}
        reports = []
        for row in connection.execute(select(llm_servers).order_by(llm_servers.c.name)):
            state = _state_at(_state_of(row), now)
            pause = max(0.0, state.paused_until - now)
            reports.append(LlmServerReport(row.name, state, under_way.get(row.name, 0), pause))
        return reports

    @write
    def end_llm_pause(self, connection: Connection, server: str) -> PauseEnded | None:
        """End a server's pause. Jobs that wait in a delay for any server become pending, so that
        the scheduler publishes them. The delayed copy of each is still on the broker; the second of
        the two copies to arrive is dropped. Jobs that need another server begin to wait again.
        Returns None if no server of this name was called."""
        server_query = select(llm_servers.c.name).where(llm_servers.c.name == server)
        if connection.scalar(server_query) is None:
            return None
        state, now = _lock_server(connection, server, 1), db_now(connection)
        if _state_at(state, now).paused_until <= now:
            return PauseEnded(0.0, 0)
        resumed_state = replace(state, paused_until=0.0)
        _store(connection, server, resumed_state, now)
        record_pause_change(connection, server, state, resumed_state, now)
        wake_jobs = update(jobs).where(*_IS_DELAYED).values(state=State.PENDING, claim_id=None)
        return PauseEnded(state.paused_until - now, connection.execute(wake_jobs).rowcount)

    @read
    def waiting_outside_queues(self, connection: Connection, worker: str) -> WaitingOutsideQueues:
        """Count the jobs of a kind of worker that wait for servers outside of its queues. Calls by
        other kinds of workers are counted as calls by this one: where there are any, `in_workers`
        is too low."""
        is_of_kind = jobs.c.worker == worker
        running = select(func.count()).where(is_of_kind, jobs.c.state == State.RUNNING)
        calls = select(func.count()).where(_is_live(db_now(connection)))
        delayed = select(jobs.c.id).where(is_of_kind, *_IS_DELAYED).limit(MAX_COUNTED).subquery()
        waiting_in_workers = (connection.scalar(running) or 0) - (connection.scalar(calls) or 0)
        number_delayed = connection.scalar(select(func.count()).select_from(delayed)) or 0
        return WaitingOutsideQueues(max(0, waiting_in_workers), number_delayed)

    @read
    def waiting_for_servers(
        self, connection: Connection, servers: Collection[str], worker: str, *, min_pause: float
    ) -> dict[str, int]:
        """Count by lane the jobs of a kind of worker that wait in a delay for servers. Returns {}
        unless each of `servers` stays paused for more than `min_pause` seconds: the jobs come back
        soon if one does not."""
        now = db_now(connection)
        paused_count = select(func.count()).where(
            llm_servers.c.name.in_(servers),
            llm_servers.c.paused_until > now + min_pause,
            llm_servers.c.paused_until <= latest_end(now, MAX_PAUSE * PAUSE_SPREAD),
        )
        if not servers or connection.scalar(paused_count) != len(servers):
            return {}
        delayed_jobs = (
            select(jobs.c.lane)
            .where(jobs.c.worker == worker, *_IS_DELAYED)
            .limit(MAX_COUNTED)
            .subquery()
        )
        counts = select(delayed_jobs.c.lane, func.count()).group_by(delayed_jobs.c.lane)
        return {row[0]: int(row[1]) for row in connection.execute(counts)}


# Statements that run for every call are constant text: building an expression takes longer than
# running it.
_INSERT_SLOT = text(
    "INSERT INTO llm_slots (id, server, holder, expires_at) "
    "VALUES (:id, :server, :holder, :expires_at)"
)
_DELETE_SLOT = text("DELETE FROM llm_slots WHERE id = :id")
_STORE_SERVER = text(
    'UPDATE llm_servers SET "limit" = :limit, pace = :pace, paused_until = :paused_until, '
    "pause_reason = :pause_reason, failures = :failures, learned = :learned, "
    "learned_at = :learned_at, updated_at = :now WHERE name = :name"
)
_RECORD_HOT_WAIT = text("UPDATE llm_servers SET hot_waits_until = :until WHERE name = :name")


def _end_slot(
    connection: Connection,
    server: str,
    slot: str,
    change: Change | None,
    calls: Sequence[LlmCall],
) -> None:
    if change is not None:
        state = _lock_server(connection, server, 1)
        slots = _count_slots(connection, server)
        now = slots.now
        next_state = change(_state_at(state, now), slots.total, now)
        _store(connection, server, next_state, now)
        record_pause_change(connection, server, state, next_state, now)
    elif calls:
        now = db_now(connection)
    connection.execute(_DELETE_SLOT, {"id": slot})
    for call in calls:
        settle_call(connection, call, now)


def _count_slots(connection: Connection, server: str) -> Row[Any]:
    """Count a server's slots: all, and those that have not run out at the time `now`. The caller
    has locked the server's row, so no slot is taken meanwhile."""
    statement = text(
        "SELECT clock.now, count(id) AS total, "
        "count(CASE WHEN expires_at > clock.now AND expires_at <= clock.now + :max_ttl THEN 1 END) "
        "AS live "
        f"FROM (SELECT {now_sql(connection)} AS now) AS clock "
        "LEFT JOIN llm_slots ON server = :server GROUP BY clock.now"
    )
    values = {"server": server, "max_ttl": latest_end(0.0, SLOT_TTL)}
    return connection.execute(statement, values).one()


def _is_live(now: float) -> ColumnElement[bool]:
    """Return the condition for slots that have not run out, the same as in `_count_slots`."""
    until = llm_slots.c.expires_at
    return (until > now) & (until <= latest_end(now, SLOT_TTL))


def _lock_server(connection: Connection, server: str, first_limit: float) -> LlmServerState:
    """Lock the server's row until the end of the transaction, and return its state."""
    lock = "" if is_sqlite(connection) else " FOR UPDATE"
    query = text(
        'SELECT "limit", pace, paused_until, pause_reason, failures, hot_waits_until, learned, '
        f"learned_at FROM llm_servers WHERE name = :name{lock}"
    )
    row = connection.execute(query, {"name": server}).one_or_none()
    if row is None:
        first_row = {
            "name": server,
            "limit": first_limit,
            "pace": "{}",
            "paused_until": 0.0,
            "failures": 0,
        }
        connection.execute(
            insert_into(connection, llm_servers).values(**first_row).on_conflict_do_nothing()
        )
        row = connection.execute(query, {"name": server}).one()
    return _state_of(row)


def _state_of(row: Row[Any]) -> LlmServerState:
    return LlmServerState(
        row.limit,
        json.loads(row.pace),
        row.paused_until,
        row.pause_reason,
        row.failures,
        row.hot_waits_until,
        row.learned,
        row.learned_at,
    )


def _record_hot_wait(connection: Connection, server: str, until: float) -> None:
    connection.execute(_RECORD_HOT_WAIT, {"name": server, "until": until})


def _state_at(state: LlmServerState, now: float) -> LlmServerState:
    """Return the state without a pause or a wait of a hot call whose end is too far ahead: such an
    end was written before the clock was set back."""
    if state.hot_waits_until > latest_end(now, HOT_WAIT_TTL):
        state = replace(state, hot_waits_until=0.0)
    if state.paused_until > latest_end(now, MAX_PAUSE * PAUSE_SPREAD):
        state = replace(state, paused_until=0.0, pause_reason=None)
    return state


def _store(connection: Connection, server: str, state: LlmServerState, now: float) -> None:
    values = {
        "name": server,
        "limit": state.limit,
        "pace": json.dumps(dict(state.pace)),
        "paused_until": state.paused_until,
        "pause_reason": state.pause_reason,
        "failures": state.failures,
        "learned": state.learned,
        "learned_at": state.learned_at,
        "now": now,
    }
    connection.execute(_STORE_SERVER, values)
