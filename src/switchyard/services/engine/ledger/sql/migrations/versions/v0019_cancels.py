"""When somebody asked for a running job to be cancelled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("cancel_asked_at", sa.Double()))
