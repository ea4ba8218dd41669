"""Pauses of lanes, job types, sources and queues."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.create_table(
        "pauses",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("ends_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("ended_by", sa.Text),
    )
    in_force = sa.text("ended_at IS NULL")
    op.create_index(
        "uq_pauses_target",
        "pauses",
        ["scope", "target"],
        unique=True,
        sqlite_where=in_force,
        postgresql_where=in_force,
    )
