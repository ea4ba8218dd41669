"""Find waiting letters, and jobs that died lately, without a look at those of years."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    for name, table, columns, where in (
        ("ix_jobs_dead", "jobs", ["updated_at"], "state = 'dead'"),
        (
            "ix_dead_letters_waiting",
            "dead_letters",
            ["dead_at", "id", "lane", "reason"],
            "state = 'waiting'",
        ),
    ):
        condition = text(where)
        op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
