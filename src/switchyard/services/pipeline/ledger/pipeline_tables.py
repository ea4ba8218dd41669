"""The tables of documents, crawls, catalogues' answers and the knowledge graph.

As in the engine's `tables`, a change here needs a migration.

A graph node's id is never used twice and is only known in the ledger: elsewhere a node is named by
its keys. An edge's `owner` is the document that it comes from (`graph_documents.id`), or 0 where it
describes a work that is only cited. An owner's edges all begin at the node of its document.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, Table, Text

from switchyard.services.engine.ledger.sql.tables import metadata

documents = Table(
    "documents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("content_hash", Text, nullable=False, unique=True),
    Column("source", Text, unique=True),
    Column("filename", Text),
    Column("title", Text),
    Column("media_type", Text),
    Column("size_bytes", BigInteger),
    Column("pipeline", Text),
    Column("state", Text, nullable=False),
    Column("current_stage", Text),
    Column("completed_stages", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

Index("ix_documents_created", documents.c.created_at, documents.c.id)

document_classes = Table(
    "document_classes",
    metadata,
    Column("document_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    Column("score", Double, nullable=False),
    Column("why", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
)
Index(
    "ix_document_classes_label",
    document_classes.c.kind,
    document_classes.c.label,
    document_classes.c.document_id,
)

crawls = Table(
    "crawls",
    metadata,
    Column("id", Text, primary_key=True),
    Column("start", Text, nullable=False),
    Column("hosts", Text, nullable=False),
    Column("max_pages", Integer, nullable=False),
    Column("max_depth", Integer, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("claimed", Integer, nullable=False),
    Column("cancelled_at", Double),
    Column("idempotency_key", Text),
)
Index("ix_crawls_created", crawls.c.created_at, crawls.c.id)
Index("uq_crawls_idempotency_key", crawls.c.idempotency_key, unique=True)

crawl_pages = Table(
    "crawl_pages",
    metadata,
    Column("crawl_id", Text, primary_key=True),
    Column("address", Text, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("found_by", Text),
    Column("due_at", Double, nullable=False),
    Column("main", Integer, nullable=False),
    Column("url", Text, nullable=False),
)
Index("ix_crawl_pages_host", crawl_pages.c.crawl_id, crawl_pages.c.host, crawl_pages.c.due_at)
Index("ix_crawl_pages_due", crawl_pages.c.crawl_id, crawl_pages.c.due_at, crawl_pages.c.job_id)

catalogue_answers = Table(
    "catalogue_answers",
    metadata,
    Column("key", Text, primary_key=True),
    Column("created_at", Double),
    Column("holder", Text),
    Column("lease_until", Double),
    Column("answer", Text),
)
Index("ix_catalogue_answers_created", catalogue_answers.c.created_at)

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
