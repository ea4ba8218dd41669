"""Tags of schedules' jobs, and of which version a schedule's payload is."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer, Text

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    op.add_column("schedules", Column("tags", Text))
    op.add_column("schedules", Column("payload_version", Integer))
