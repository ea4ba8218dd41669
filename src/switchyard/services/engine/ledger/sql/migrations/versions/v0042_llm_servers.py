"""Keep whether a hot call waits for a model server, and how the server takes parameters."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, Text, text

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    for name, kind, default in (
        ("hot_waits_until", Double(), "0"),
        ("learned", Text(), "''"),
        ("learned_at", Double(), "0"),
    ):
        op.add_column(
            "llm_servers", Column(name, kind, nullable=False, server_default=text(default))
        )
