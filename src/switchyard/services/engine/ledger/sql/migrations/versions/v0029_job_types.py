"""Keep the job types that workers know, with the JSON Schemas of their payloads."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, Integer, Text

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.create_table(
        "job_types",
        Column("name", Text, primary_key=True),
        Column("worker", Text, nullable=False),
        Column("lanes", Text, nullable=False),
        Column("timeout", Double, nullable=False),
        Column("max_attempts", Integer, nullable=False),
        Column("payload_schema", Text, nullable=False),
        Column("local_keys", Text, nullable=False),
        Column("module", Text, nullable=False),
        Column("digest", Text, nullable=False),
        Column("registered_by", Text, nullable=False),
        Column("registered_at", Double, nullable=False),
        Column("seen_at", Double, nullable=False),
    )
    op.add_column("workers", Column("job_types", Text))
