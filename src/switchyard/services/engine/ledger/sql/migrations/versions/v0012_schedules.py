"""Schedules, and what became of each of their due times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
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
    is_open = sa.text("outcome = 'due'")
    op.create_index(
        "ix_schedule_firings_due",
        "schedule_firings",
        ["due_at"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
