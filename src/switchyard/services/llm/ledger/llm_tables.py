"""The tables of calls to language models: servers, kept answers, batches, cost, and the files and
batches of the OpenAI-compatible API.

As in the engine's `tables`: a change here needs a migration.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, Table, Text, text

from switchyard.services.engine.ledger.sql.tables import metadata

llm_servers = Table(
    "llm_servers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("limit", Double, nullable=False),
    Column("paused_until", Double, nullable=False),
    Column("pause_reason", Text),
    Column("failures", Integer, nullable=False),
    Column("updated_at", Double),
    Column("pace", Text, nullable=False),
    Column("hot_waits_until", Double, nullable=False, server_default=text("0")),
    Column("learned", Text, nullable=False, server_default=text("''")),
    Column("learned_at", Double, nullable=False, server_default=text("0")),
)

llm_slots = Table(
    "llm_slots",
    metadata,
    Column("id", Text, primary_key=True),
    Column("server", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)
Index("ix_llm_slots_server", llm_slots.c.server, llm_slots.c.expires_at)

llm_minutes = Table(
    "llm_minutes",
    metadata,
    Column("at", Double, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("calls_allowed", Integer, nullable=False),
    Column("in_flight", Integer, nullable=False),
)

llm_pauses = Table(
    "llm_pauses",
    metadata,
    Column("server", Text, primary_key=True),
    Column("began_at", Double, primary_key=True),
    Column("until", Double, nullable=False),
    Column("reason", Text),
)

llm_answers = Table(
    "llm_answers",
    metadata,
    Column("key", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("created_at", Double),
    Column("used_at", Double),
    Column("holder", Text),
    Column("lease_until", Double),
)
Index("ix_llm_answers_used", llm_answers.c.used_at, llm_answers.c.key)

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
    Column("called_at", Double, nullable=False),  # when its job was last woken; 0: not yet
)


llm_calls = Table(
    "llm_calls",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Double, nullable=False),  # LOST_AFTER later, an open call counts as lost
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

openai_files = Table(
    "openai_files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("size", BigInteger),
)
Index("ix_openai_files_owner", openai_files.c.owner, openai_files.c.created_at)

openai_batches = Table(
    "openai_batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("input_file", Text, nullable=False),
    Column("content", Text, nullable=False),
)
Index("ix_openai_batches_owner", openai_batches.c.owner, openai_batches.c.created_at)
Index("ix_openai_batches_state", openai_batches.c.state, openai_batches.c.created_at)
