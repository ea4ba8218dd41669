"""Record, minute by minute, how many calls each model server was allowed, and its pauses. Both are
kept for some days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, delete, select, text

from switchyard.services.engine.ledger.lane_history import KEPT_FOR
from switchyard.services.engine.ledger.sql.dialect import insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.llm.ledger.llm_tables import llm_minutes, llm_pauses
from switchyard.services.llm.records.llm_servers import LlmMinute, LlmPause, LlmServerState

MAX_PAUSES = 100


class LlmHistory(Repository):
    """The minutes and pauses of each server. All methods raise LedgerUnavailable when the
    database is unreachable."""

    @write
    def add_minute(self, connection: Connection, minutes: Sequence[LlmMinute], now: float) -> None:
        """Record servers at the end of a minute, and delete minutes and pauses that are too old. A
        minute that is recorded already stays as it is."""
        rows = [asdict(each) for each in minutes]
        if rows:
            statement = insert_into(connection, llm_minutes).values(rows)
            connection.execute(statement.on_conflict_do_nothing())
        connection.execute(delete(llm_minutes).where(llm_minutes.c.at < now - KEPT_FOR))
        connection.execute(delete(llm_pauses).where(llm_pauses.c.until < now - KEPT_FOR))

    @read
    def minutes(self, connection: Connection, since: float) -> list[LlmMinute]:
        """List the minutes from `since`, in seconds since the epoch, the earliest first."""
        query = select(llm_minutes).where(llm_minutes.c.at >= since)
        rows = connection.execute(query.order_by(llm_minutes.c.at, llm_minutes.c.server))
        return [LlmMinute(**row) for row in rows.mappings()]

    @read
    def pauses(self, connection: Connection, since: float) -> list[LlmPause]:
        """List the pauses that had not ended at `since`, in seconds since the epoch, the latest
        first, up to MAX_PAUSES."""
        query = (
            select(llm_pauses)
            .where(llm_pauses.c.until > since)
            .order_by(llm_pauses.c.began_at.desc(), llm_pauses.c.server)
            .limit(MAX_PAUSES)
        )
        return [LlmPause(**row) for row in connection.execute(query).mappings()]


_CHANGE_END = text(
    "UPDATE llm_pauses SET until = :until, reason = COALESCE(:reason, reason) "
    "WHERE server = :server AND until > :now"
)


def record_pause_change(
    connection: Connection,
    server: str,
    before: LlmServerState,
    after: LlmServerState,
    now: float,
) -> None:
    """Record a change of a server's pause: when it began, until when and why. The caller has locked
    the server's row."""
    if after.paused_until == before.paused_until:
        return
    if before.paused_until > now:
        pause_values = {"server": server, "now": now, "until": max(now, after.paused_until)}
        reason = after.pause_reason if after.paused_until > now else None
        if connection.execute(_CHANGE_END, {**pause_values, "reason": reason}).rowcount:
            return
    if after.paused_until > now:
        new_pause = LlmPause(server, now, after.paused_until, after.pause_reason)
        statement = insert_into(connection, llm_pauses).values(**asdict(new_pause))
        connection.execute(statement.on_conflict_do_nothing())
