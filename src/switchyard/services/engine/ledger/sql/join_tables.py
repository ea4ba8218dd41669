"""The table of joins; see `services.engine.ledger.sql.joins`."""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, Integer, Table, Text, text

from switchyard.services.engine.ledger.sql.tables import metadata

joins = Table(
    "joins",
    metadata,
    Column("id", Text, primary_key=True),
    Column("when_dead", Text, nullable=False),
    Column("held", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("open_jobs", Integer, nullable=False),
    Column("dead", Integer, nullable=False),
    Column("cancelled", Integer, nullable=False),
    Column("made_at", Double, nullable=False),
    Column("fulfilled_at", Double),
    Column("again", Integer, nullable=False, server_default=text("0")),
)
# For the doctor: those that wait, and few do.
Index(
    "ix_joins_waiting",
    joins.c.open_jobs,
    sqlite_where=text("fulfilled_at IS NULL"),
    postgresql_where=text("fulfilled_at IS NULL"),
)
