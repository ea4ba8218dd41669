"""The pauses that are in force, as a transaction sees them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, text

from switchyard.services.engine.ledger.sql.dialect import now_sql_of
from switchyard.services.engine.records.pauses import PauseRecord, PauseScope


def pauses_in_force(dialect: str) -> str:
    """Return the FROM and WHERE of the pauses that are in force, as SQL."""
    return (
        "FROM pauses WHERE ended_at IS NULL "
        f"AND (ends_at IS NULL OR ends_at > {now_sql_of(dialect)})"
    )


def load_pauses(connection: Connection) -> list[PauseRecord]:
    """Return the pauses that are in force, the oldest first."""
    query = text(
        "SELECT id, scope, target, reason, created_by, created_at, ends_at, ended_at, ended_by "
        f"{pauses_in_force(connection.dialect.name)} ORDER BY created_at, id"
    )
    return [to_pause(row) for row in connection.execute(query)]


def to_pause(row: Row[Any]) -> PauseRecord:
    """Return the pause of a row."""
    columns = row._mapping
    return PauseRecord(
        id=columns["id"],
        scope=PauseScope(columns["scope"]),
        target=columns["target"],
        reason=columns["reason"],
        created_by=columns["created_by"],
        created_at=columns["created_at"],
        ends_at=columns["ends_at"],
        ended_at=columns["ended_at"],
        ended_by=columns["ended_by"],
    )
