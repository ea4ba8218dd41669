"""The tables of schedules: the entries, and what became of each due time."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Index, Integer, Table, Text, text

from switchyard.services.engine.ledger.sql.tables import metadata

schedules = Table(
    "schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("cron", Text, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("routing_key", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("priority", Integer),
    Column("max_attempts", Integer),
    Column("jitter", Double, nullable=False),
    Column("grace", Double, nullable=False),
    Column("origin", Text, nullable=False),
    Column("remote", Boolean, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("paused_at", Double),
    Column("next_at", Double, nullable=False),
    Column("fire_at", Double, nullable=False),
)

schedule_firings = Table(
    "schedule_firings",
    metadata,
    # One row for each due time: whoever writes it has it, and nobody else fires it.
    Column("schedule", Text, primary_key=True),
    Column("due_at", Double, primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("job_id", Text),
    Column("noted_at", Double, nullable=False),
    Column("times", Integer, nullable=False),
    Column("note", Text),
)
_OPEN = text("outcome = 'due'")
Index(
    "ix_schedule_firings_due",
    schedule_firings.c.due_at,
    sqlite_where=_OPEN,
    postgresql_where=_OPEN,
)
