"""Keep the key of the ids that jobs get from what they follow from. Ledgers that are there already
get none: what they have published has its ids."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    op.add_column("system_id", Column("job_id_key", Text))
