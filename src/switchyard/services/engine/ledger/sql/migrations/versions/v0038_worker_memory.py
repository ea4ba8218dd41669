"""Keep how much memory a worker has, and since when it has been shutting down."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    op.add_column("workers", Column("memory_bytes", BigInteger))
    op.add_column("workers", Column("stopping_at", Double))
