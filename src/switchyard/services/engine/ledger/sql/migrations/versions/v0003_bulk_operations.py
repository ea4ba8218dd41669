"""Bulk operations, and the jobs that belong to one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
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
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_bulk_operations_created", "bulk_operations", ["created_at", "id"])
    op.add_column("jobs", sa.Column("operation_id", sa.Text()))
    condition = sa.text("operation_id IS NOT NULL")
    op.create_index(
        "ix_jobs_operation",
        "jobs",
        ["operation_id", "state"],
        sqlite_where=condition,
        postgresql_where=condition,
    )
