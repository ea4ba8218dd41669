"""The tables. Times are seconds since the epoch in double precision; ids and JSON are text.

JSON is text and not jsonb, so that a payload comes back as it was, `\\u0000` included, which
jsonb refuses. A change here needs a migration; a test compares the two. The wings above have their
tables beside their repositories.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    literal_column,
    text,
)

SCHEMA_REVISION = "0042"
"""The migration that makes these tables; `Ledger.check` compares it with the database's."""

metadata = MetaData()

# The long columns come last: SQLite reads a row from its start.
jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_type", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("routing_key", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("parent_id", Text),
    Column("pipeline", Text),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("redrives", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("worker_id", Text),
    Column("claim_id", Text),
    Column("created_at", Double, nullable=False),
    Column("queued_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("updated_at", Double, nullable=False),
    Column("run_at", Double),
    Column("expires_at", Double),
    Column("reason", Text),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("idempotency_key", Text),
    Column("fingerprint", Text),
    Column("operation_id", Text),
    Column("metadata", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("result", Text),
    # Of few jobs: where they are not set, they cost nothing behind the long ones either.
    Column("join_id", Text),
    Column("joins", Integer),
    Column("cancel_asked_at", Double),
)


def _partial(name: str, *columns: Column[object], where: str, unique: bool = False) -> Index:
    condition = text(where)
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


# Every index is paid for by every job. `ix_jobs_state` serves the outbox, the running jobs of
# a worker and, by itself, the counts; the partial ones cost only the jobs that they are about.
Index("ix_jobs_created", jobs.c.created_at, jobs.c.id)
Index("ix_jobs_state", jobs.c.state, jobs.c.lane, jobs.c.created_at)
_partial(
    "uq_jobs_idempotency_key",
    jobs.c.idempotency_key,
    where="idempotency_key IS NOT NULL",
    unique=True,
)
_partial("ix_jobs_run_at", jobs.c.run_at, where="state = 'scheduled'")
_partial("ix_jobs_pipeline", jobs.c.pipeline, where="pipeline IS NOT NULL")
_partial("ix_jobs_parent", jobs.c.parent_id, where="parent_id IS NOT NULL")
_partial(
    "ix_jobs_join",
    jobs.c.join_id,
    jobs.c.created_at,
    jobs.c.id,
    where="join_id IS NOT NULL",
)
_partial("ix_jobs_operation", jobs.c.operation_id, jobs.c.state, where="operation_id IS NOT NULL")

attempts = Table(
    "attempts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("job_id", Text, nullable=False, index=True),
    Column("redrive", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker_id", Text),
    Column("started_at", Double),
    Column("finished_at", Double, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("error_type", Text),
    Column("error_message", Text),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text),
    Column("job_type", Text),
    Column("lane", Text),
    Column("routing_key", Text),
    Column("reason", Text, nullable=False),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("traceback", Text),
    Column("attempts", Integer, nullable=False),
    Column("redrives", Integer, nullable=False),
    Column("worker", Text),
    Column("first_at", Double, nullable=False),
    Column("dead_at", Double, nullable=False),
    Column("copies", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("fingerprint", Text),
    Column("headers", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
Index("ix_dead_letters_dead", dead_letters.c.dead_at, dead_letters.c.id)
# All that the groups need, so that they are counted without reading a row.
Index(
    "ix_dead_letters_group",
    dead_letters.c.state,
    dead_letters.c.fingerprint,
    dead_letters.c.dead_at,
    dead_letters.c.id,
)

job_tags = Table(
    "job_tags",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)
# By it, jobs with a tag are read by age, however many others there are.
Index(
    "ix_job_tags_value", job_tags.c.name, job_tags.c.value, job_tags.c.created_at, job_tags.c.job_id
)

job_actions = Table(
    "job_actions",
    metadata,
    Column("operation_id", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("acted_at", Double, nullable=False),
    Column("new_job_id", Text),
    Column("before", Text),
)
Index("ix_job_actions_job", job_actions.c.job_id)

redriven_letters = Table(
    "redriven_letters",
    metadata,
    Column("operation_id", Text, primary_key=True),
    Column("letter_id", Text, primary_key=True),
    Column("redrives", Integer, nullable=False),
    Column("outcome", Text),
)
Index("ix_redriven_letters_letter", redriven_letters.c.letter_id)
_partial(
    "ix_redriven_letters_open",
    redriven_letters.c.operation_id,
    redriven_letters.c.letter_id,
    where="outcome IS NULL",
)

leftover_letters = Table(
    "leftover_letters",
    metadata,
    Column("letter_id", Text, primary_key=True),
    Column("redrives", Integer, nullable=False),
    Column("copies", Integer, nullable=False),
)

archive_files = Table(
    "archive_files",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("key", Text, nullable=False),
    Column("jobs", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("oldest_at", Double, nullable=False),
    Column("newest_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("settled_at", Double),
    Column("kept_ids", Text),
)

letter_edits = Table(
    "letter_edits",
    metadata,
    Column("letter_id", Text, primary_key=True),
    Column("redrives", Integer, primary_key=True, autoincrement=False),
    Column("operation_id", Text, nullable=False, index=True),
    Column("routing_key", Text, nullable=False),
    Column("edited_by", Text, nullable=False),
    Column("edited_at", Double, nullable=False),
    Column("undone_at", Double),
    Column("restored_at", Double),
    Column("headers", Text, nullable=False),
    Column("original", LargeBinary, nullable=False),
    Column("edited", LargeBinary, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("kinds", Text, nullable=False),
    Column("lanes", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("stopped_at", Double),
    Column("hot_at", Double),
    Column("mark", Text),
    Column("job_types", Text),
    Column("memory_bytes", BigInteger),
    Column("stopping_at", Double),
)

job_types = Table(
    "job_types",
    metadata,
    Column("name", Text, primary_key=True),
    Column("worker", Text, nullable=False),
    Column("lanes", Text, nullable=False),
    Column("timeout", Double, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("payload_schema", Text, nullable=False),
    Column("local_keys", Text, nullable=False),
    Column("module", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("registered_by", Text, nullable=False),
    Column("registered_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
)

loop_blocks = Table(
    "loop_blocks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("worker_id", Text, nullable=False),
    Column("job_id", Text),
    Column("job_type", Text),
    Column("place", Text, nullable=False),
    Column("began_at", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("ended", Integer, nullable=False),
)

system_id = Table(
    "system_id",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    # Programs of this version of the tables and of later ones may use them; None: only the newest.
    Column("oldest_program", Text),
    # Of `JobIds`, hexadecimal.
    Column("job_id_key", Text),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("key_hash", Text, nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    Column("limits", Text),
)

api_key_allowances = Table(
    "api_key_allowances",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("at", Double, nullable=False),
    Column("requests", Double, nullable=False),
    Column("tokens", Double, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("key_hash", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
)

lane_minutes = Table(
    "lane_minutes",
    metadata,
    Column("at", Double, primary_key=True),
    Column("lane", Text, primary_key=True),
    Column("counted_at", Double, nullable=False),
    Column("published", Integer, nullable=False),
    Column("ended", Integer, nullable=False),
    Column("dead", Integer, nullable=False),
    Column("open_jobs", Integer, nullable=False),
    Column("ready", Integer),
    Column("wait_p50", Double),
    Column("wait_p99", Double),
)

bulk_operations = Table(
    "bulk_operations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("rate", Double),
    Column("max_open", Integer),
    Column("created_by", Text, nullable=False),
    Column("reason", Text),
    Column("note", Text),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("updated_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("holder", Text),
    Column("lease_until", Double),
    Column("spec", Text, nullable=False),
    Column("cursor", Text),
    Column("counts", Text, nullable=False),
    Column("budget", Double),
)
Index("ix_bulk_operations_created", bulk_operations.c.created_at, bulk_operations.c.id)


alerts = Table(
    "alerts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("told_at", Double, nullable=False),
)


job_progress = Table(
    "job_progress",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("claim_id", Text, nullable=False),
    Column("fraction", Double),
    Column("note", Text, nullable=False),
    Column("reported_at", Double, nullable=False),
)

job_checkpoints = Table(
    "job_checkpoints",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("work", Text, nullable=False),
    Column("kept_at", Double, nullable=False),
    Column("data", Text, nullable=False),
)


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
    Column("tags", Text),
    Column("payload_version", Integer),
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


pauses = Table(
    "pauses",
    metadata,
    Column("id", Text, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("reason", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("ends_at", Double),
    Column("ended_at", Double),
    Column("ended_by", Text),
)
_partial(
    "uq_pauses_target",
    pauses.c.scope,
    pauses.c.target,
    where="ended_at IS NULL",
    unique=True,
)


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
"""Condition for woken jobs, which are few; a query with it uses the index."""
Index(
    "ix_limit_waits_called",
    limit_waits.c.name,
    limit_waits.c.key,
    limit_waits.c.called_until,
    sqlite_where=WAS_WOKEN,
    postgresql_where=WAS_WOKEN,
)
