"""The tables of what language models' calls cost. As in `tables`: a change here needs a
migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, Table, Text, text

from switchyard.services.engine.ledger.sql.tables import metadata

llm_calls = Table(
    "llm_calls",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Double, nullable=False),
    Column("day", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("batch", Boolean, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost", Double),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("job_type", Text),
    Column("source", Text),
    Column("job_id", Text),
    Column("document_id", Text),
    Column("backfill_id", Text),
)
Index("ix_llm_calls_day", llm_calls.c.day)
Index(
    "ix_llm_calls_open",
    llm_calls.c.at,
    sqlite_where=text("state = 'open'"),
    postgresql_where=text("state = 'open'"),
)

llm_accounts = Table(
    "llm_accounts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("day", Text),
    Column("calls", Integer, nullable=False),
    Column("saved_calls", Integer, nullable=False),
    Column("unpriced_calls", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("spent", Double, nullable=False),
    Column("reserved", Double, nullable=False),
    Column("saved", Double, nullable=False),
    Column("short_of", Double),
)
