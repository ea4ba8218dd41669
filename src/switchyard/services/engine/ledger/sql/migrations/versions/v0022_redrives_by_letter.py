"""Whether a redrive has noted a letter is asked of each copy that says so."""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_index("ix_redriven_letters_letter", "redriven_letters", ["letter_id"])
