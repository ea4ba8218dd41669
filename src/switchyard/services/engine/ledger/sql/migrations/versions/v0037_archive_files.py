"""Keep which files of the archive are complete, and which of their jobs the ledger still has."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, Text

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    op.create_table(
        "archive_files",
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("key", Text, nullable=False),
        Column("jobs", Integer, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("bytes", BigInteger, nullable=False),
        Column("sha256", Text, nullable=False),
        Column("oldest_at", Double, nullable=False),
        Column("newest_at", Double, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("settled_at", Double),
        Column("kept_ids", Text),
    )
