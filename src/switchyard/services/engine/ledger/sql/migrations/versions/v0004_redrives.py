"""Groups of dead letters; what redrives sent, and what they changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("dead_letters", sa.Column("fingerprint", sa.Text()))
    op.create_index(
        "ix_dead_letters_group", "dead_letters", ["state", "fingerprint", "dead_at", "id"]
    )
    op.create_table(
        "redriven_letters",
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("letter_id", sa.Text(), nullable=False),
        sa.Column("redrives", sa.Integer(), nullable=False),
        sa.Column("sent_at", sa.Double()),
        sa.Column("outcome", sa.Text()),
        sa.PrimaryKeyConstraint("operation_id", "letter_id"),
    )
    condition = sa.text("outcome IS NULL")
    op.create_index(
        "ix_redriven_letters_open",
        "redriven_letters",
        ["operation_id", "letter_id"],
        sqlite_where=condition,
        postgresql_where=condition,
    )
    op.create_table(
        "letter_edits",
        sa.Column("letter_id", sa.Text(), nullable=False),
        sa.Column("redrives", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("routing_key", sa.Text(), nullable=False),
        sa.Column("edited_by", sa.Text(), nullable=False),
        sa.Column("edited_at", sa.Double(), nullable=False),
        sa.Column("undone_at", sa.Double()),
        sa.Column("restored_at", sa.Double()),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("original", sa.LargeBinary(), nullable=False),
        sa.Column("edited", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("letter_id", "redrives"),
    )
    op.create_index("ix_letter_edits_operation_id", "letter_edits", ["operation_id"])
