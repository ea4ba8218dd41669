"""Let documents be listed by their age without sorting all of them."""

from __future__ import annotations

from alembic import op

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    op.create_index("ix_documents_created", "documents", ["created_at", "id"])
