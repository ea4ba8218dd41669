"""Which process a worker is, among all that ever had its number; what has blocked event loops."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("workers", sa.Column("mark", sa.Text))
    op.create_table(
        "loop_blocks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("worker_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("job_type", sa.Text),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("began_at", sa.Double, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("ended", sa.Integer, nullable=False),
    )
