"""Keep which letters were redriven and still lie in `jobs.dead`."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer, Text

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    op.create_table(
        "leftover_letters",
        Column("letter_id", Text, primary_key=True),
        Column("redrives", Integer, nullable=False),
        Column("copies", Integer, nullable=False),
    )
