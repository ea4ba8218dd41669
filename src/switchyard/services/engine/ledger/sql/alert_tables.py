"""The table of what was told to people."""

from __future__ import annotations

from sqlalchemy import Column, Double, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

alerts = Table(
    "alerts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("told_at", Double, nullable=False),
)
