"""Make the tables of the dashboard: what its charts show of each minute, and who is signed in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "lane_minutes",
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("counted_at", sa.Double(), nullable=False),
        sa.Column("published", sa.Integer(), nullable=False),
        sa.Column("ended", sa.Integer(), nullable=False),
        sa.Column("dead", sa.Integer(), nullable=False),
        sa.Column("open_jobs", sa.Integer(), nullable=False),
        sa.Column("ready", sa.Integer()),
        sa.Column("wait_p50", sa.Double()),
        sa.Column("wait_p99", sa.Double()),
        sa.PrimaryKeyConstraint("at", "lane"),
    )
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash"),
    )
