"""What calls of language models cost, and budgets of backfills."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
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
    op.add_column("bulk_operations", sa.Column("budget", sa.Double()))
