"""Name the column that says who describes a node or an edge of the graph."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    for table in ("graph_nodes", "graph_edges"):
        op.alter_column(table, "told_by", new_column_name="provenance")
