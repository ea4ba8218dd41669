"""Say which older programs may use tables that were migrated."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text

revision = "0034"
down_revision = "0033"
oldest_program = "0034"  # earlier ones do not look for it


def upgrade() -> None:
    op.add_column("system_id", Column("oldest_program", Text))
