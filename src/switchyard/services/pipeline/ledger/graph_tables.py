"""The tables of the knowledge graph.

A node's id is never used twice, and is known in here alone: outside a node goes by its keys.
`owner` says which document an edge comes from (`graph_documents.id`), and is 0 where it belongs to
what is known of a work that is cited. An owner's edges all begin at the node of its document.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

graph_counters = Table(
    "graph_counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

graph_nodes = Table(
    "graph_nodes",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("year", Integer),
    Column("provenance", Text, nullable=False),
    Column("cited", BigInteger, nullable=False),
)
Index("ix_graph_nodes_title", graph_nodes.c.title)
Index("ix_graph_nodes_cited", graph_nodes.c.cited, graph_nodes.c.id)

graph_keys = Table(
    "graph_keys",
    metadata,
    Column("key", Text, primary_key=True),
    Column("node_id", BigInteger, nullable=False, index=True),
)

graph_documents = Table(
    "graph_documents",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("document_id", Text, nullable=False, unique=True),
    Column("node_id", BigInteger, nullable=False, index=True),
)

graph_edges = Table(
    "graph_edges",
    metadata,
    Column("source", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("target", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", BigInteger, primary_key=True, autoincrement=False),
    Column("weight", Double, nullable=False),
    Column("provenance", Text, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_graph_edges_target", graph_edges.c.target, graph_edges.c.kind, graph_edges.c.source)

graph_rankings = Table(
    "graph_rankings",
    metadata,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("finished_at", Double),
    Column("nodes", BigInteger, nullable=False),
    Column("edges", BigInteger, nullable=False),
    Column("communities", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
)

graph_ranks = Table(
    "graph_ranks",
    metadata,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("node_id", BigInteger, primary_key=True, autoincrement=False),
    Column("rank", Double, nullable=False),
    Column("community", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_graph_ranks_rank", graph_ranks.c.generation, graph_ranks.c.rank, graph_ranks.c.node_id)
