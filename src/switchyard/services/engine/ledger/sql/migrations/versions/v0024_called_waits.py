"""Those that wait for a limit and were called, by limit: to count them, all that wait were read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_index(
        "ix_limit_waits_called",
        "limit_waits",
        ["name", "key", "called_until"],
        sqlite_where=sa.text("called_until > 0"),
        postgresql_where=sa.text("called_until > 0"),
    )
