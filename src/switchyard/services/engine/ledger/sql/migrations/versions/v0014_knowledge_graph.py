"""The knowledge graph; the edges between documents that were there become a part of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "graph_counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "graph_nodes",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("year", sa.Integer()),
        sa.Column("told_by", sa.Text(), nullable=False),
        sa.Column("cited", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_graph_nodes_title", "graph_nodes", ["title"])
    op.create_index("ix_graph_nodes_cited", "graph_nodes", ["cited", "id"])
    op.create_table(
        "graph_keys",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("node_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_graph_keys_node_id", "graph_keys", ["node_id"])
    op.create_table(
        "graph_documents",
        sa.Column("id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("document_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("document_id"),
    )
    op.create_index("ix_graph_documents_node_id", "graph_documents", ["node_id"])
    op.create_table(
        "graph_edges",
        sa.Column("source", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("owner", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("told_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("source", "kind", "target", "owner"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_graph_edges_target", "graph_edges", ["target", "kind", "source"])
    op.create_table(
        "graph_rankings",
        sa.Column("generation", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("edges", sa.BigInteger(), nullable=False),
        sa.Column("communities", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("generation"),
    )
    op.create_table(
        "graph_ranks",
        sa.Column("generation", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("node_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("community", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("generation", "node_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_graph_ranks_rank", "graph_ranks", ["generation", "rank", "node_id"])
    _take_over()
    op.drop_table("edges")


def _take_over() -> None:
    """Each document that has edges becomes a node. What else is known of it, its next run tells."""
    # A node and its document have one number here: both are of the same counter.
    op.execute(
        "INSERT INTO graph_documents (id, document_id, node_id) "
        "SELECT place, document_id, place FROM (SELECT document_id, "
        "row_number() OVER (ORDER BY document_id) AS place FROM "
        "(SELECT source_id AS document_id FROM edges UNION SELECT target_id FROM edges) AS ends) "
        "AS numbered"
    )
    op.execute(
        "INSERT INTO graph_nodes (id, kind, key, label, title, author, told_by, cited) "
        "SELECT here.id, 'document', 'document:' || here.document_id, "
        "substr(coalesce(documents.title, here.document_id), 1, 500), '', '', 'reference', 0 "
        "FROM graph_documents AS here LEFT JOIN documents ON documents.id = here.document_id"
    )
    op.execute(
        "INSERT INTO graph_edges (source, kind, target, owner, weight, told_by) "
        "SELECT one.id, edges.kind, other.id, one.id, edges.weight, 'similarity' FROM edges "
        "JOIN graph_documents AS one ON one.document_id = edges.source_id "
        "JOIN graph_documents AS other ON other.document_id = edges.target_id "
        "WHERE edges.kind = 'similar' AND edges.source_id <> edges.target_id"
    )
    op.execute(
        "INSERT INTO graph_counters (name, value) "
        "SELECT 'id', coalesce(max(id), 0) FROM graph_documents"
    )
