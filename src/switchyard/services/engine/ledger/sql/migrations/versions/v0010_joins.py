"""Jobs that wait for others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("join_id", sa.Text()))
    op.add_column("jobs", sa.Column("joins", sa.Integer()))
    op.create_index(
        "ix_jobs_join",
        "jobs",
        ["join_id", "created_at", "id"],
        sqlite_where=sa.text("join_id IS NOT NULL"),
        postgresql_where=sa.text("join_id IS NOT NULL"),
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
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_joins_waiting",
        "joins",
        ["open_jobs"],
        sqlite_where=sa.text("fulfilled_at IS NULL"),
        postgresql_where=sa.text("fulfilled_at IS NULL"),
    )
