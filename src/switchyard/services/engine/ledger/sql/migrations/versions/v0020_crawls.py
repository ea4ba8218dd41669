"""Crawls, and the pages that they have claimed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
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
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_crawls_created", "crawls", ["created_at", "id"])
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
    op.create_index("ix_crawl_pages_host", "crawl_pages", ["crawl_id", "host", "due_at"])
    op.create_index("ix_crawl_pages_due", "crawl_pages", ["crawl_id", "due_at", "job_id"])
