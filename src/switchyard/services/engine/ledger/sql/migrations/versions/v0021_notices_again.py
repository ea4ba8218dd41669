"""Joins whose job is made anew when their jobs end again: notices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    again = sa.Column("again", sa.Integer(), nullable=False, server_default=sa.text("0"))
    op.add_column("joins", again)
    notices = "SELECT id FROM jobs WHERE job_type = 'send_notice'"
    op.execute(f"UPDATE joins SET again = 1 WHERE id IN ({notices})")
