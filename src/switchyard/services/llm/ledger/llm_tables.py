"""The tables of calls to language models: servers, kept answers, batches, cost, and the files and
batches of the OpenAI-compatible API.

As in the engine's `tables`: a change here needs a migration.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, Table, Text, text

from switchyard.services.engine.ledger.sql.tables import metadata

# State of a model server that all processes share. Record: `LlmServerState`.
llm_servers = Table(
    "llm_servers",
    metadata,
    Column("name", Text, primary_key=True),
    # Calls that it may get at once. `pace`: the state of the policy that chooses this number,
    # JSON.
    Column("limit", Double, nullable=False),
    Column("paused_until", Double, nullable=False),
    Column("pause_reason", Text),
    # Calls in a row that it did not answer.
    Column("failures", Integer, nullable=False),
    Column("updated_at", Double),
    Column("pace", Text, nullable=False),
    # Until when a hot call is known to wait for a slot; only waiting hot calls write it.
    Column("hot_waits_until", Double, nullable=False, server_default=text("0")),
    # Which parameters it takes, learned from its refusals (`services.llm.parameters`), JSON.
    Column("learned", Text, nullable=False, server_default=text("''")),
    Column("learned_at", Double, nullable=False, server_default=text("0")),
)

# Calls under way, each with the process that makes it.
llm_slots = Table(
    "llm_slots",
    metadata,
    Column("id", Text, primary_key=True),
    Column("server", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)
Index("ix_llm_slots_server", llm_slots.c.server, llm_slots.c.expires_at)

# Record: `LlmMinute`.
llm_minutes = Table(
    "llm_minutes",
    metadata,
    # End of the minute.
    Column("at", Double, primary_key=True),
    Column("server", Text, primary_key=True),
    # Calls that it was allowed at once, and calls that it had, at that time.
    Column("calls_allowed", Integer, nullable=False),
    Column("in_flight", Integer, nullable=False),
)

# Record: `LlmPause`.
llm_pauses = Table(
    "llm_pauses",
    metadata,
    Column("server", Text, primary_key=True),
    Column("began_at", Double, primary_key=True),
    # When it ended, or will.
    Column("until", Double, nullable=False),
    Column("reason", Text),
)

# Stored answers, and claims to ask a question.
llm_answers = Table(
    "llm_answers",
    metadata,
    Column("key", Text, primary_key=True),
    # Bytes of the answer, which is a file in the storage.
    Column("size", BigInteger, nullable=False),
    # When the answer was stored; NULL while the question is being asked.
    Column("created_at", Double),
    Column("used_at", Double),
    # The process that asks the question, and until when no other may.
    Column("holder", Text),
    Column("lease_until", Double),
)
Index("ix_llm_answers_used", llm_answers.c.used_at, llm_answers.c.key)

# Questions that are sent to a provider's Batch API together. Record: `LlmBatch`.
llm_batches = Table(
    "llm_batches",
    metadata,
    Column("id", Text, primary_key=True),
    # The server's name.
    Column("provider", Text, nullable=False),
    # A `BatchState`.
    Column("state", Text, nullable=False),
    # The provider's own id; NULL until it is known.
    Column("remote_id", Text),
    # Number of questions.
    Column("questions", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    # Until when one process works on it, and no other may.
    Column("fenced_until", Double, nullable=False),
    # The provider's status, or the last error.
    Column("note", Text),
)

# Questions that are collected for a batch, or in one. Record: `BatchItem`.
llm_batch_items = Table(
    "llm_batch_items",
    metadata,
    # Key of its stored answer.
    Column("key", Text, primary_key=True),
    # An `ItemState`.
    Column("state", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("batch_id", Text, index=True),
    Column("created_at", Double, nullable=False),
    # Bytes of the question.
    Column("size", BigInteger, nullable=False),
    # The requester that asked first, and the cost that is reserved: an `LlmCall`, JSON.
    Column("call", Text, nullable=False),
    # What the key is made of (`ModelClient.answer_key_fields`), JSON.
    Column("question", Text, nullable=False),
)
Index(
    "ix_llm_batch_items_state",
    llm_batch_items.c.state,
    llm_batch_items.c.provider,
    llm_batch_items.c.created_at,
)

# Jobs that wait for the answer to a question of a batch.
llm_batch_waits = Table(
    "llm_batch_waits",
    metadata,
    Column("key", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("called_at", Double, nullable=False),  # when the job was last woken; 0: not yet
)


# Calls of models, and those that a stored answer has saved. Record: `LlmCall`.
llm_calls = Table(
    "llm_calls",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Double, nullable=False),  # LOST_AFTER later, an open call counts as lost
    # The day, in UTC, that it counts for: `2026-11-22`.
    Column("day", Text, nullable=False),
    # A `CallState`.
    Column("state", Text, nullable=False),
    Column("batch", Boolean, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    # Tokens of the input that the server had in its cache.
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    # Paid, reserved or saved, by the state; NULL where the model has no price.
    Column("cost", Double),
    # The server's name; empty for a saved call.
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("job_type", Text),
    # For whom the call is made (`Requester`).
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

# Sums of calls, against which budgets are checked (`llm_spend`).
llm_accounts = Table(
    "llm_accounts",
    metadata,
    # `day:…`, `backfill:ID`, `provider:NAME/DAY`, `key:ID/DAY` or `key:ID/MONTH`.
    Column("key", Text, primary_key=True),
    Column("day", Text),
    # Calls that were made; calls that stored answers have saved; calls that were made of models
    # without a price.
    Column("calls", Integer, nullable=False),
    Column("saved_calls", Integer, nullable=False),
    Column("unpriced_calls", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    # Cost of the calls made, the cost reserved for calls under way, and what saved calls would have
    # cost.
    Column("spent", Double, nullable=False),
    Column("reserved", Double, nullable=False),
    Column("saved", Double, nullable=False),
    # The budget at which the last call was refused, as too little was left; NULL once a later call
    # found enough.
    Column("short_of", Double),
)

# Files of clients of the OpenAI-compatible API. Record: `OpenAiFile`.
openai_files = Table(
    "openai_files",
    metadata,
    Column("id", Text, primary_key=True),
    # The API key that alone may see it.
    Column("owner", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    # NULL: kept for ever.
    Column("expires_at", Double),
    # Bytes; NULL while it is being written.
    Column("size", BigInteger),
)
Index("ix_openai_files_owner", openai_files.c.owner, openai_files.c.created_at)

# Batches that such clients have handed in. Record: `OpenAiBatch`.
openai_batches = Table(
    "openai_batches",
    metadata,
    Column("id", Text, primary_key=True),
    # The API key that alone may see it.
    Column("owner", Text, nullable=False),
    # An `OpenAiBatchState`.
    Column("state", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("input_file", Text, nullable=False),
    # The other fields of the record, JSON.
    Column("content", Text, nullable=False),
)
Index("ix_openai_batches_owner", openai_batches.c.owner, openai_batches.c.created_at)
Index("ix_openai_batches_state", openai_batches.c.state, openai_batches.c.created_at)
