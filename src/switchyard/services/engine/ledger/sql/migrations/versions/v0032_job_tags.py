"""Keep the tags of jobs in rows of their own, so that jobs are found by them through an index."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, Text

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.create_table(
        "job_tags",
        Column("job_id", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("value", Text, nullable=False),
        Column("created_at", Double, nullable=False),
    )
    op.create_index("ix_job_tags_value", "job_tags", ["name", "value", "created_at", "job_id"])
