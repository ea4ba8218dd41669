"""Servers of language models, and the calls to them that are under way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
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
