"""Questions to language models that are collected, and sent to a provider's Batch API."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
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
