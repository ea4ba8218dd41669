"""The tables of the first release: jobs, models' calls, documents and the graph.

Its number is the last of those that made them before, so their ledgers are up to date. Made from
the tables by Alembic; each later change is a migration of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("told_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key_hash"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("redrive", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text()),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error_type", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_attempts_job_id", "attempts", ["job_id"])
    op.create_table(
        "bulk_operations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rate", sa.Double()),
        sa.Column("max_open", sa.Integer()),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("note", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("holder", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text()),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("budget", sa.Double()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_bulk_operations_created", "bulk_operations", ["created_at", "id"])
    op.create_table(
        "catalogue_answers",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double()),
        sa.Column("holder", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.Column("answer", sa.Text()),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_catalogue_answers_created", "catalogue_answers", ["created_at"])
    op.create_table(
        "crawl_pages",
        sa.Column("crawl_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("found_by", sa.Text()),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("main", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "address"),
    )
    op.create_index("ix_crawl_pages_due", "crawl_pages", ["crawl_id", "due_at", "job_id"])
    op.create_index("ix_crawl_pages_host", "crawl_pages", ["crawl_id", "host", "due_at"])
    op.create_table(
        "crawls",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("start", sa.Text(), nullable=False),
        sa.Column("hosts", sa.Text(), nullable=False),
        sa.Column("max_pages", sa.Integer(), nullable=False),
        sa.Column("max_depth", sa.Integer(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("claimed", sa.Integer(), nullable=False),
        sa.Column("cancelled_at", sa.Double()),
        sa.Column("idempotency_key", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_crawls_created", "crawls", ["created_at", "id"])
    op.create_index("uq_crawls_idempotency_key", "crawls", ["idempotency_key"], unique=True)
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text()),
        sa.Column("job_type", sa.Text()),
        sa.Column("lane", sa.Text()),
        sa.Column("routing_key", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error_type", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("traceback", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("redrives", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("dead_at", sa.Double(), nullable=False),
        sa.Column("copies", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_dead_letters_dead", "dead_letters", ["dead_at", "id"])
    op.create_index(
        "ix_dead_letters_group", "dead_letters", ["state", "fingerprint", "dead_at", "id"]
    )
    op.create_table(
        "document_classes",
        sa.Column("document_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("document_id", "kind", "label"),
    )
    op.create_index(
        "ix_document_classes_label", "document_classes", ["kind", "label", "document_id"]
    )
    op.create_table(
        "documents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("source", sa.Text()),
        sa.Column("filename", sa.Text()),
        sa.Column("title", sa.Text()),
        sa.Column("media_type", sa.Text()),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("pipeline", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("current_stage", sa.Text()),
        sa.Column("completed_stages", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("content_hash"),
        sa.UniqueConstraint("source"),
    )
    op.create_table(
        "graph_counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "graph_documents",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("document_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("document_id"),
    )
    op.create_index("ix_graph_documents_node_id", "graph_documents", ["node_id"])
    op.create_table(
        "graph_edges",
        sa.Column("source", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("told_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("source", "kind", "target", "owner"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_graph_edges_target", "graph_edges", ["target", "kind", "source"])
    op.create_table(
        "graph_keys",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("node_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_graph_keys_node_id", "graph_keys", ["node_id"])
    op.create_table(
        "graph_nodes",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("year", sa.Integer()),
        sa.Column("told_by", sa.Text(), nullable=False),
        sa.Column("cited", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_graph_nodes_cited", "graph_nodes", ["cited", "id"])
    op.create_index("ix_graph_nodes_title", "graph_nodes", ["title"])
    op.create_table(
        "graph_rankings",
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("edges", sa.BigInteger(), nullable=False),
        sa.Column("communities", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("generation"),
    )
    op.create_table(
        "graph_ranks",
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("community", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("generation", "node_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_graph_ranks_rank", "graph_ranks", ["generation", "rank", "node_id"])
    op.create_table(
        "job_checkpoints",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("work", sa.Text(), nullable=False),
        sa.Column("kept_at", sa.Double(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "job_progress",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("fraction", sa.Double()),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("routing_key", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text()),
        sa.Column("pipeline", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("redrives", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text()),
        sa.Column("claim_id", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("queued_at", sa.Double()),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("run_at", sa.Double()),
        sa.Column("expires_at", sa.Double()),
        sa.Column("reason", sa.Text()),
        sa.Column("error_type", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("operation_id", sa.Text()),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("result", sa.Text()),
        sa.Column("join_id", sa.Text()),
        sa.Column("joins", sa.Integer()),
        sa.Column("cancel_asked_at", sa.Double()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_jobs_created", "jobs", ["created_at", "id"])
    op.create_index(
        "ix_jobs_join",
        "jobs",
        ["join_id", "created_at", "id"],
        sqlite_where=sa.text("join_id IS NOT NULL"),
        postgresql_where=sa.text("join_id IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_operation",
        "jobs",
        ["operation_id", "state"],
        sqlite_where=sa.text("operation_id IS NOT NULL"),
        postgresql_where=sa.text("operation_id IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_parent",
        "jobs",
        ["parent_id"],
        sqlite_where=sa.text("parent_id IS NOT NULL"),
        postgresql_where=sa.text("parent_id IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_pipeline",
        "jobs",
        ["pipeline"],
        sqlite_where=sa.text("pipeline IS NOT NULL"),
        postgresql_where=sa.text("pipeline IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_run_at",
        "jobs",
        ["run_at"],
        sqlite_where=sa.text("state = 'scheduled'"),
        postgresql_where=sa.text("state = 'scheduled'"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state", "lane", "created_at"])
    op.create_index(
        "uq_jobs_idempotency_key",
        "jobs",
        ["idempotency_key"],
        unique=True,
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "joins",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("when_dead", sa.Text(), nullable=False),
        sa.Column("held", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("open_jobs", sa.Integer(), nullable=False),
        sa.Column("dead", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("fulfilled_at", sa.Double()),
        sa.Column("again", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_joins_waiting",
        "joins",
        ["open_jobs"],
        sqlite_where=sa.text("fulfilled_at IS NULL"),
        postgresql_where=sa.text("fulfilled_at IS NULL"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "letter_edits",
        sa.Column("letter_id", sa.Text(), nullable=False),
        sa.Column("redrives", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("routing_key", sa.Text(), nullable=False),
        sa.Column("edited_by", sa.Text(), nullable=False),
        sa.Column("edited_at", sa.Double(), nullable=False),
        sa.Column("undone_at", sa.Double()),
        sa.Column("restored_at", sa.Double()),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("original", sa.LargeBinary(), nullable=False),
        sa.Column("edited", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("letter_id", "redrives"),
    )
    op.create_index("ix_letter_edits_operation_id", "letter_edits", ["operation_id"])
    op.create_table(
        "limit_holds",
        sa.Column("hold", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("second", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hold", "name", "key"),
    )
    op.create_index("ix_limit_holds_holder", "limit_holds", ["holder"])
    op.create_index("ix_limit_holds_job_id", "limit_holds", ["job_id"])
    op.create_index("ix_limit_holds_limit", "limit_holds", ["name", "key", "expires_at"])
    op.create_table(
        "limit_waits",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("back_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("called_until", sa.Double(), nullable=False),
        sa.Column("call_after", sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_index(
        "ix_limit_waits_called",
        "limit_waits",
        ["name", "key", "called_until"],
        sqlite_where=sa.text("called_until > 0"),
        postgresql_where=sa.text("called_until > 0"),
    )
    op.create_index("ix_limit_waits_expires_at", "limit_waits", ["expires_at"])
    op.create_index("ix_limit_waits_limit", "limit_waits", ["name", "key", "since"])
    op.create_index("ix_limit_waits_queue", "limit_waits", ["queue"])
    op.create_table(
        "limits",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("per_minute", sa.Integer()),
        sa.Column("tokens_per_minute", sa.BigInteger()),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("bins", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", "key"),
    )
    op.create_table(
        "llm_accounts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("day", sa.Text()),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("saved_calls", sa.Integer(), nullable=False),
        sa.Column("unpriced_calls", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.Double(), nullable=False),
        sa.Column("reserved", sa.Double(), nullable=False),
        sa.Column("saved", sa.Double(), nullable=False),
        sa.Column("short_of", sa.Double()),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "llm_answers",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double()),
        sa.Column("used_at", sa.Double()),
        sa.Column("holder", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_llm_answers_used", "llm_answers", ["used_at", "key"])
    op.create_table(
        "llm_batch_items",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_llm_batch_items_batch_id", "llm_batch_items", ["batch_id"])
    op.create_index(
        "ix_llm_batch_items_state", "llm_batch_items", ["state", "provider", "created_at"]
    )
    op.create_table(
        "llm_batch_waits",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("called_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", "job_id"),
    )
    op.create_table(
        "llm_batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("remote_id", sa.Text()),
        sa.Column("questions", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("fenced_until", sa.Double(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "llm_calls",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("batch", sa.Boolean(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Double()),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("job_type", sa.Text()),
        sa.Column("source", sa.Text()),
        sa.Column("job_id", sa.Text()),
        sa.Column("document_id", sa.Text()),
        sa.Column("backfill_id", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_llm_calls_day", "llm_calls", ["day"])
    op.create_index(
        "ix_llm_calls_open",
        "llm_calls",
        ["at"],
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "llm_servers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("limit", sa.Double(), nullable=False),
        sa.Column("paused_until", sa.Double(), nullable=False),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double()),
        sa.Column("pace", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "llm_slots",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_llm_slots_server", "llm_slots", ["server", "expires_at"])
    op.create_table(
        "loop_blocks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text()),
        sa.Column("job_type", sa.Text()),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("ended", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "redriven_letters",
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("letter_id", sa.Text(), nullable=False),
        sa.Column("redrives", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.PrimaryKeyConstraint("operation_id", "letter_id"),
    )
    op.create_index("ix_redriven_letters_letter", "redriven_letters", ["letter_id"])
    op.create_index(
        "ix_redriven_letters_open",
        "redriven_letters",
        ["operation_id", "letter_id"],
        sqlite_where=sa.text("outcome IS NULL"),
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_table(
        "schedule_firings",
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text()),
        sa.Column("noted_at", sa.Double(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.PrimaryKeyConstraint("schedule", "due_at"),
    )
    op.create_index(
        "ix_schedule_firings_due",
        "schedule_firings",
        ["due_at"],
        sqlite_where=sa.text("outcome = 'due'"),
        postgresql_where=sa.text("outcome = 'due'"),
    )
    op.create_table(
        "schedules",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("routing_key", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer()),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("jitter", sa.Double(), nullable=False),
        sa.Column("grace", sa.Double(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("remote", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("paused_at", sa.Double()),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("fire_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "system_id",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "workers",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("kinds", sa.Text(), nullable=False),
        sa.Column("lanes", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.Column("stopped_at", sa.Double()),
        sa.Column("hot_at", sa.Double()),
        sa.Column("mark", sa.Text()),
        sa.PrimaryKeyConstraint("worker_id"),
    )
    # Nodes and documents of the graph take their numbers from it.
    op.execute("INSERT INTO graph_counters (name, value) VALUES ('id', 0)")
