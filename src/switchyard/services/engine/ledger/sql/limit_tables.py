"""The tables of named limits. As in `tables`: a change here needs a migration."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    literal_column,
)

from switchyard.services.engine.ledger.sql.tables import metadata

limits = Table(
    "limits",
    metadata,
    Column("name", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("concurrency", Integer),
    Column("per_minute", Integer),
    Column("tokens_per_minute", BigInteger),
    Column("updated_at", Double, nullable=False),
    Column("bins", Text, nullable=False),
)

limit_holds = Table(
    "limit_holds",
    metadata,
    Column("hold", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("job_id", Text, nullable=False, index=True),
    Column("holder", Text, nullable=False, index=True),
    Column("second", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
)
Index("ix_limit_holds_limit", limit_holds.c.name, limit_holds.c.key, limit_holds.c.expires_at)

limit_waits = Table(
    "limit_waits",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("queue", Text, nullable=False, index=True),
    Column("tokens", BigInteger, nullable=False),
    Column("since", Double, nullable=False),
    Column("times", Integer, nullable=False),
    Column("back_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
    Column("calls", Integer, nullable=False),
    Column("called_until", Double, nullable=False),
    Column("call_after", Double, nullable=False),
    Column("body", LargeBinary),
)
Index("ix_limit_waits_limit", limit_waits.c.name, limit_waits.c.key, limit_waits.c.since)
WAS_WOKEN = limit_waits.c.called_until > literal_column("0")
"""Those few of many; said with it, the index is used."""
Index(
    "ix_limit_waits_called",
    limit_waits.c.name,
    limit_waits.c.key,
    limit_waits.c.called_until,
    sqlite_where=WAS_WOKEN,
    postgresql_where=WAS_WOKEN,
)
