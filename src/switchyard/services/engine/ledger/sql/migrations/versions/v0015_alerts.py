"""What was told to people, so that it is told once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("told_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
