"""Keep what bulk actions did to which job: cancelled, rerun as another, moved from another lane."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, Text

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.create_table(
        "job_actions",
        Column("operation_id", Text, primary_key=True),
        Column("job_id", Text, primary_key=True),
        Column("acted_at", Double, nullable=False),
        Column("new_job_id", Text),
        Column("before", Text),
    )
    op.create_index("ix_job_actions_job", "job_actions", ["job_id"])
