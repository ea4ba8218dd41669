"""The table of what catalogues of works have answered. `tables` says what holds for all."""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

catalogue_answers = Table(
    "catalogue_answers",
    metadata,
    Column("key", Text, primary_key=True),
    Column("created_at", Double),
    Column("holder", Text),
    Column("lease_until", Double),
    Column("answer", Text),
)
Index("ix_catalogue_answers_created", catalogue_answers.c.created_at)
