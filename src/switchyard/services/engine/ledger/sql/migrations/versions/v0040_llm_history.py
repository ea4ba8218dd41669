"""Make the tables of what model servers were allowed each minute, and when they were paused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    op.create_table(
        "llm_minutes",
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("calls_allowed", sa.Integer(), nullable=False),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("at", "server"),
    )
    op.create_table(
        "llm_pauses",
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("began_at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("server", "began_at"),
    )
