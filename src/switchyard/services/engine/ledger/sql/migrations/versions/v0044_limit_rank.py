"""Let jobs wait for a named limit by urgency: those of the hot lane first."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer, text

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.add_column(
        "limit_waits", Column("rank", Integer(), nullable=False, server_default=text("0"))
    )
    op.create_index("ix_limit_waits_order", "limit_waits", ["name", "key", "rank", "since"])
