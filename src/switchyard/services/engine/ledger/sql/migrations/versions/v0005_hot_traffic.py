"""Workers tell when they took hot jobs; redrives no longer note when each letter was sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("workers", sa.Column("hot_at", sa.Double()))
    op.drop_column("redriven_letters", "sent_at")
