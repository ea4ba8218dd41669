"""Keep the files and batches of the OpenAI-compatible API."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_table(
        "openai_files",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("filename", Text, nullable=False),
        Column("purpose", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("expires_at", Double),
        Column("size", BigInteger),
    )
    op.create_index("ix_openai_files_owner", "openai_files", ["owner", "created_at"])
    op.create_table(
        "openai_batches",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("state", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("input_file", Text, nullable=False),
        Column("content", Text, nullable=False),
    )
    op.create_index("ix_openai_batches_owner", "openai_batches", ["owner", "created_at"])
    op.create_index("ix_openai_batches_state", "openai_batches", ["state", "created_at"])
