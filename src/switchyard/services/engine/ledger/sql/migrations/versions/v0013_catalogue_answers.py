"""What catalogues of works have answered, and who asks just now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "catalogue_answers",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double()),
        sa.Column("holder", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.Column("answer", sa.Text()),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_catalogue_answers_created", "catalogue_answers", ["created_at"])
