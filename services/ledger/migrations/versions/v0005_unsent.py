"""Redrives no longer note when each letter was sent: nobody asked."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.drop_column("redriven_letters", "sent_at")
