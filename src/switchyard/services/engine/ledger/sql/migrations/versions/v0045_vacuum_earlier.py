"""Let autovacuum of PostgreSQL visit the tables that grow with every job before a fifth is new.

Counts and groups are read from an index alone only where it has been since the rows changed
(https://www.postgresql.org/docs/current/storage-vm.html). With the default, ten million jobs wait
for two million changes.
"""

from __future__ import annotations

from alembic import op

revision = "0045"
down_revision = "0044"

TABLES = ("jobs", "attempts", "dead_letters", "job_tags")
SHARES = {
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_vacuum_insert_scale_factor": 0.02,
    "autovacuum_analyze_scale_factor": 0.02,
}
"""Share of a table's rows, by what is done once that many are changed or new. A visit after inserts
alone skips what it has seen, so it may come more often."""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    shares = ", ".join(f"{name} = {share}" for name, share in SHARES.items())
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} SET ({shares})")
