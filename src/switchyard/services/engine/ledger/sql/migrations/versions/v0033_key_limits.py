"""Keep the limits of API keys, and what is left of their rates."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, Text

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.add_column("api_keys", Column("limits", Text))
    op.create_table(
        "api_key_allowances",
        Column("key_id", Text, primary_key=True),
        Column("at", Double, nullable=False),
        Column("requests", Double, nullable=False),
        Column("tokens", Double, nullable=False),
    )
