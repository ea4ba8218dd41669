"""Crawls by the key under which they were asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("crawls", sa.Column("idempotency_key", sa.Text()))
    op.create_index("uq_crawls_idempotency_key", "crawls", ["idempotency_key"], unique=True)
