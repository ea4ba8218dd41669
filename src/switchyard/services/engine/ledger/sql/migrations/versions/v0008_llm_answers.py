"""Answers of language models: when they were made and used, and who asks just now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
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
