"""The tables of questions that go through a Batch API. As in `tables`: a change here needs a
migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

llm_batches = Table(
    "llm_batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("remote_id", Text),
    Column("questions", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("fenced_until", Double, nullable=False),
    Column("note", Text),
)

llm_batch_items = Table(
    "llm_batch_items",
    metadata,
    Column("key", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("batch_id", Text, index=True),
    Column("created_at", Double, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("call", Text, nullable=False),
    Column("question", Text, nullable=False),
)
Index(
    "ix_llm_batch_items_state",
    llm_batch_items.c.state,
    llm_batch_items.c.provider,
    llm_batch_items.c.created_at,
)

llm_batch_waits = Table(
    "llm_batch_waits",
    metadata,
    Column("key", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("called_at", Double, nullable=False),
)
